//! Spills of a region: the level in memory into the first on the device, and each that is full into the one below.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, PoisonError};

use crate::error::Result;
use crate::format::catalogue::{LEVELS, LevelRoots, RegionEntry};
use crate::format::free_log::Freed;
use crate::format::leaf::{ENTRIES_MAX, KnownKey};
use crate::format::pointer::Pointer;
use crate::region::memory_level::{MemoryLevel, NEWEST};
use crate::region::{Region, Version};
use crate::tree::{Cursor, Direction, Merged, Source, Tree, merge};
use crate::volume::era::Outdated;

/// Entries that are taken from a level in memory at a time.
const BATCH: usize = 256;
/// What an entry of the level in memory takes, about: for the sizes of the levels below.
const MEMORY_ENTRY_BYTES: u64 = 96;

/// A spill that is done but not committed.
pub(crate) struct Spilled {
    /// The region as it will be in the catalogue.
    pub(crate) entry: RegionEntry,
    pub(crate) taken: Vec<u64>,
    pub(crate) outdated: Vec<Freed>,
    levels: [LevelRoots; LEVELS],
    /// Records that nothing points to then.
    pub(crate) garbage: Vec<Pointer>,
    was_memory: bool,
}

impl Region {
    /// Begins another level in memory, if the one before is spilled, and this one has anything.
    pub(crate) fn freeze(&self) -> bool {
        let _writing = self.writing();
        let version = self.version.load_full();
        if version.frozen.is_some() || version.memory.is_empty() {
            return version.frozen.is_some();
        }
        // All records of the region that are in the log are in the level: writers hold the lock until theirs is.
        let (log_offset, first_sequence) = self.log.end();
        self.version.store(Arc::new(Version {
            memory: Arc::new(MemoryLevel::new(first_sequence, log_offset, &self.level_memory)),
            frozen: Some(Arc::clone(&version.memory)),
            levels: version.levels,
            epoch: version.epoch,
            era: Arc::clone(&version.era),
        }));
        self.changed.notify_all();
        true
    }

    /// Where the log has to be read from for this region: an offset, and the number of the record there.
    pub(crate) fn replay_from(&self) -> (u64, u64) {
        let version = self.version.load();
        let oldest = version.frozen.as_ref().unwrap_or(&version.memory);
        (oldest.log_offset, oldest.first_sequence)
    }

    /// The same, if it has anything in memory.
    pub(crate) fn oldest_in_memory(&self) -> Option<(u64, u64)> {
        // In this order: what is no longer pending is in memory.
        let pending = *self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load();
        let has_any = version.frozen.is_some() || !version.memory.is_empty();
        if has_any { Some(self.replay_from()) } else { pending }
    }

    fn entries_max(&self, level: usize) -> u64 {
        let first = self.limits.memory_level_bytes / MEMORY_ENTRY_BYTES;
        first.saturating_mul(self.limits.growth_factor.saturating_pow(level as u32))
    }

    /// Does the next spill that is due, if one is: of the memory first. All levels but the lowest are due if they are to be `merged`.
    pub(crate) fn spill(&self, merged: bool) -> Result<Option<Spilled>> {
        let version = self.version();
        if let Some(frozen) = &version.frozen {
            return self.spill_memory(&version, frozen).map(Some);
        }
        let is_due = |level: &usize| {
            let Some(root) = version.levels[*level].active else { return false };
            let is_full = root.entries > self.entries_max(*level) && *level + 1 < LEVELS;
            is_full || (merged && !Self::is_lowest(&version, *level))
        };
        match (1..LEVELS).find(is_due) {
            Some(level) => self.spill_level(&version, level).map(Some),
            None => Ok(None),
        }
    }

    fn is_lowest(version: &Version, level: usize) -> bool {
        version.levels[level].spilling.is_none()
            && version.levels[level + 1..].iter().all(|below| below.active.is_none() && below.spilling.is_none())
    }

    fn spill_memory(&self, version: &Version, frozen: &Arc<MemoryLevel>) -> Result<Spilled> {
        let mut source = MemorySource::new(frozen);
        let active = version.levels[1].active;
        let merged = merge(&self.log, self.number, active, 1, Self::is_lowest(version, 1), &mut source)?;
        let mut levels = version.levels;
        levels[1].active = merged.root;
        let (log_offset, log_sequence) = (version.memory.log_offset, version.memory.first_sequence);
        Ok(self.spilled(merged, levels, Vec::new(), log_offset, log_sequence, true))
    }

    fn spill_level(&self, version: &Version, level: usize) -> Result<Spilled> {
        let Some(root) = version.levels[level].active else {
            unreachable!("a level that is full has a tree");
        };
        let tree = Tree::new(&self.log, self.number, root, version.epoch);
        let mut source = TreeSource::new(tree)?;
        let below = level + 1;
        let is_lowest = Self::is_lowest(version, below);
        let active = version.levels[below].active;
        let merged = merge(&self.log, self.number, active, below as u8, is_lowest, &mut source)?;
        let mut levels = version.levels;
        levels[level].active = None;
        levels[below].active = merged.root;
        let (log_offset, log_sequence) = self.replay_from();
        let outdated = tree.offsets()?.into_iter().map(|offset| Freed { offset, blocks: 1 }).collect();
        Ok(self.spilled(merged, levels, outdated, log_offset, log_sequence, false))
    }

    fn spilled(
        &self,
        merged: Merged,
        levels: [LevelRoots; LEVELS],
        mut outdated: Vec<Freed>,
        log_offset: u64,
        log_sequence: u64,
        was_memory: bool,
    ) -> Spilled {
        let Merged { taken, outdated: replaced, garbage, .. } = merged;
        outdated.extend(replaced);
        let entry = RegionEntry { number: self.number, name: self.name.clone(), log_sequence, log_offset, levels };
        Spilled { entry, taken, outdated, levels, garbage, was_memory }
    }

    /// Has readers see what a commit of that epoch has made durable.
    pub(crate) fn publish(&self, spilled: Spilled, epoch: u64) {
        let mut writing = self.writing();
        writing.has_no_room = false;
        let version = self.version.load_full();
        let era = version.era.end(Outdated::new(&self.log.segment.retired, spilled.outdated));
        self.version.store(Arc::new(Version {
            memory: Arc::clone(&version.memory),
            frozen: if spilled.was_memory { None } else { version.frozen.clone() },
            levels: spilled.levels,
            epoch,
            era,
        }));
        self.changed.notify_all();
    }

    /// Has readers know that a commit of that epoch has ended the lives of some chunks, whose live records have been moved.
    pub(crate) fn outlive(&self, chunks: &Arc<Outdated>, epoch: u64) {
        let _writing = self.writing();
        let version = self.version.load_full();
        self.version.store(Arc::new(Version {
            memory: Arc::clone(&version.memory),
            frozen: version.frozen.clone(),
            levels: version.levels,
            epoch,
            era: version.era.end(Arc::clone(chunks)),
        }));
    }

    /// A spill found no room: who would wait for it is refused, until one does. Nobody waits for one of levels alone.
    pub(crate) fn lack_room(&self) {
        self.writing().has_no_room = self.has_frozen();
        self.changed.notify_all();
    }

    /// Whether a level in memory waits to be spilled.
    pub(crate) fn has_frozen(&self) -> bool {
        self.version.load().frozen.is_some()
    }

    /// Whether a spill has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.writing().failed.is_some()
    }

    /// Whether a spill has found no room.
    pub(crate) fn lacks_room(&self) -> bool {
        self.writing().has_no_room
    }

    /// Nodes that a spill of the region may take, about.
    pub(crate) fn spill_blocks(&self) -> u64 {
        let version = self.version.load();
        let trees: u64 = version.roots().map(|root| u64::from(root.blocks)).sum();
        // Leaves of keys with little in common are half full.
        let frozen = version.frozen.as_ref().map_or(0, |frozen| frozen.bytes());
        let memory = self.limits.memory_level_bytes.max(version.memory.bytes()) + frozen;
        trees + memory / MEMORY_ENTRY_BYTES / (ENTRIES_MAX as u64 / 2)
    }

    /// Has writers be refused: a spill has failed.
    pub(crate) fn fail(&self, why: &str) {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner).failed.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    /// Waits until nothing is frozen, or a spill has failed.
    pub(crate) fn wait_for_spill(&self) -> Result<()> {
        let mut writing = self.writing();
        while self.version.load().frozen.is_some() {
            self.check(&writing)?;
            writing = self.changed.wait(writing).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

/// A level in memory, in order.
struct MemorySource<'level> {
    level: &'level MemoryLevel,
    batch: VecDeque<KnownKey>,
    last: Option<Box<[u8]>>,
}

impl<'level> MemorySource<'level> {
    fn new(level: &'level MemoryLevel) -> Self {
        MemorySource { level, batch: VecDeque::new(), last: None }
    }

    fn fill(&mut self) {
        if self.batch.is_empty() {
            let from = self.last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let some = self.level.some(from, Direction::Up, NEWEST, BATCH);
            self.batch.extend(some.iter().map(|(key, pointer)| KnownKey::whole(key, *pointer)));
            if let Some((key, _)) = some.into_iter().next_back() {
                self.last = Some(key);
            }
        }
    }
}

impl Source for MemorySource<'_> {
    fn peek(&mut self) -> Result<Option<&mut KnownKey>> {
        self.fill();
        Ok(self.batch.front_mut())
    }

    fn next(&mut self) -> Result<Option<KnownKey>> {
        self.fill();
        Ok(self.batch.pop_front())
    }
}

/// A tree, in order.
struct TreeSource<'log> {
    cursor: Cursor<'log>,
    current: Option<KnownKey>,
}

impl<'log> TreeSource<'log> {
    fn new(tree: Tree<'log>) -> Result<Self> {
        let cursor = Cursor::first(tree)?;
        let current = cursor.current();
        Ok(TreeSource { cursor, current })
    }
}

impl Source for TreeSource<'_> {
    fn peek(&mut self) -> Result<Option<&mut KnownKey>> {
        Ok(self.current.as_mut())
    }

    fn next(&mut self) -> Result<Option<KnownKey>> {
        let current = self.current.take();
        if current.is_some() {
            self.cursor.advance()?;
            self.current = self.cursor.current();
        }
        Ok(current)
    }
}
