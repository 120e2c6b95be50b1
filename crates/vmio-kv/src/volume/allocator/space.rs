//! Which free units have space on the device. A file is sparse, and its file system may be full when a hole is to be written to: so only units
//! are given out that have got their space before, and what is kept free for compactions, commits and deletions is there for certain.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::volume::allocator::Allocator;

/// A full file system is asked for space for so many units that were never granted, and refuses it, before no more are tried: a volume may have
/// millions.
const REFUSED_UNITS_MAX: usize = 512;

/// What is known of the space of free units.
#[derive(Default)]
pub(super) struct FreeUnits {
    /// Those with space: they are given out once they are granted.
    pub(super) ready: BTreeSet<u64>,
    /// Those that are granted and may be holes. Of those that are not, nothing is kept: see [`Allocator::unused`].
    pub(super) hollow: BTreeSet<u64>,
    /// Those of the two of which the device may still hold something.
    pub(super) discardable: BTreeSet<u64>,
    /// Units below that were never granted, and have no space, were refused it by a full file system.
    pub(super) refused_end: u64,
    /// A unit was refused though there are hollow ones.
    pub(super) lacks_space: bool,
    /// The file system had no space when it was asked last.
    pub(super) file_system_is_full: bool,
}

impl FreeUnits {
    pub(super) fn remove(&mut self, unit: u64) {
        self.ready.remove(&unit);
        self.hollow.remove(&unit);
        self.discardable.remove(&unit);
    }
}

#[cfg(test)]
impl Allocator {
    /// One whose units all have space.
    pub(crate) fn with_space(groups: &[crate::format::geometry::Group]) -> Self {
        let mut allocator = Allocator::new(groups);
        allocator.extend_write_fence(u64::MAX);
        allocator.give_all_space();
        allocator
    }

    /// Has all units have space.
    pub(crate) fn give_all_space(&mut self) {
        let units: Vec<u64> = self.groups.iter().flat_map(|map| map.group.first_unit..map.group.end()).collect();
        units.into_iter().for_each(|unit| self.got_space(unit));
    }
}

impl Allocator {
    /// How many units nobody has, nor has reserved, and have space.
    pub(crate) fn free_units(&self) -> u64 {
        self.free.ready.len() as u64 - self.reserved
    }

    /// How many of those that nobody has would be there if the file system had space for all; those alone that have it, if it is full.
    pub(crate) fn free_units_with_holes(&self) -> u64 {
        self.free_units() + if self.free.file_system_is_full { 0 } else { self.hollow_units() }
    }

    /// How many units nobody has, and have no space.
    pub(super) fn hollow_units(&self) -> u64 {
        self.free.hollow.len() as u64 + self.unused_units
    }

    /// A unit of which something is kept is nobody's from now on. One that is not granted, and has no space, is unused as others are.
    pub(super) fn add_free(&mut self, unit: u64) {
        if !(self.write_fence.start..self.usable_end).contains(&unit) {
            return;
        }
        let has_space = self.has_space(unit);
        if has_space {
            self.free.ready.insert(unit);
        } else if unit < self.write_fence.end {
            self.free.hollow.insert(unit);
        } else {
            return;
        }
        self.free.discardable.insert(unit);
    }

    /// Whether a unit is known to have space.
    pub(crate) fn has_space(&self, unit: u64) -> bool {
        let place = self.place(unit);
        place.is_some_and(|(group, index)| self.groups[group].has_space.get(index).copied().unwrap_or(false))
    }

    fn set_space(&mut self, unit: u64, has_space: bool) {
        if let Some((group, index)) = self.reach(unit) {
            self.groups[group].has_space[index] = has_space;
        }
    }

    /// A unit, free or taken, has space.
    pub(crate) fn got_space(&mut self, unit: u64) {
        let was_unused = self.is_unused(unit);
        self.set_space(unit, true);
        if was_unused {
            self.unused_units -= 1;
            self.add_free(unit);
        } else if self.free.hollow.remove(&unit) {
            self.free.ready.insert(unit);
        }
    }

    /// The file system has no space for a free unit, of which it holds nothing now.
    pub(crate) fn got_no_space(&mut self, unit: u64) {
        self.free.discardable.remove(&unit);
        if self.is_unused(unit) {
            self.free.refused_end = unit + 1;
        }
    }

    /// The next free unit that is to get space. Where the file system is full, one that may have it from before, if there is any.
    pub(crate) fn next_without_space(&self, is_full: bool) -> Option<u64> {
        if !is_full {
            return self.free.hollow.first().copied().or_else(|| self.unused().next());
        }
        let discardable = self.free.discardable.iter().find(|unit| self.free.hollow.contains(unit)).copied();
        // Those that got space ahead of their grant are the first ones, but for a few that were refused.
        discardable.or_else(|| self.unused().take(REFUSED_UNITS_MAX).find(|unit| *unit >= self.free.refused_end))
    }

    /// Notes whether the file system had space when it was asked last.
    pub(crate) fn know_if_full(&mut self, is_full: bool) {
        self.free.file_system_is_full = is_full;
    }

    /// Whether the file system had no space when it was asked last.
    pub(crate) fn file_system_is_full(&self) -> bool {
        self.free.file_system_is_full
    }

    /// Whether a unit was refused since this was last asked because none of those that are free has space.
    pub(crate) fn take_lacks_space(&mut self) -> bool {
        std::mem::take(&mut self.free.lacks_space)
    }

    /// So many free units of which the device may hold something, in runs, if there are as many beside `kept` ones with space. They are
    /// not free before [`Self::end_discard`].
    pub(crate) fn begin_discard(&mut self, units: usize, kept: usize) -> Vec<Range<u64>> {
        let mut beside = (self.free_units() as usize).saturating_sub(kept);
        // From the end: units are taken from the front.
        let mut found = Vec::new();
        for unit in self.free.discardable.range(self.write_fence.clone()).rev() {
            let is_ready = self.free.ready.contains(unit);
            if found.len() == units {
                break;
            }
            if !is_ready || beside > 0 {
                beside -= usize::from(is_ready);
                found.push(*unit);
            }
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        if found.len() < units {
            return runs;
        }
        for unit in found {
            self.free.remove(unit);
            match runs.last_mut() {
                Some(last) if last.start == unit + 1 => last.start = unit,
                _ => runs.push(unit..unit + 1),
            }
        }
        runs
    }

    /// Has units be free whose contents are gone, and with them their space.
    pub(crate) fn end_discard(&mut self, runs: Vec<Range<u64>>) {
        for unit in runs.into_iter().flatten() {
            self.set_space(unit, false);
            self.free.hollow.insert(unit);
        }
    }
}
