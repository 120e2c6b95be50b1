//! Room on the device for what a segment writes: units get it before they are given out, so that a file system that is full is noticed before
//! anything is written, and what is reserved is there for certain.

use std::sync::{MutexGuard, PoisonError};

use crate::device::Device;
use crate::error::{Error, FullPlace, Result};
use crate::format::geometry::Group;
use crate::volume::Volume;
use crate::volume::allocator::Allocator;
use crate::volume::reserve::{Claim, OWN_UNITS};
use crate::volume::segment::Segment;

/// Units that get room beyond what is needed at the moment. Nothing is given back before as many are free beside these.
pub(super) const AHEAD_UNITS: u64 = 4;

/// Gives the groups' own units room: nothing is written to them then that finds none.
pub(super) fn give_own_units_room(device: &Device, groups: &[Group]) -> Result<()> {
    groups.iter().try_for_each(|group| device.allocate(group.own_unit))
}

/// Gives so many free units room, for chunks, in a segment that nobody else has yet.
pub(super) fn give_chunks_room(device: &Device, allocator: &mut Allocator, chunks: u64) -> Result<()> {
    while allocator.free_units() < OWN_UNITS + chunks {
        let Some(unit) = allocator.next_without_room(false) else { return Ok(()) };
        device.allocate(unit)?;
        allocator.got_room(unit);
    }
    Ok(())
}

impl Volume {
    /// Has what lies in fixed places have room, as far as there is any: a volume may have been made when it got none.
    pub(crate) fn ensure_fixed_room(&self) {
        let of_segments =
            || self.segments().iter().try_for_each(|entry| give_own_units_room(&self.device, &entry.groups));
        if let Err(error) = self.device.allocate(0).and_then(|()| of_segments()) {
            tracing::warn!(%error, "the volume's own blocks may have no room on the device");
        }
    }
}

impl Segment {
    /// Nobody else gives units room, or takes it from them, meanwhile.
    pub(super) fn room(&self) -> MutexGuard<'_, ()> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has so many free units have room, and some more. Tells whether there are so many; if not, the volume has no more, or its file system
    /// no room for them.
    pub(crate) fn make_ready(&self, wanted: u64) -> Result<bool> {
        let _alone = self.room();
        let mut is_full = false;
        loop {
            let unit = {
                let mut allocator = self.allocator();
                let ready = allocator.free_units();
                // What is ahead is not worth trying each unit.
                let aim = if is_full { wanted } else { wanted + AHEAD_UNITS };
                match allocator.next_without_room(is_full).filter(|_| ready < aim) {
                    Some(unit) => unit,
                    None => {
                        allocator.know_if_full(is_full);
                        return Ok(ready >= wanted);
                    }
                }
            };
            match self.device.allocate(unit) {
                Ok(()) => self.allocator().got_room(unit),
                Err(Error::Full { .. }) => {
                    // A part of it may have got some, which others of them can use.
                    if let Err(error) = self.device.discard(unit..unit + 1) {
                        tracing::debug!(%error, unit, "a part of a unit keeps its room");
                    }
                    self.allocator().got_no_room(unit);
                    is_full = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Has what is reserved have room, as far as there is any.
    pub(crate) fn make_reserve_ready(&self) {
        let wanted = self.reserve.least_free(Claim::Put, self.allocator().units_in_all());
        if self.allocator().free_units() < wanted
            && let Err(error) = self.make_ready(wanted)
        {
            tracing::warn!(%error, "what is reserved may have no room on the device");
        }
    }

    /// Has a unit that is taken have room: one of a store that was made when units were given out without.
    pub(crate) fn ensure_room(&self, unit: u64) -> Result<()> {
        if self.allocator().has_room(unit) {
            return Ok(());
        }
        let _alone = self.room();
        self.device.allocate(unit)?;
        self.allocator().got_room(unit);
        Ok(())
    }

    /// Whether it lacks not units but room for them, which a longer volume would not have either.
    pub(crate) fn file_system_is_full(&self) -> bool {
        self.allocator().file_system_is_full()
    }

    /// The error that it, or the file system, has no room for so many bytes.
    pub(crate) fn full(&self, wanted: u64) -> Error {
        let volume = self.device.name().to_owned();
        let place = if self.file_system_is_full() { FullPlace::FileSystem } else { FullPlace::Volume };
        Error::Full { volume, wanted, place }
    }
}
