//! The bottom level, whose leaves hold small records themselves: a scan finds neighbours side by side, and a look-up needs one block.
//!
//! The level above is merged into it in steps of bounded memory and space. Each step takes the first leaves of that level, reads their
//! records in the order of their places in the log, and merges them with their values. The rest of that level stays a tree.

use crate::format::catalogue::{LEVELS, LevelRoots, Root};
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, BLOCK_BYTES};
use crate::format::leaf::INLINE_BYTES_MAX;
use crate::format::pointer::{Pointer, PointerKind};
use crate::keyspace::bottom_step::{ENTRY_BYTES, Step};
use crate::keyspace::{Keyspace, ScanSpace, Version};
use crate::volume::free_reserve::SpacePriority;

/// The bottom level: nothing is below it, and it is merged into no other.
pub(crate) const BOTTOM: usize = LEVELS - 1;

/// The most bytes of a record in the log whose value a leaf takes. Of longer ones a leaf has space for few, and wastes more.
const RECORD_BYTES_MAX: u32 = 640;
const _: () = assert!(RECORD_BYTES_MAX as usize <= INLINE_BYTES_MAX);
/// In a calm a level goes down once it has one entry for this many of the bottom level, whose leaves are all written again.
const CALM_SHARE: u64 = 3;
/// The most steps of a merge. Each one reads records all over the log.
const STEPS_MAX: u64 = 32;
/// The most blocks of a step that has no more space: the reserve covers them.
const STEP_BLOCKS_MIN: u64 = 1024;

/// Whether a leaf of the bottom level holds a record.
pub(super) fn is_short(record: Pointer) -> bool {
    record.kind() == PointerKind::Value && record.record_bytes() <= RECORD_BYTES_MAX
}

impl Keyspace {
    /// Whether a level may be merged into the bottom level: nothing is in between.
    pub(super) fn is_above_bottom(&self, version: &Version, level: usize) -> bool {
        let is_empty = |roots: &LevelRoots| roots.active.is_none() && roots.compacting.is_none();
        (1..BOTTOM).contains(&level) && version.levels[level + 1..BOTTOM].iter().all(is_empty)
    }

    /// Whether a level has enough small records for a merge into the bottom level. One in `share` of the entries there is enough.
    fn is_worth_the_bottom(&self, version: &Version, level: usize, share: u64) -> bool {
        let Some(root) = version.levels[level].active else { return false };
        let below = version.levels[BOTTOM].active.map_or(0, |root| root.entries);
        let record_bytes = self.record_bytes(root);
        let bytes = root.entries.saturating_mul(record_bytes + ENTRY_BYTES);
        self.limits.bottom_entries_min.is_some_and(|least| root.entries >= least)
            && root.entries.saturating_mul(share) >= below
            && record_bytes <= u64::from(RECORD_BYTES_MAX)
            && bytes / STEPS_MAX <= self.memtable_budget.compaction_bytes_max()
    }

    /// Whether a full level is merged into the bottom level, and not into the next one.
    pub(super) fn goes_to_the_bottom(&self, version: &Version, level: usize) -> bool {
        self.is_above_bottom(version, level) && self.is_worth_the_bottom(version, level, 1)
    }

    /// The same while there is little else to do, whether the level is full or not.
    pub(super) fn goes_to_the_bottom_in_calm(&self, version: &Version, level: usize) -> bool {
        self.is_above_bottom(version, level) && self.is_worth_the_bottom(version, level, CALM_SHARE)
    }

    /// Whether something is worth a place in the bottom level while there is little else to do.
    pub(crate) fn has_work_for_a_calm(&self) -> bool {
        let version = self.version.load();
        let is_worth = |level| self.goes_to_the_bottom_in_calm(&version, level);
        !self.has_failed() && ((1..BOTTOM).any(is_worth) || self.is_between_steps())
    }

    /// The next step of a level's merge into the bottom level.
    pub(super) fn step(&self, version: &Version, level: usize) -> Step {
        let segment = &self.log.segment;
        let blocks_max = {
            let allocator = segment.allocator();
            let kept = segment.free_reserve.least_free(SpacePriority::Background, allocator.units_in_all());
            let free = allocator.free_units_with_holes().saturating_sub(kept) * ALLOCATION_UNIT_BLOCKS;
            (free / 2).max(STEP_BLOCKS_MIN)
        };
        let Some(root) = version.levels[level].compacting else {
            unreachable!("a compaction that has begun has set the level's tree aside");
        };
        let below = version.levels[BOTTOM].active.map_or(0, |root| u64::from(root.blocks));
        // Each entry brings its record, and its part of the leaves below to be written again.
        let record_blocks = f64::from(RECORD_BYTES_MAX) / BLOCK_BYTES as f64;
        let blocks_an_entry = below as f64 / root.entries.max(1) as f64 + record_blocks;
        let entries_max = (blocks_max as f64 / blocks_an_entry) as u64;
        let bytes = root.entries.min(entries_max).saturating_mul(self.record_bytes(root) + ENTRY_BYTES);
        let space = ScanSpace::of_compaction(&self.memtable_budget);
        Step::new(space, entries_max as usize, bytes.min(self.memtable_budget.compaction_bytes_max()))
    }

    /// The bytes of a tree's record in the log, on average.
    fn record_bytes(&self, root: Root) -> u64 {
        match self.tree_records.of(root).records {
            Some(records) => records.bytes / root.entries.max(1),
            // Nobody knows how long the records are that an earlier opening has left.
            None => u64::from(RECORD_BYTES_MAX) / 4,
        }
    }
}

/// About how many blocks a step may take for its leaves, and for the inner nodes above all leaves.
pub(super) fn step_blocks(version: &Version) -> u64 {
    let of_bottom = version.levels[BOTTOM].active.map(|root| u64::from(root.blocks));
    of_bottom.map_or(0, |blocks| STEP_BLOCKS_MIN + blocks / 32)
}
