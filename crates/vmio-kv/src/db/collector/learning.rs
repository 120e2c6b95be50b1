//! Where the garbage is: what is in doubt until levels meet, and what may not be collected before memory is spilled.

use std::sync::Arc;

use crate::db::OpenSegment;
use crate::error::Result;
use crate::format::geometry::{UNIT_BYTES, unit_of};
use crate::region::Region;

/// What is not worth a spill.
const LEAST_BYTES: u64 = 2 * UNIT_BYTES;

/// What an entry takes in a leaf.
const ENTRY_BYTES: u64 = 24;

/// How long records are taken to be where nothing was put since the store was opened.
const UNKNOWN_RECORD_BYTES: u64 = 256;

/// How much is done to find garbage, beside looking where it is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learning {
    Nothing,
    /// What is in memory is spilled: the log is read back from there on, and chunks before may be collected.
    Memory,
    /// All levels are merged.
    Levels,
    /// Whatever tells the most, in the background.
    Most,
}

impl OpenSegment {
    /// Bytes of the log that count as live and may be garbage: a key may be in each of its region's levels. Those of the largest
    /// level are keys of their own, unless they were deleted since; and nothing is in doubt where there is one level.
    pub(super) fn bytes_in_doubt(&self, live_bytes: u64) -> u64 {
        let (mut all, mut in_largest, mut live) = (0.0, 0.0, 0.0);
        for region in self.regions() {
            let entries = region.entries_by_level();
            let largest = entries.iter().max().copied().unwrap_or(0);
            // Of one that nobody has put to since it was opened nothing else is known than that its levels are as they were.
            let record_bytes = region.average_record_bytes().unwrap_or(UNKNOWN_RECORD_BYTES) as f64;
            all += entries.iter().sum::<u64>() as f64 * record_bytes;
            in_largest += largest as f64 * record_bytes;
            live += largest.saturating_sub(region.deletions()) as f64 * record_bytes;
        }
        let in_doubt = live_bytes as f64 * (all - in_largest) / f64::max(all, 1.0);
        in_doubt.min((live_bytes as f64 - live).max(0.0)) as u64
    }

    /// The same of the log as it is now.
    pub(super) fn bytes_in_doubt_now(&self) -> u64 {
        let space = self.segment.allocator().log_chunks.space();
        self.bytes_in_doubt(space.bytes - space.garbage_bytes)
    }

    /// Whether large values may be garbage of which levels that meet would tell.
    pub(super) fn has_large_in_doubt(&self) -> bool {
        let has_several =
            |region: &Arc<Region>| region.entries_by_level().iter().filter(|entries| **entries > 0).count() > 1;
        self.segment.allocator().blocks_of_extents() > 0 && self.regions().iter().any(has_several)
    }

    /// Whether levels that meet would tell of more garbage than they cost: what they write anew, beside what is in doubt.
    pub(super) fn is_cheap_to_learn(&self) -> bool {
        let in_doubt = self.bytes_in_doubt_now();
        let entries: u64 = self.regions().iter().map(|region| region.entries_by_level().iter().sum::<u64>()).sum();
        in_doubt >= LEAST_BYTES && entries * ENTRY_BYTES < in_doubt / 4
    }

    /// Garbage of chunks that an opening would read back: it can be collected once memory is spilled.
    fn bytes_held_back(&self) -> u64 {
        let open = self.log.open_chunks();
        let held_back = self.log.chunks_to_read_back();
        let allocator = self.segment.allocator();
        let of_chunk = |chunk: u64| allocator.log_chunks.garbage_of(unit_of(chunk));
        held_back.into_iter().filter(|chunk| !open.contains(chunk)).map(of_chunk).sum()
    }

    /// Has levels be spilled in the background that tell of garbage; tells whether some are.
    pub(super) fn learn(&self, learning: Learning) -> Result<bool> {
        if learning != Learning::Most {
            return Ok(false);
        }
        let regions = self.regions();
        if regions.iter().any(|region| region.spills_memory()) {
            return Ok(true);
        }
        let in_doubt = self.bytes_in_doubt_now();
        let held_back = self.bytes_held_back();
        if in_doubt.max(held_back) < LEAST_BYTES {
            return Ok(false);
        }
        if held_back >= in_doubt {
            let mut has_any = false;
            let may_freeze = |region: &&Arc<Region>| !region.has_failed() && !region.has_frozen() && region.freeze();
            for region in regions.iter().filter(may_freeze) {
                self.store.spills.put(region);
                has_any = true;
            }
            return Ok(has_any);
        }
        if regions.iter().any(|region| region.is_merged()) {
            return Ok(true);
        }
        let in_doubt_of = |region: &&Arc<Region>| {
            let entries = region.entries_by_level();
            entries.iter().sum::<u64>() - entries.iter().max().copied().unwrap_or(0)
        };
        let Some(region) = regions.iter().max_by_key(in_doubt_of) else { return Ok(false) };
        if !region.ask_for_merge() {
            return Ok(false);
        }
        self.store.spills.put(region);
        Ok(true)
    }

    /// The same at once, of all that was there when it began.
    pub(super) fn learn_all(&self, learning: Learning) -> Result<()> {
        if learning == Learning::Nothing {
            return Ok(());
        }
        for region in self.regions().iter().filter(|region| !region.has_failed()) {
            // What a spill that failed has left is lost to no reader, and stays.
            let target = region.memories_so_far();
            loop {
                let spilled = region.spilled_memories();
                if spilled >= target || !region.freeze() {
                    break;
                }
                self.spill_all(region)?;
                if region.lacks_room() {
                    break;
                }
                region.wait_for_spill_after(spilled)?;
            }
            if learning == Learning::Levels {
                self.merge_all(region)?;
            }
        }
        Ok(())
    }
}
