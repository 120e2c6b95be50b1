//! Growth: of the volume, by request, and of its segments, where they run out of space.

use std::sync::atomic::Ordering;

use crate::db::Db;
use crate::db::open_segment::OpenSegment;
use crate::db::store::Store;
use crate::error::Result;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES};
use crate::keyspace::compaction_blocks_of_new;
use crate::volume::Volume;
use crate::volume::free_reserve::SpacePriority;

/// A segment grows by a quarter of the volume, but by no fewer units than this.
const STEP_UNITS_MIN: u64 = 32;

impl Db {
    /// Makes the volume longer, to `bytes` rounded down to 2 MiB, while it is in use. A file becomes longer; a block device must have that
    /// length already.
    ///
    /// The growth is durable when this returns. A crash before that leaves the store as it was, or longer. Each segment takes of the new
    /// space as it needs it.
    ///
    /// # Errors
    ///
    /// [`crate::Error::VolumeLength`] beyond [`crate::Options::max_volume_bytes`], or if the volume is that long already.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// use vmio_kv::{Db, Options};
    ///
    /// let options = Options::new().volume_bytes(64 << 20).max_volume_bytes(1 << 30);
    /// let db = Db::create(folder.path().join("store"), options)?;
    /// db.grow(128 << 20)?;
    /// assert_eq!(db.stats()?.volume_bytes, 128 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let store = self.opened()?.segments.store();
        store.check_writable()?;
        store.volume().grow(&self.default.open()?.home.segment, bytes / ALLOCATION_UNIT_BYTES)
    }
}

impl OpenSegment {
    /// How many units a new segment gets: enough for one keyspace.
    pub(super) fn units_of_new(store: &Store) -> u64 {
        let blocks = compaction_blocks_of_new(store.limits());
        STEP_UNITS_MIN + blocks.div_ceil(ALLOCATION_UNIT_BLOCKS) + 2 * store.merge_threads.most() as u64
    }

    /// Gives free space back to the file system or the device, if that is wanted and works.
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

    /// Makes the segment longer by a step, or by the chunks that are wanted, unless there is space by now. Returns whether there may be
    /// space.
    pub(super) fn grow_for(&self, priority: SpacePriority, chunks: u64) -> bool {
        let mut volume = self.store.volume();
        let lacks_space = self.keyspaces().iter().any(|keyspace| keyspace.lacks_space());
        if !lacks_space && self.segment.check_space(priority, chunks).is_ok() {
            return true;
        }
        // A compaction that found no space is retried by the thread that makes space.
        !lacks_space && self.lengthen(&mut volume, chunks)
    }

    /// Makes the segment longer by a step, or by fewer units if the volume has no more. Returns whether it is longer now.
    pub(super) fn grow(&self) -> bool {
        self.lengthen(&mut self.store.volume(), 0)
    }

    fn lengthen(&self, volume: &mut Volume, wanted_units: u64) -> bool {
        // New units would get no space either.
        if self.segment.file_system_is_full() {
            return false;
        }
        let step = (volume.units() / 4).max(STEP_UNITS_MIN).max(wanted_units);
        let before = volume.units();
        let given = volume.give(&self.segment, step);
        let (name, number, bytes) =
            (self.store.device.name(), self.segment.number, volume.units() * ALLOCATION_UNIT_BYTES);
        match &given {
            Ok(true) if volume.units() > before => tracing::info!(volume = name, number, bytes, "it has grown"),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "it is full, and could not be made longer"),
        }
        given.unwrap_or(false)
    }
}
