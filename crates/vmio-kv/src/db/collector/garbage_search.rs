//! Finds out where the garbage is: merges tell which records are garbage, and flushes release chunks that recovery would still read.

use std::sync::Arc;

use crate::db::open_segment::OpenSegment;
use crate::error::Result;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of};
use crate::keyspace::Keyspace;
use crate::keyspace::contents::Contents;

/// Less than this is not worth a compaction.
const LEAST_BYTES: u64 = 2 * ALLOCATION_UNIT_BYTES;

/// Bytes of an entry in a leaf.
const ENTRY_BYTES: u64 = 24;

/// How much a thread does at once to find more garbage than is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    None,
    /// Flush the memtables. An opening then reads the log back from there on, and the collection may take earlier chunks.
    FlushMemtables,
    /// Flush the memtables and merge all levels.
    MergeLevels,
}

impl OpenSegment {
    /// Bytes of the log that count as live and may be garbage, over all keyspaces.
    pub(super) fn bytes_in_doubt(&self, live_bytes: u64) -> u64 {
        self.in_doubt_by_keyspace(live_bytes).iter().map(|(_, bytes)| bytes).sum::<u64>().min(live_bytes)
    }

    /// The same for each keyspace. A key may be in each of the keyspace's levels. The keys of the largest level differ from each other and
    /// count as live unless they were deleted since. Where there is only one level, nothing is in doubt.
    fn in_doubt_by_keyspace(&self, live_bytes: u64) -> Vec<(Arc<Keyspace>, u64)> {
        let levels: Vec<(Arc<Keyspace>, Vec<Contents>)> =
            self.keyspaces().into_iter().map(|keyspace| (Arc::clone(&keyspace), keyspace.contents())).collect();
        let all = || levels.iter().flat_map(|(_, levels)| levels);
        let known: u64 = all().flat_map(|level| level.records).map(|records| records.bytes).sum();
        let unknown: u64 = all().filter(|level| level.records.is_none()).map(|level| level.entries).sum();
        // For levels that existed when the store was opened only the total of live bytes is known, not each level's part.
        let average = live_bytes.saturating_sub(known) as f64 / unknown.max(1) as f64;
        let bytes_of = |level: &Contents| match level.records {
            Some(records) => records.bytes as f64,
            None => level.entries as f64 * average,
        };
        let in_doubt_of = |levels: &[Contents]| {
            let all: f64 = levels.iter().map(bytes_of).sum();
            let Some(largest) = levels.iter().max_by(|one, other| bytes_of(one).total_cmp(&bytes_of(other))) else {
                return 0;
            };
            let deletions: u64 = levels.iter().flat_map(|level| level.records).map(|records| records.deletions).sum();
            let deleted = deletions.min(largest.entries) as f64 / largest.entries.max(1) as f64;
            let in_largest = bytes_of(largest);
            (all - in_largest + deleted * in_largest) as u64
        };
        levels.into_iter().map(|(keyspace, levels)| (keyspace, in_doubt_of(&levels))).collect()
    }

    /// The same of the log as it is now.
    pub(super) fn bytes_in_doubt_now(&self) -> u64 {
        let space = self.segment.allocator().log_chunks.space();
        self.bytes_in_doubt(space.bytes - space.garbage_bytes)
    }

    /// Whether large values may be garbage that a merge of levels would reveal.
    pub(super) fn has_large_in_doubt(&self) -> bool {
        let has_several =
            |keyspace: &Arc<Keyspace>| keyspace.contents().iter().filter(|level| level.entries > 0).count() > 1;
        self.segment.allocator().blocks_of_extents() > 0 && self.keyspaces().iter().any(has_several)
    }

    /// Whether a merge of the levels would reveal more garbage than the merge costs: the entries that it writes again against the bytes in
    /// doubt.
    pub(super) fn is_cheap_to_uncover_garbage(&self) -> bool {
        let in_doubt = self.bytes_in_doubt_now();
        let entries: u64 =
            self.keyspaces().iter().flat_map(|keyspace| keyspace.contents()).map(|level| level.entries).sum();
        in_doubt >= LEAST_BYTES && entries * ENTRY_BYTES < in_doubt / 4
    }

    /// Garbage in chunks that recovery would still read. A flush of the memtables allows its collection.
    fn bytes_held_back(&self) -> u64 {
        let open = self.log.open_chunks();
        let held_back = self.log.chunks_to_read_back();
        let allocator = self.segment.allocator();
        let of_chunk = |chunk: u64| allocator.log_chunks.garbage_of(unit_of(chunk));
        held_back.into_iter().filter(|chunk| !open.contains(chunk)).map(of_chunk).sum()
    }

    /// Queues the flushes or compactions that reveal the most garbage; returns whether there are any, these or earlier ones.
    pub(super) fn begin_to_uncover_garbage(&self) -> bool {
        let keyspaces = self.keyspaces();
        if keyspaces.iter().any(|keyspace| keyspace.is_flushing()) {
            return true;
        }
        let in_doubt = self.bytes_in_doubt_now();
        let held_back = self.bytes_held_back();
        if in_doubt.max(held_back) < LEAST_BYTES {
            return false;
        }
        if held_back >= in_doubt {
            let mut has_any = false;
            for keyspace in keyspaces.iter().filter(|keyspace| !keyspace.has_failed() && !keyspace.has_immutable()) {
                if keyspace.rotate_memtable() {
                    self.store.compactions.put(keyspace);
                    has_any = true;
                }
            }
            return has_any;
        }
        if keyspaces.iter().any(|keyspace| keyspace.is_compacting_levels()) {
            return true;
        }
        let space = self.segment.allocator().log_chunks.space();
        let mut by_keyspace = self.in_doubt_by_keyspace(space.bytes - space.garbage_bytes);
        by_keyspace.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        for (keyspace, _) in by_keyspace.into_iter().take_while(|(_, bytes)| *bytes > 0) {
            if keyspace.ask_for_merge() {
                self.store.compactions.put(&keyspace);
                return true;
            }
        }
        false
    }

    /// Uncovers garbage at once, in everything that is there when it begins.
    pub(super) fn uncover_all_garbage(&self, effort: Effort) -> Result<()> {
        if effort == Effort::None {
            return Ok(());
        }
        for keyspace in self.keyspaces().iter().filter(|keyspace| !keyspace.has_failed()) {
            // The memtable of a failed compaction is lost to no reader, and stays.
            let target = keyspace.memtables_so_far();
            loop {
                let flushed = keyspace.flushed_memtables();
                if flushed >= target || !keyspace.rotate_memtable() {
                    break;
                }
                self.compact_all(keyspace)?;
                if keyspace.lacks_space() {
                    break;
                }
                keyspace.wait_for_flush_after(flushed)?;
            }
            if effort == Effort::MergeLevels {
                self.merge_all(keyspace)?;
            }
        }
        Ok(())
    }
}
