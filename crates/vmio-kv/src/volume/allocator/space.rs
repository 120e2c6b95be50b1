//! The space of free units on the device. A file is sparse, and a write to a hole fails on a full file system. So the allocator takes a
//! unit only once it has space. Writes to the reserve for compactions, commits and deletions then find space for certain.

use std::ops::Range;

use crate::volume::allocator::Allocator;

/// How many units beyond the write fence a full file system refuses space before no more are tried: a volume may have millions.
const REFUSED_UNITS_MAX: usize = 512;

#[cfg(test)]
impl Allocator {
    /// An allocator whose units all have space.
    pub(crate) fn with_space(groups: &[crate::format::geometry::Group]) -> Self {
        let mut allocator = Allocator::new(groups);
        allocator.set_write_fence(u64::MAX);
        allocator.give_all_space();
        allocator
    }

    /// Gives all units space.
    pub(crate) fn give_all_space(&mut self) {
        let units: Vec<u64> = self.groups.iter().flat_map(|map| map.group.first_unit..map.group.end()).collect();
        units.into_iter().for_each(|unit| self.got_space(unit));
    }
}

impl Allocator {
    /// How many units are free, not reserved, and have space.
    pub(crate) fn free_units(&self) -> u64 {
        self.free.ready.len() as u64 - self.reserved
    }

    /// How many units would be free if the file system had space for all; if it is full, those that have space.
    pub(crate) fn free_units_with_holes(&self) -> u64 {
        self.free_units() + if self.free.file_system_is_full { 0 } else { self.hollow_units() }
    }

    /// How many units are free and have no space.
    pub(super) fn hollow_units(&self) -> u64 {
        self.free.hollow.len() as u64 + self.unused_units
    }

    /// Lists a unit as free. One beyond the write fence and without space is not listed.
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

    /// Notes that a unit, free or taken, has space.
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

    /// Notes that a free unit was refused space, and holds nothing.
    pub(crate) fn got_no_space(&mut self, unit: u64) {
        self.free.discardable.remove(&unit);
        if self.is_unused(unit) {
            self.free.refused_end = unit + 1;
        }
    }

    /// The next free unit to give space to. On a full file system, one that may still have space, if there is any.
    pub(crate) fn next_without_space(&self, is_full: bool) -> Option<u64> {
        if !is_full {
            return self.free.hollow.first().copied().or_else(|| self.unused().next());
        }
        let discardable = self.free.discardable.iter().find(|unit| self.free.hollow.contains(unit)).copied();
        // Units that got space beyond the write fence are the first ones, but for a few that were refused.
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

    /// Whether a unit was refused, since the last call, because no free unit has space.
    pub(crate) fn take_lacks_space(&mut self) -> bool {
        std::mem::take(&mut self.free.lacks_space)
    }

    /// Takes `units` free units, as runs, whose contents are to be discarded, if there are as many besides `kept` ones with space. They
    /// are free again with [`Self::end_discard`].
    pub(crate) fn begin_discard(&mut self, units: usize, kept: usize) -> Vec<Range<u64>> {
        let mut spare = (self.free_units() as usize).saturating_sub(kept);
        // From the end: units are taken from the front.
        let mut found = Vec::new();
        for unit in self.free.discardable.range(self.write_fence.clone()).rev() {
            let is_ready = self.free.ready.contains(unit);
            if found.len() == units {
                break;
            }
            if !is_ready || spare > 0 {
                spare -= usize::from(is_ready);
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

    /// Makes units free that were discarded, and have lost their space.
    pub(crate) fn end_discard(&mut self, runs: Vec<Range<u64>>) {
        for unit in runs.into_iter().flatten() {
            self.set_space(unit, false);
            self.free.hollow.insert(unit);
        }
    }
}
