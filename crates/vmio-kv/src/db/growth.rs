//! Making a volume longer, and its segments, when they have no space, or when somebody says so.

use std::sync::atomic::Ordering;

use crate::db::{Db, OpenSegment, Store};
use crate::error::Result;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES};
use crate::keyspace::compaction_blocks_of_new;
use crate::volume::Volume;
use crate::volume::space_reservation::SpacePriority;

/// A segment grows by itself by a quarter of the volume, and by no less than this.
const STEP_UNITS_MIN: u64 = 32;

impl Db {
    /// Makes the volume so many bytes long, rounded down to 2 MiB, while it is in use: a file becomes longer, a block device has to be
    /// already. It is durable when this returns; whatever happens before, the store stays as it was or is longer. Of several segments
    /// each takes of what is new as it needs it.
    ///
    /// Refused with [`crate::Error::VolumeLength`] beyond [`crate::Options::max_volume_bytes`], or if it is that long already.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let store = self.opened()?.segments.store();
        store.check_writable()?;
        store.volume().grow(&self.default.open()?.home.segment, bytes / ALLOCATION_UNIT_BYTES)
    }
}

impl OpenSegment {
    /// How many units a segment gets when it is created: so many that a keyspace finds space in it.
    pub(super) fn units_of_new(store: &Store) -> u64 {
        let blocks = compaction_blocks_of_new(store.limits());
        STEP_UNITS_MIN + blocks.div_ceil(ALLOCATION_UNIT_BLOCKS) + 2 * store.merge_threads.most() as u64
    }

    /// Has the file system take back what came free, if that is wanted and it can.
    pub(super) fn discard_free(&self, least: usize) {
        if !self.store.discards.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.segment.discard_free(least) {
            // The space is free all the same.
            tracing::warn!(%error, "what comes free stays with the file");
            self.store.discards.store(false, Ordering::Relaxed);
        }
    }

    /// Makes the segment longer by a step, or by as much as is claimed, unless somebody else has made space meanwhile. Tells whether there may
    /// be space now.
    pub(super) fn grow_for(&self, priority: SpacePriority, chunks: u64) -> bool {
        let mut volume = self.store.volume();
        let lacks_space = self.keyspaces().iter().any(|keyspace| keyspace.lacks_space());
        if !lacks_space && self.segment.check_space(priority, chunks).is_ok() {
            return true;
        }
        // A compaction that found no space is tried again by whoever makes space.
        !lacks_space && self.lengthen(&mut volume, chunks)
    }

    /// Makes the segment longer by a step. Tells whether it is longer now, if perhaps by less.
    pub(super) fn grow(&self) -> bool {
        self.lengthen(&mut self.store.volume(), 0)
    }

    fn lengthen(&self, volume: &mut Volume, wanted_units: u64) -> bool {
        // What is new would have no space either.
        if self.segment.file_system_is_full() {
            return false;
        }
        let step = (volume.units() / 4).max(STEP_UNITS_MIN).max(wanted_units);
        let before = volume.units();
        let given = volume.give(&self.segment, step);
        let (name, number, bytes) = (self.store.device.name(), self.segment.number, volume.units() * ALLOCATION_UNIT_BYTES);
        match &given {
            Ok(true) if volume.units() > before => tracing::info!(volume = name, number, bytes, "it has grown"),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "it is full, and could not be made longer"),
        }
        given.unwrap_or(false)
    }
}
