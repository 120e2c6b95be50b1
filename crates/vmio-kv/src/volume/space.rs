//! Space on the device for what a segment writes: units get it before they are given out, so that a file system that is full is noticed before
//! anything is written, and what is reserved is there for certain.

use std::sync::{MutexGuard, PoisonError};

use crate::device::Device;
use crate::error::{Error, FullPlace, Result};
use crate::format::geometry::Group;
use crate::volume::Volume;
use crate::volume::allocator::Allocator;
use crate::volume::space_reservation::{SpacePriority, OWN_UNITS};
use crate::volume::segment::Segment;

/// Units that get space beyond what is needed at the moment. Nothing is given back before as many are free beside these.
pub(super) const AHEAD_UNITS: u64 = 4;

/// Gives the groups' own units space: nothing is written to them then that finds none.
pub(super) fn give_own_units_space(device: &Device, groups: &[Group]) -> Result<()> {
    groups.iter().try_for_each(|group| device.allocate(group.own_unit))
}

/// Gives so many free units space, for chunks, in a segment that nobody else has yet.
pub(super) fn give_chunks_space(device: &Device, allocator: &mut Allocator, chunks: u64) -> Result<()> {
    while allocator.free_units() < OWN_UNITS + chunks {
        let Some(unit) = allocator.next_without_space(false) else { return Ok(()) };
        device.allocate(unit)?;
        allocator.got_space(unit);
    }
    Ok(())
}

impl Volume {
    /// Has what lies in fixed places have space, as far as there is any: a volume may have been made when it got none.
    pub(crate) fn ensure_fixed_space(&self) {
        let of_segments =
            || self.segments().iter().try_for_each(|entry| give_own_units_space(&self.device, &entry.groups));
        if let Err(error) = self.device.allocate(0).and_then(|()| of_segments()) {
            tracing::warn!(%error, "the volume's own blocks may have no space on the device");
        }
    }
}

impl Segment {
    /// Nobody else gives units space, or takes it from them, meanwhile.
    pub(super) fn allocating(&self) -> MutexGuard<'_, ()> {
        self.allocating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has so many free units have space, and some more. Tells whether there are so many; if not, the volume has no more, or its file system
    /// no space for them.
    pub(crate) fn make_ready(&self, wanted: u64) -> Result<bool> {
        let _alone = self.allocating();
        let mut is_full = false;
        loop {
            let unit = {
                let mut allocator = self.allocator();
                let ready = allocator.free_units();
                // What is ahead is not worth trying each unit.
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
                    // A part of it may have got some, which others of them can use.
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

    /// Has what is reserved have space, as far as there is any.
    pub(crate) fn allocate_free_reserve(&self) {
        let wanted = self.free_reserve.least_free(SpacePriority::Put, self.allocator().units_in_all());
        if self.allocator().free_units() < wanted
            && let Err(error) = self.make_ready(wanted)
        {
            tracing::warn!(%error, "what is reserved may have no space on the device");
        }
    }

    /// Has a unit that is taken have space: one of a store that was made when units were given out without.
    pub(crate) fn ensure_space(&self, unit: u64) -> Result<()> {
        if self.allocator().has_space(unit) {
            return Ok(());
        }
        let _alone = self.allocating();
        self.device.allocate(unit)?;
        self.allocator().got_space(unit);
        Ok(())
    }

    /// Whether it lacks not units but space for them, which a longer volume would not have either.
    pub(crate) fn file_system_is_full(&self) -> bool {
        self.allocator().file_system_is_full()
    }

    /// The error that it, or the file system, has no space for so many bytes.
    pub(crate) fn full(&self, wanted: u64) -> Error {
        let volume = self.device.name().to_owned();
        let place = if self.file_system_is_full() { FullPlace::FileSystem } else { FullPlace::Volume };
        Error::Full { volume, wanted, place }
    }
}
