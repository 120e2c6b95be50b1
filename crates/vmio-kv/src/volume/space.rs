//! Space on the device: a unit gets its space before its first use. So a full file system shows before any write, and writes to reserved
//! units find space for certain.

use std::sync::{MutexGuard, PoisonError};

use crate::device::Device;
use crate::error::{Error, FullPlace, Result};
use crate::format::geometry::Group;
use crate::volume::allocator::Allocator;
use crate::volume::free_reserve::{OWN_UNITS, SpacePriority};
use crate::volume::segment::Segment;

/// How many more units get space than are needed at the moment. No fewer than this stay allocated besides the reserve.
const AHEAD_UNITS: u64 = 4;

/// How many free units are worth a discard, and which share of a short volume.
const DISCARD_UNITS: usize = 8;
const DISCARD_SHARE: usize = 16;

/// Gives the groups' own units space, so that writes to them never lack it.
pub(super) fn give_own_units_space(device: &Device, groups: &[Group]) -> Result<()> {
    groups.iter().try_for_each(|group| device.allocate(group.own_unit))
}

/// Gives free units space for chunks, in a segment that is being created.
pub(super) fn give_chunks_space(device: &Device, allocator: &mut Allocator, chunks: u64) -> Result<()> {
    while allocator.free_units() < OWN_UNITS + chunks {
        let Some(unit) = allocator.next_without_space(false) else { return Ok(()) };
        device.allocate(unit)?;
        allocator.got_space(unit);
    }
    Ok(())
}

impl Segment {
    /// Locks the space of units: none gets it or loses it meanwhile.
    pub(super) fn allocating(&self) -> MutexGuard<'_, ()> {
        self.allocating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free units space until `wanted` of them have it, and some more. Returns whether there are `wanted`. If not, the volume has
    /// no more units, or its file system has no space for them.
    pub(crate) fn make_ready(&self, wanted: u64) -> Result<bool> {
        let _alone = self.allocating();
        let mut is_full = false;
        loop {
            let unit = {
                let mut allocator = self.allocator();
                let ready = allocator.free_units();
                // On a full file system the extra units are not worth a try each.
                let aim = if is_full { wanted } else { wanted + AHEAD_UNITS };
                match allocator.next_without_space(is_full).filter(|_| ready < aim) {
                    Some(unit) => unit,
                    None => {
                        allocator.know_if_full(is_full);
                        return Ok(ready >= wanted);
                    }
                }
            };
            match self.device.allocate(unit) {
                Ok(()) => self.allocator().got_space(unit),
                Err(Error::Full { .. }) => {
                    // A part of the unit may have got space, which others can use.
                    if let Err(error) = self.device.discard(unit..unit + 1) {
                        tracing::debug!(%error, unit, "a part of a unit keeps its space");
                    }
                    self.allocator().got_no_space(unit);
                    is_full = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the reserve its space, as far as there is any.
    pub(crate) fn allocate_free_reserve(&self) {
        let wanted = self.free_reserve.least_free(SpacePriority::Put, self.allocator().units_in_all());
        if self.allocator().free_units() < wanted
            && let Err(error) = self.make_ready(wanted)
        {
            tracing::warn!(%error, "the reserve may have no space on the device");
        }
    }

    /// Gives a taken unit its space: older stores took units without.
    pub(crate) fn ensure_space(&self, unit: u64) -> Result<()> {
        if self.allocator().has_space(unit) {
            return Ok(());
        }
        let _alone = self.allocating();
        self.device.allocate(unit)?;
        self.allocator().got_space(unit);
        Ok(())
    }

    /// Discards free units, down to `least` of them together. A durable commit does not refer to them, and they have no readers.
    pub(crate) fn discard_free(&self, least: usize) -> Result<()> {
        let mut units = DISCARD_UNITS.max(least);
        loop {
            // The reserve and the next units keep their space. Few at a time: units cannot be taken while they are being
            // discarded.
            let _alone = self.allocating();
            let mut allocator = self.allocator();
            let kept = self.free_reserve.least_free(SpacePriority::Put, allocator.units_in_all()) + AHEAD_UNITS;
            let runs = allocator.begin_discard(units, kept as usize);
            drop(allocator);
            if runs.is_empty() {
                if units == least {
                    return Ok(());
                }
                units = (units / 2).max(least);
                continue;
            }
            let done = runs.iter().try_for_each(|run| self.device.discard(run.clone()));
            self.allocator().end_discard(runs);
            done?;
        }
    }

    /// How many free units are worth a discard while others write: fewer in a short volume.
    pub(crate) fn worth_a_discard(&self) -> usize {
        (self.allocator().units_in_all() as usize / DISCARD_SHARE).clamp(1, DISCARD_UNITS)
    }

    /// Whether the file system has no space for more units, so that a longer volume would not help.
    pub(crate) fn file_system_is_full(&self) -> bool {
        self.allocator().file_system_is_full()
    }

    /// The error of a full volume or file system.
    pub(crate) fn full(&self, wanted: u64) -> Error {
        let volume = self.device.name().to_owned();
        let place = if self.file_system_is_full() { FullPlace::FileSystem } else { FullPlace::Volume };
        Error::Full { volume, wanted, place }
    }
}
