//! Flushes and compactions of a keyspace: a memtable into the first level on the device, and each full level into the one below.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::extents::extents_of_retired;
use crate::format::catalogue::{KeyspaceEntry, LEVELS, LevelRoots, Root};
use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::leaf::ENTRIES_MAX;
use crate::format::pointer::Pointer;
use crate::keyspace::bottom::{BOTTOM, INLINE, blocks_of_lower_levels, lower_level_of, step_blocks};
use crate::keyspace::contents::{Contents, Records};
use crate::keyspace::memtable::Memtable;
use crate::keyspace::{Keyspace, Limits, Version};
use crate::tree::{MergeInput, MergeThreads, Merged, Target, Tree, merge, take_front};
use crate::volume::block_runs::BlockRuns;
use crate::volume::chunk_generations::OF_MERGES;
use crate::volume::epoch::RetiredBlocks;
use crate::volume::garbage::Garbage;
use crate::volume::merges::UnderWay;

/// How long a level is left alone after a failed compaction.
const REST: Duration = Duration::from_secs(5);

/// About the bytes of an entry in a memtable: the sizes of the levels below follow from it.
const MEMORY_ENTRY_BYTES: u64 = 56;

/// Which levels a thread compacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Those that are full or asked for.
    Full,
    /// All but the lowest.
    All,
    /// Also what is worth a place in the bottom level, since there is little else to do.
    Calm,
}

/// A flush of the immutable memtable, which is level 0, or a compaction of a level into one below. While it exists no other thread
/// compacts the level, nor begins to compact the one below.
pub(crate) struct Compaction<'keyspace> {
    keyspace: &'keyspace Keyspace,
    level: usize,
    /// The next level, or one with records in its leaves.
    below: usize,
    /// An earlier step has taken a part of the level.
    is_later_step: bool,
    version: Arc<Version>,
    /// While this exists, no chunk is given up that becomes empty meanwhile.
    _under_way: UnderWay,
}

/// A compaction that is done, but not committed.
pub(crate) struct Compacted<'keyspace> {
    compaction: Compaction<'keyspace>,
    /// The new root of the level below.
    root: Option<Root>,
    /// The rest of the level, if a step into the bottom level has taken a part of it.
    rest: Option<Root>,
    /// The records in the log of what it has taken; `None` for all.
    moved: Option<Records>,
    pub(crate) taken: BlockRuns,
    /// Extents of large values that no tree has had so far.
    pub(crate) extents: Vec<Extent>,
    pub(crate) retired: Vec<Freed>,
    /// Records that nothing points to once it is committed.
    pub(crate) garbage: Garbage,
}

impl Drop for Compaction<'_> {
    fn drop(&mut self) {
        let mut writing = self.keyspace.writing();
        (writing.is_compacting[self.level], writing.is_merged_into[self.below]) = (false, false);
        drop(writing);
        // A removal may wait until no level of the keyspace is compacted.
        self.keyspace.changed.notify_all();
    }
}

impl<'keyspace> Compaction<'keyspace> {
    /// The level that is compacted.
    pub(crate) fn level(&self) -> usize {
        self.level
    }

    /// Whether an earlier step has taken a part of the level.
    pub(crate) fn is_later_step(&self) -> bool {
        self.is_later_step
    }

    /// Whether it flushes a memtable.
    pub(crate) fn is_flush(&self) -> bool {
        self.level == 0
    }

    /// Merges the level into the one below, with the help of idle threads.
    pub(crate) fn merge(self, threads: &MergeThreads) -> Result<Compacted<'keyspace>> {
        match &self.version.immutable {
            Some(immutable) if self.level == 0 => {
                let immutable = Arc::clone(immutable);
                self.merge_memtable(&immutable, threads)
            }
            _ if self.below >= INLINE => self.merge_a_step(threads),
            _ => self.merge_tree(threads),
        }
    }

    fn merge_memtable(self, immutable: &Memtable, threads: &MergeThreads) -> Result<Compacted<'keyspace>> {
        let merged = self.merge_newer(immutable, threads)?;
        let retired = immutable.extents_of_dead().into_iter().map(Freed::from).collect();
        Ok(Compacted { extents: immutable.extents(), ..self.compacted(merged, retired)? })
    }

    /// The level's tree, which the beginning of the compaction has set aside.
    fn tree(&self) -> Root {
        let Some(root) = self.version.levels[self.level].compacting else {
            unreachable!("a compaction that has begun has set the level's tree aside");
        };
        root
    }

    /// Does a step of the merge into a level with records in its leaves.
    fn merge_a_step(self, threads: &MergeThreads) -> Result<Compacted<'keyspace>> {
        let (log, segment) = (&self.keyspace.log, &self.keyspace.log.segment);
        let mut step = self.keyspace.step(&self.version, self.level, self.below);
        let from = (self.keyspace.number, self.level as u8);
        let rest = take_front(log, from, self.tree(), |entries| step.take(entries))?;
        let moved = step.records();
        step.read();
        let merged = self.merge_newer(&step, threads);
        // Nothing else refers to the new nodes yet.
        let mut merged = merged.inspect_err(|_| segment.abandon(rest.taken.freed()))?;
        drop(step);
        merged.taken.append(rest.taken);
        let retired = rest.retired.freed().collect();
        let compacted = self.compacted(merged, retired)?;
        Ok(Compacted { rest: rest.root, moved: Some(moved), ..compacted })
    }

    fn merge_tree(self, threads: &MergeThreads) -> Result<Compacted<'keyspace>> {
        let root = self.tree();
        let tree = Tree::new(&self.keyspace.log, self.keyspace.number, root, OF_MERGES);
        let retired = tree.blocks()?.freed().collect();
        let merged = self.merge_newer(&tree, threads)?;
        self.compacted(merged, retired)
    }

    fn merge_newer(&self, newer: &dyn MergeInput, threads: &MergeThreads) -> Result<Merged> {
        let below = self.below;
        let target = Target {
            keyspace: self.keyspace.number,
            level: below as u8,
            old: self.version.levels[below].active,
            is_lowest: is_lowest(&self.version, below),
            // As many leaves as a full memtable fills: a target that is no larger is done soon.
            part_leaves: self.keyspace.entries_max(0) / ENTRIES_MAX as u64,
        };
        merge(&self.keyspace.log, &target, newer, threads)
    }

    fn compacted(self, merged: Merged, mut retired: Vec<Freed>) -> Result<Compacted<'keyspace>> {
        let Merged { root, taken, retired: replaced, garbage } = merged;
        retired.extend(replaced.freed());
        let dead = self.keyspace.extents_of_dead(garbage.large());
        // Nothing else refers to the new nodes yet.
        let dead = dead.inspect_err(|_| self.keyspace.log.segment.abandon(taken.freed()))?;
        retired.extend(dead.into_iter().map(Freed::from));
        let (rest, moved) = (None, None);
        Ok(Compacted { compaction: self, root, rest, moved, taken, extents: Vec::new(), retired, garbage })
    }
}

impl Compacted<'_> {
    fn levels(&self, version: &Version) -> [LevelRoots; LEVELS] {
        let mut levels = version.levels;
        levels[self.compaction.level].compacting = self.rest;
        levels[self.compaction.below].active = self.root;
        levels
    }

    /// The keyspace's new entry in the catalogue. No other compaction of it is published before this one.
    pub(crate) fn entry(&self) -> KeyspaceEntry {
        let keyspace = self.compaction.keyspace;
        let version = keyspace.version.load();
        let (log_offset, log_sequence) = match self.compaction.is_flush() {
            true => (version.memtable.log_offset, version.memtable.first_sequence),
            false => keyspace.replay_from(),
        };
        let levels = self.levels(&version);
        KeyspaceEntry { number: keyspace.number, name: keyspace.name.clone(), log_sequence, log_offset, levels }
    }

    /// Notes the counts of the new tree, if those of its inputs are known.
    fn note_records(&self, version: &Version) {
        let trees = &self.compaction.keyspace.tree_records;
        let (level, below) = (self.compaction.level, self.compaction.below);
        let all = match (&version.immutable, version.levels[level].compacting) {
            (Some(immutable), _) if level == 0 => immutable.contents().records,
            (_, compacting) => trees.take(compacting),
        };
        let newer = match (self.moved, all) {
            (Some(moved), Some(all)) => {
                let left = Records {
                    bytes: all.bytes.saturating_sub(moved.bytes),
                    deletions: all.deletions.saturating_sub(moved.deletions),
                };
                self.rest.into_iter().for_each(|rest| trees.put(rest, left));
                Some(moved)
            }
            (Some(moved), None) => Some(moved),
            (None, all) => all,
        };
        let older = trees.take(version.levels[below].active);
        if let (Some(newer), Some(older), Some(root)) = (newer, older, self.root) {
            let retired: u64 = self.garbage.of_log().map(|(_, bytes)| u64::from(bytes)).sum();
            let deletions =
                if is_lowest(&self.compaction.version, below) { 0 } else { newer.deletions + older.deletions };
            trees.put(root, Records { bytes: (newer.bytes + older.bytes).saturating_sub(retired), deletions });
        }
    }

    /// Shows readers the state that the commit of that epoch has made durable.
    pub(crate) fn publish(mut self, epoch: u64) {
        let keyspace = self.compaction.keyspace;
        let mut writing = keyspace.writing();
        writing.flushed_memtables += u64::from(self.compaction.is_flush());
        writing.has_no_space = false;
        let version = keyspace.version.load_full();
        let retired = std::mem::take(&mut self.retired);
        let reclamation_epoch =
            version.reclamation_epoch.end(RetiredBlocks::new(&keyspace.log.segment.reclaimable, retired));
        if let Some(immutable) = version.immutable.as_ref().filter(|_| self.compaction.is_flush()) {
            immutable.flushed();
        }
        let levels = self.levels(&version);
        self.note_records(&version);
        keyspace.version.store(Arc::new(Version {
            memtable: Arc::clone(&version.memtable),
            immutable: version.immutable.clone().filter(|_| !self.compaction.is_flush()),
            levels,
            epoch,
            reclamation_epoch,
        }));
        drop(writing);
        keyspace.changed.notify_all();
        keyspace.memtable_budget.wake();
    }
}

/// About how many nodes a flush of a new keyspace may take.
pub(crate) fn compaction_blocks_of_new(limits: Limits) -> u64 {
    blocks_of_memtable(limits.memtable_bytes)
}

fn blocks_of_memtable(bytes: u64) -> u64 {
    // Leaves of keys with little in common are half full.
    bytes / MEMORY_ENTRY_BYTES / (ENTRIES_MAX as u64 / 2)
}

/// Whether a level that is merged into has nothing of the keyspace below it.
fn is_lowest(version: &Version, level: usize) -> bool {
    version.levels[level].compacting.is_none()
        && version.levels[level + 1..].iter().all(|below| below.active.is_none() && below.compacting.is_none())
}

impl Keyspace {
    /// Makes the memtable immutable and begins another one, if the one before was flushed and this one has anything. Returns whether there
    /// is an immutable one now.
    pub(crate) fn rotate_memtable(&self) -> bool {
        let writing = self.writing();
        let version = self.version.load_full();
        if version.immutable.is_some() || version.memtable.is_empty() || writing.is_being_emptied {
            return version.immutable.is_some();
        }
        version.memtable.make_immutable();
        // All of the keyspace's records in the log are in the memtable: a writer holds the lock until its own is.
        let (log_offset, first_sequence) = self.log.end();
        self.version.store(Arc::new(Version {
            memtable: Arc::new(version.memtable.following(first_sequence, log_offset)),
            immutable: Some(Arc::clone(&version.memtable)),
            levels: version.levels,
            epoch: version.epoch,
            reclamation_epoch: Arc::clone(&version.reclamation_epoch),
        }));
        self.changed.notify_all();
        true
    }

    /// The place and number of the record from which an opening reads the log back for this keyspace.
    pub(crate) fn replay_from(&self) -> (u64, u64) {
        let version = self.version.load();
        let oldest = version.immutable.as_ref().unwrap_or(&version.memtable);
        (oldest.log_offset, oldest.first_sequence)
    }

    /// The same; `None` if the keyspace has nothing in memory.
    pub(crate) fn oldest_in_memory(&self) -> Option<(u64, u64)> {
        // In this order: a write that is no longer pending is in the memtable.
        let pending = *self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load();
        let has_any = version.immutable.is_some() || !version.memtable.is_empty();
        if has_any { Some(self.replay_from()) } else { pending }
    }

    fn entries_max(&self, level: usize) -> u64 {
        let first = self.limits.memtable_bytes / MEMORY_ENTRY_BYTES;
        first.saturating_mul(self.limits.growth_factor.saturating_pow(level as u32))
    }

    /// Begins the next flush or compaction that is due and can begin; flushes come first.
    pub(crate) fn begin_compaction(&self, due: Due) -> Option<Compaction<'_>> {
        let mut writing = self.writing();
        let version = self.version.load_full();
        let is_due = |level: &usize| {
            let LevelRoots { active, compacting } = version.levels[*level];
            let is_full = active.is_some_and(|root| root.entries > self.entries_max(*level));
            match level {
                0 => version.immutable.is_some(),
                _ => {
                    let is_asked_for = due == Due::All || writing.is_asked_for[*level];
                    compacting.is_some()
                        || is_full
                        || (is_asked_for && active.is_some() && !is_lowest(&version, *level))
                        || (*level == INLINE && self.worthy_level(&version, INLINE, 1).is_some())
                        || (due == Due::Calm && self.worthy_level_in_calm(&version, *level).is_some())
                }
            }
        };
        // While the level above is merged into this one, its tree stays where it is.
        let can_begin = |level: &usize| !writing.is_compacting[*level] && !writing.is_merged_into[*level];
        // A full merge does not wait for levels that have failed.
        let rests =
            |level: &usize| due != Due::All && writing.resting[*level].is_some_and(|until| Instant::now() < until);
        if writing.is_being_emptied {
            return None;
        }
        let level = (0..BOTTOM).filter(can_begin).filter(|level| !rests(level)).find(is_due)?;
        let LevelRoots { active, compacting } = version.levels[level];
        let is_full = active.is_some_and(|root| root.entries > self.entries_max(level));
        let worthy = match (due, compacting) {
            // The rest of a level goes where its beginning went.
            (_, Some(_)) => None,
            (Due::Calm, None) => self.worthy_level_in_calm(&version, level),
            (_, None) => self.worthy_level(&version, level, 1),
        };
        // Once there are records in leaves, a level that is not full goes there whatever the reason.
        let lower = worthy.or_else(|| lower_level_of(&version, level).filter(|_| compacting.is_some() || !is_full));
        let below = if level == 0 { 1 } else { lower.unwrap_or(level + 1) };
        writing.resting[level] = None;
        (writing.is_compacting[level], writing.is_asked_for[level]) = (true, false);
        writing.is_merged_into[below] = true;
        let mut levels = version.levels;
        // A failed compaction is tried again with the tree that was set aside. Newer entries wait for the next compaction.
        if level > 0 && levels[level].compacting.is_none() {
            // From here on the level above is merged into another tree.
            levels[level].compacting = levels[level].active.take();
            self.version.store(Arc::new(Version {
                memtable: Arc::clone(&version.memtable),
                immutable: version.immutable.clone(),
                levels,
                epoch: version.epoch,
                reclamation_epoch: Arc::clone(&version.reclamation_epoch),
            }));
        }
        let is_later_step = below >= INLINE && compacting.is_some();
        let under_way = self.log.segment.merges.begin();
        Some(Compaction { keyspace: self, level, below, is_later_step, version: self.version(), _under_way: under_way })
    }

    /// All blocks of some large values that nothing refers to any longer.
    pub(super) fn extents_of_dead(&self, values: &[Pointer]) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        for pointer in values {
            extents.extend(extents_of_retired(&self.log, *pointer)?);
        }
        Ok(extents)
    }

    /// Shows readers that a commit of that epoch has ended the generations of some chunks, whose live records have been moved.
    pub(crate) fn publish_freed_chunks(&self, chunks: &Arc<RetiredBlocks>, epoch: u64) {
        let _writing = self.writing();
        let version = self.version.load_full();
        self.version.store(Arc::new(Version {
            memtable: Arc::clone(&version.memtable),
            immutable: version.immutable.clone(),
            levels: version.levels,
            epoch,
            reclamation_epoch: version.reclamation_epoch.end(Arc::clone(chunks)),
        }));
    }

    /// Notes that a flush found no space. Writers that would wait for a flush fail until one succeeds. No writer waits for a compaction of
    /// levels alone.
    pub(crate) fn lack_space(&self) {
        self.writing().has_no_space = self.has_immutable();
        self.changed.notify_all();
        self.memtable_budget.wake();
    }

    /// Whether there is an immutable memtable, which waits to be flushed.
    pub(crate) fn has_immutable(&self) -> bool {
        self.version.load().immutable.is_some()
    }

    /// Whether a flush has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.writing().failed.is_some()
    }

    /// Whether a flush has found no space.
    pub(crate) fn lacks_space(&self) -> bool {
        self.writing().has_no_space
    }

    /// About how many nodes the keyspace's flush and compactions may take.
    pub(crate) fn compaction_blocks(&self) -> u64 {
        let version = self.version.load();
        let all: u64 = version.roots().map(|root| u64::from(root.blocks)).sum();
        let trees = all - blocks_of_lower_levels(&version) + step_blocks(&version);
        let immutable = version.immutable.as_ref().map_or(0, |immutable| immutable.bytes());
        let bytes = self.limits.memtable_bytes.max(version.memtable.bytes()) + immutable;
        trees + blocks_of_memtable(bytes)
    }

    /// Makes all writes fail, since a flush has failed.
    pub(crate) fn fail(&self, why: &str) {
        self.writing().failed.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
        self.memtable_budget.wake();
    }

    /// The number of flushed memtables once the present ones are flushed.
    pub(crate) fn memtables_so_far(&self) -> u64 {
        let writing = self.writing();
        let version = self.version.load();
        writing.flushed_memtables + u64::from(version.immutable.is_some()) + u64::from(!version.memtable.is_empty())
    }

    /// How many memtables have been flushed.
    pub(crate) fn flushed_memtables(&self) -> u64 {
        self.writing().flushed_memtables
    }

    /// Waits until more memtables have been flushed than `flushed`; fails if a flush has failed.
    pub(crate) fn wait_for_flush_after(&self, flushed: u64) -> Result<()> {
        let mut writing = self.writing();
        while writing.flushed_memtables <= flushed && self.version.load().immutable.is_some() {
            self.check_flush_can_succeed(&writing)?;
            self.changed.wait(&mut writing);
        }
        Ok(())
    }

    /// The contents of each level, from the memtables downwards.
    pub(crate) fn contents(&self) -> Vec<Contents> {
        let version = self.version.load();
        let memtables = std::iter::once(&version.memtable).chain(&version.immutable).map(|level| level.contents());
        memtables.chain(version.roots().map(|root| self.tree_records.of(root))).collect()
    }

    /// Whether a merge into the bottom level has taken some steps, and has not begun the next one.
    pub(crate) fn is_between_steps(&self) -> bool {
        let is_compacting = self.writing().is_compacting;
        let version = self.version.load();
        (1..BOTTOM).any(|level| version.levels[level].compacting.is_some() && !is_compacting[level])
    }

    /// Whether a level on the device is being merged into the one below.
    pub(crate) fn is_compacting_levels(&self) -> bool {
        self.writing().is_compacting[1..].contains(&true)
    }

    /// Leaves a level alone for a while, since its compaction has failed.
    pub(crate) fn rest(&self, level: usize) {
        self.writing().resting[level] = Some(Instant::now() + REST);
    }

    /// Asks for a compaction of the upper one of the two levels with the most entries, so that these meet. Returns whether there are two.
    pub(crate) fn ask_for_merge(&self) -> bool {
        let levels = {
            let version = self.version.load();
            let entries = |level: usize| match level {
                0 => version.memtable.keys(),
                _ => version.levels[level].active.map_or(0, |root| root.entries),
            };
            // The log has no record of those in leaves.
            let mut levels: Vec<(u64, usize)> = (0..INLINE).map(|level| (entries(level), level)).collect();
            levels.retain(|(entries, _)| *entries > 0);
            levels.sort_unstable_by_key(|(entries, _)| std::cmp::Reverse(*entries));
            levels.into_iter().take(2).map(|(_, level)| level).collect::<Vec<_>>()
        };
        match (levels.len(), levels.into_iter().min()) {
            (2, Some(0)) => self.rotate_memtable(),
            (2, Some(level)) => {
                let mut writing = self.writing();
                let rests = writing.resting[level].is_some_and(|until| Instant::now() < until);
                writing.is_asked_for[level] = !rests;
                !rests
            }
            _ => false,
        }
    }
}
