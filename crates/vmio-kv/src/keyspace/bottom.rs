//! The two lowest levels, whose leaves hold small records themselves: a scan finds neighbours side by side, and a look-up needs one block.
//!
//! A level above is merged into them in steps of bounded memory and space. Each step takes the first leaves of that level, reads their
//! records in the order of their places, and merges them with their values. The rest of that level stays a tree. The upper one of the two
//! takes what is not worth to write all of the bottom level again.

use crate::format::catalogue::{LEVELS, LevelRoots, Root};
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, BLOCK_BYTES};
use crate::format::leaf::INLINE_BYTES_MAX;
use crate::format::pointer::{Pointer, PointerKind};
use crate::keyspace::bottom_step::{ENTRY_BYTES, Step};
use crate::keyspace::{Keyspace, ScanSpace, Version};
use crate::tree::RUN_BLOCKS_MAX;
use crate::volume::free_reserve::SpacePriority;

/// The bottom level: nothing is below it, and it is merged into no other.
pub(crate) const BOTTOM: usize = LEVELS - 1;
/// The first level whose leaves hold records: the one above the bottom level.
pub(crate) const INLINE: usize = BOTTOM - 1;

/// The most bytes of a record in the log whose value a leaf takes. Of longer ones a leaf has space for few, and wastes more.
const RECORD_BYTES_MAX: u32 = 640;
const _: () = assert!(RECORD_BYTES_MAX as usize <= INLINE_BYTES_MAX);
/// In a calm a level goes down once it has one entry for this many of the level below, whose leaves are all written again.
const CALM_SHARE: u64 = 3;
/// The most steps of a merge. Each one reads records all over the log.
const STEPS_MAX: u64 = 32;
/// The most blocks of a step that has no more space: the reserve covers them.
const STEP_BLOCKS_MIN: u64 = 1024;

/// Whether a leaf of these levels is to hold a record. If no more are to move, those in leaves stay there.
pub(super) fn belongs_in_leaf(record: Pointer, moves: bool) -> bool {
    match record.kind() {
        PointerKind::Inline => true,
        PointerKind::Value => moves && record.record_bytes() <= RECORD_BYTES_MAX,
        PointerKind::Extents | PointerKind::Tombstone => false,
    }
}

fn entries(version: &Version, level: usize) -> u64 {
    version.levels[level].active.map_or(0, |root| root.entries)
}

/// Whether a level has no tree.
fn is_empty(roots: &LevelRoots) -> bool {
    roots.active.is_none() && roots.compacting.is_none()
}

/// The level with records in its leaves that a level can be merged into: nothing may be in between. It need not be worth it.
fn lower_level(version: &Version, level: usize) -> Option<usize> {
    if level == INLINE {
        return Some(BOTTOM);
    }
    let is_next = (1..INLINE).contains(&level) && version.levels[level + 1..INLINE].iter().all(is_empty);
    is_next.then_some(if is_empty(&version.levels[INLINE]) { BOTTOM } else { INLINE })
}

/// The same for a level that has to go down, where there are records in leaves already.
pub(super) fn lower_level_of(version: &Version, level: usize) -> Option<usize> {
    let has_any = version.levels[INLINE..].iter().any(|roots| !is_empty(roots));
    lower_level(version, level).filter(|_| has_any)
}

impl Keyspace {
    /// The level with records in its leaves that a level should be merged into: it has one entry at least for `share` of those there.
    pub(super) fn worthy_level(&self, version: &Version, level: usize, share: u64) -> Option<usize> {
        let root = version.levels[level].active?;
        let has_enough = |below: usize| root.entries.saturating_mul(share) >= entries(version, below);
        let below = lower_level(version, level)?;
        if level == INLINE {
            return has_enough(BOTTOM).then_some(BOTTOM);
        }
        let record_bytes = self.record_bytes(level, root);
        let bytes = root.entries.saturating_mul(record_bytes + ENTRY_BYTES);
        let has_space = || self.blocks_to_move_into() >= self.blocks_to_move(level, root).min(2 * STEP_BLOCKS_MIN);
        let is_worthy = self.limits.bottom_entries_min.is_some_and(|least| root.entries >= least)
            && record_bytes <= u64::from(RECORD_BYTES_MAX)
            && bytes / STEPS_MAX <= self.memtable_budget.compaction_bytes_max()
            && has_space();
        let below = if below == BOTTOM && !has_enough(BOTTOM) { INLINE } else { below };
        (is_worthy && has_enough(below)).then_some(below)
    }

    /// The same while there is little else to do.
    pub(super) fn worthy_level_in_calm(&self, version: &Version, level: usize) -> Option<usize> {
        self.worthy_level(version, level, CALM_SHARE)
    }

    /// Whether a level should be merged down while there is little else to do.
    pub(crate) fn has_work_for_a_calm(&self) -> bool {
        let version = self.version.load();
        let is_worthy = |level| self.worthy_level_in_calm(&version, level).is_some();
        !self.has_failed() && ((1..BOTTOM).any(is_worthy) || self.is_between_steps())
    }

    /// The blocks that a step may take for records that move, after which there is as much space for puts as before.
    fn blocks_to_move_into(&self) -> u64 {
        let segment = &self.log.segment;
        let allocator = segment.allocator();
        let kept = segment.free_reserve.least_free(SpacePriority::Background, allocator.units_in_all());
        allocator.free_units_with_holes().saturating_sub(kept) * ALLOCATION_UNIT_BLOCKS / 2
    }

    /// The next step of a level's merge into one with records in its leaves. Without much space no records move: entries go on pointing to
    /// them, and the step takes what the reserve has.
    pub(super) fn step(&self, version: &Version, level: usize, below: usize) -> Step {
        let Some(root) = version.levels[level].compacting else {
            unreachable!("a compaction that has begun has set the level's tree aside");
        };
        let free = self.blocks_to_move_into();
        let moves =
            self.limits.bottom_entries_min.is_some() && free >= self.blocks_to_move(level, root).min(STEP_BLOCKS_MIN);
        let blocks_max = (if moves { free } else { STEP_BLOCKS_MIN }) as f64;
        let below = version.levels[below].active.map_or(0, |root| u64::from(root.blocks)) as f64;
        // Each entry brings its record, and may fall into another leaf.
        let blocks_a_record = f64::from(RECORD_BYTES_MAX) / BLOCK_BYTES as f64;
        let apart = blocks_max / (1.0 + blocks_a_record);
        let entries_max = if apart <= below { apart } else { (blocks_max - below) / blocks_a_record } as u64;
        let bytes = root.entries.min(entries_max).saturating_mul(self.record_bytes(level, root) + ENTRY_BYTES);
        let space = ScanSpace::of_compaction(&self.memtable_budget);
        let bytes = bytes.min(self.memtable_budget.compaction_bytes_max());
        Step::new(&self.log, space, entries_max as usize, bytes, moves)
    }

    /// About how many blocks a level's records fill.
    fn blocks_to_move(&self, level: usize, root: Root) -> u64 {
        root.entries.saturating_mul(self.record_bytes(level, root)) / BLOCK_BYTES as u64 + RUN_BLOCKS_MAX
    }

    /// The bytes of a record of a level's tree, on average.
    fn record_bytes(&self, level: usize, root: Root) -> u64 {
        match self.tree_records.of(root).records {
            _ if level == INLINE => u64::from(root.blocks) * BLOCK_BYTES as u64 / root.entries.max(1),
            Some(records) => records.bytes / root.entries.max(1),
            // Nobody knows how long the records are that an earlier opening has left.
            None => u64::from(RECORD_BYTES_MAX) / 4,
        }
    }
}

/// The blocks of the levels with records in their leaves. They are written in steps.
pub(super) fn blocks_of_lower_levels(version: &Version) -> u64 {
    let roots = version.levels[INLINE..].iter().flat_map(|level| [level.active, level.compacting]);
    roots.flatten().map(|root| u64::from(root.blocks)).sum()
}

/// About how many blocks a step may take for its leaves, and for the inner nodes above all leaves.
pub(super) fn step_blocks(version: &Version) -> u64 {
    match blocks_of_lower_levels(version) {
        0 => 0,
        blocks => STEP_BLOCKS_MIN + blocks / 32,
    }
}
