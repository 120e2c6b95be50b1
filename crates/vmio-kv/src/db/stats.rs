//! Sizes and counts of a store.

use std::ops::{Add, Deref};
use std::sync::atomic::Ordering;

use crate::db::open_segment::OpenSegment;
use crate::db::store::Store;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES};
use crate::keyspace::INLINE;

/// Sizes and counts of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentStats {
    /// Bytes of its allocation units, taken or free.
    pub segment_bytes: u64,
    /// Bytes of the allocation units that are taken.
    pub space_bytes: u64,
    /// Bytes of the log's chunks.
    pub log_bytes: u64,
    /// Bytes of the log that are known to be garbage: records that nothing points to, each up to an eighth too long, and the unused ends of
    /// chunks. Some overwritten records turn out to be garbage only when their levels are merged.
    pub garbage_bytes: u64,
    /// The rest of the log. Chunks that are written to, and the next one, count as live.
    pub live_bytes: u64,
    /// Bytes of the blocks of values over 256 KiB. Overwritten ones count until their levels are merged.
    pub extents_bytes: u64,
    /// Chunks of the log that the collector has freed since the store was opened.
    pub collected_chunks: u64,
    /// Bytes of records that the collector has moved.
    pub moved_bytes: u64,
    /// Bytes of records that were rewritten side by side, because scans had read them again and again.
    pub reorganized_bytes: u64,
    /// Bytes of the log's chunks that an opening would read back now.
    pub recovery_log_bytes: u64,
    /// Entries of the levels on the device, over all keyspaces. A key counts once for each level that has it.
    pub level_entries: u64,
    /// Those of them in leaves that hold small records themselves: see [`crate::Options::values_in_leaves`].
    pub bottom_entries: u64,
    /// Approximate bytes of the memtables.
    pub memtable_bytes: u64,
}

/// Sizes and counts of a store. It derefs to the sums over all segments.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// db.put(b"key", b"value")?;
/// let before = db.stats()?;
/// assert!(before.memtable_bytes > 0);
/// db.flush()?;
/// assert_eq!(db.stats()?.level_entries, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The volume's length.
    pub volume_bytes: u64,
    /// Bytes that cached pages of nodes and records may take now.
    pub cache_bytes: u64,
    /// The sums over all segments.
    pub segments: SegmentStats,
}

impl Deref for Stats {
    type Target = SegmentStats;

    fn deref(&self) -> &SegmentStats {
        &self.segments
    }
}

impl Add for SegmentStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        SegmentStats {
            segment_bytes: self.segment_bytes + other.segment_bytes,
            space_bytes: self.space_bytes + other.space_bytes,
            log_bytes: self.log_bytes + other.log_bytes,
            garbage_bytes: self.garbage_bytes + other.garbage_bytes,
            live_bytes: self.live_bytes + other.live_bytes,
            extents_bytes: self.extents_bytes + other.extents_bytes,
            collected_chunks: self.collected_chunks + other.collected_chunks,
            moved_bytes: self.moved_bytes + other.moved_bytes,
            reorganized_bytes: self.reorganized_bytes + other.reorganized_bytes,
            recovery_log_bytes: self.recovery_log_bytes + other.recovery_log_bytes,
            // A damaged catalogue may have any number.
            level_entries: self.level_entries.saturating_add(other.level_entries),
            bottom_entries: self.bottom_entries.saturating_add(other.bottom_entries),
            memtable_bytes: self.memtable_bytes + other.memtable_bytes,
        }
    }
}

impl Stats {
    /// The statistics of a store with these sums over its segments.
    pub(super) fn new(store: &Store, segments: SegmentStats) -> Self {
        let volume_bytes = store.volume().units() * ALLOCATION_UNIT_BYTES;
        Stats { volume_bytes, cache_bytes: store.device.cache_bytes(), segments }
    }
}

impl OpenSegment {
    pub(super) fn stats(&self) -> SegmentStats {
        let allocator = self.segment.allocator();
        let units = allocator.taken_units();
        let segment_bytes = allocator.units_in_all() * ALLOCATION_UNIT_BYTES;
        let extents_bytes = allocator.blocks_of_extents() * BLOCK_BYTES as u64;
        drop(allocator);
        let log = self.segment.allocator().log_chunks.space();
        let versions: Vec<_> = self.keyspaces().iter().map(|keyspace| keyspace.version()).collect();
        let memtables =
            versions.iter().flat_map(|version| std::iter::once(&version.memtable).chain(&version.immutable));
        SegmentStats {
            segment_bytes,
            space_bytes: units * ALLOCATION_UNIT_BYTES,
            log_bytes: log.bytes,
            garbage_bytes: log.garbage_bytes,
            live_bytes: log.bytes - log.garbage_bytes,
            extents_bytes,
            collected_chunks: self.collector.chunks.load(Ordering::Relaxed),
            moved_bytes: self.collector.moved_bytes.load(Ordering::Relaxed),
            reorganized_bytes: self.reorganized_bytes.load(Ordering::Relaxed),
            recovery_log_bytes: self.recovery_log_bytes(),
            level_entries: versions
                .iter()
                .flat_map(|version| version.roots())
                .fold(0, |sum: u64, root| sum.saturating_add(root.entries)),
            bottom_entries: versions
                .iter()
                .flat_map(|version| version.levels[INLINE..].iter().flat_map(|level| [level.active, level.compacting]))
                .flatten()
                .fold(0, |sum: u64, root| sum.saturating_add(root.entries)),
            memtable_bytes: memtables.map(|memtable| memtable.bytes()).sum(),
        }
    }
}
