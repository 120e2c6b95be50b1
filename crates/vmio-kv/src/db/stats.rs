//! What a store says of itself.

use std::ops::{Add, Deref};
use std::sync::atomic::Ordering;

use crate::db::{OpenSegment, Store};
use crate::format::geometry::{BLOCK_BYTES, ALLOCATION_UNIT_BYTES};

/// How much there is of what, in one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentStats {
    /// Bytes of its units, taken or free.
    pub segment_bytes: u64,
    /// Bytes of units that are taken.
    pub space_bytes: u64,
    /// Bytes of the log's chunks.
    pub log_bytes: u64,
    /// Bytes of it that are known to be garbage: records that nothing points to any longer, each an eighth too long at most, and
    /// what chunks lack that ended early. Of what was overwritten a part is known only when the levels that have it meet.
    pub garbage_bytes: u64,
    /// The rest of it; chunks that are written to, and the one that comes next, count as live.
    pub live_bytes: u64,
    /// Bytes of the blocks that values over 256 KiB have taken, also those that were overwritten where levels have not met yet.
    pub extents_bytes: u64,
    /// Chunks of the log whose garbage was collected since the store was opened.
    pub collected_chunks: u64,
    /// Bytes of records that were moved for that.
    pub moved_bytes: u64,
    /// Bytes of records that were written anew side by side, since scans went through them again and again.
    pub reorganized_bytes: u64,
    /// Bytes of the log's chunks that an opening would read back now.
    pub recovery_log_bytes: u64,
    /// Entries of the levels on the device, over all keyspaces; a key counts once for each level that has it.
    pub level_entries: u64,
    /// Bytes of the memtables, about.
    pub memtable_bytes: u64,
}

/// How much there is of what: of the volume, and over all segments, whose sums can be read as if they were fields of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// How long the volume is.
    pub volume_bytes: u64,
    /// Bytes that cached pages of nodes and records may take at present.
    pub cache_bytes: u64,
    /// Of all segments together.
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
            // What a damaged catalogue says may be anything.
            level_entries: self.level_entries.saturating_add(other.level_entries),
            memtable_bytes: self.memtable_bytes + other.memtable_bytes,
        }
    }
}

impl Stats {
    /// Of a store whose segments have so much together.
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
        let memory = versions.iter().flat_map(|version| std::iter::once(&version.memtable).chain(&version.immutable));
        SegmentStats {
            segment_bytes,
            space_bytes: units * ALLOCATION_UNIT_BYTES,
            log_bytes: log.bytes,
            garbage_bytes: log.garbage_bytes,
            live_bytes: log.bytes - log.garbage_bytes,
            extents_bytes,
            collected_chunks: self.collector.chunks.load(Ordering::Relaxed),
            moved_bytes: self.collector.moved_bytes.load(Ordering::Relaxed),
            reorganized_bytes: self.reorganized.bytes.load(Ordering::Relaxed),
            recovery_log_bytes: self.recovery_log_bytes(),
            level_entries: versions
                .iter()
                .flat_map(|version| version.roots())
                .fold(0, |sum: u64, root| sum.saturating_add(root.entries)),
            memtable_bytes: memory.map(|level| level.bytes()).sum(),
        }
    }
}
