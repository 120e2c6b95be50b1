//! Going through a region in order: all its levels at once, the newest record of each key.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::catalogue::Root;
use crate::format::leaf::KnownKey;
use crate::format::pointer::PointerKind;
use crate::log::Log;
use crate::region::memory_level::{MemoryLevel, NEWEST};
use crate::region::{Region, View};
use crate::tree::{Cursor, Direction};

/// Entries that are taken from a level in memory at a time.
const BATCH: usize = 64;

/// A level in memory, entry by entry.
struct MemoryCursor {
    level: Arc<MemoryLevel>,
    /// Records from this number on are not seen.
    before: u64,
    direction: Direction,
    batch: VecDeque<KnownKey>,
}

impl MemoryCursor {
    /// The first entry within a bound, which the caller has come to.
    fn next_within(&mut self, bound: Bound<&[u8]>) -> Option<KnownKey> {
        if self.batch.is_empty() {
            self.batch.extend(self.level.some(bound, self.direction, self.before, BATCH));
        }
        self.batch.pop_front()
    }
}

enum Place {
    Memory(MemoryCursor),
    Tree(Cursor<Arc<Log>>),
}

/// A level, and the entry that is the next on the way.
struct LevelCursor {
    place: Place,
    next: Option<KnownKey>,
}

impl LevelCursor {
    fn memory(level: &Arc<MemoryLevel>, before: u64, bound: Bound<&[u8]>, direction: Direction) -> Self {
        let mut cursor = MemoryCursor { level: Arc::clone(level), before, direction, batch: VecDeque::new() };
        let next = cursor.next_within(bound);
        LevelCursor { place: Place::Memory(cursor), next }
    }

    fn tree(region: &Region, root: Root, epoch: u64, bound: Bound<&[u8]>, direction: Direction) -> Result<Self> {
        let cursor = Cursor::seek(&region.log, region.number, root, epoch, bound, direction)?;
        let next = cursor.current();
        Ok(LevelCursor { place: Place::Tree(cursor), next })
    }

    fn take(&mut self) -> Result<Option<KnownKey>> {
        let Some(taken) = self.next.take() else { return Ok(None) };
        self.next = match &mut self.place {
            Place::Memory(cursor) => cursor.next_within(Bound::Excluded(&taken.bytes)),
            Place::Tree(cursor) => {
                cursor.advance()?;
                cursor.current()
            }
        };
        Ok(Some(taken))
    }
}

/// A place in a region.
pub(crate) struct RegionCursor {
    log: Arc<Log>,
    direction: Direction,
    /// In order of age, the newest first.
    levels: Vec<LevelCursor>,
    /// Keeps what the levels refer to.
    _view: Arc<View>,
}

impl RegionCursor {
    /// At the first key on the way that is within a bound.
    pub(crate) fn seek(region: &Region, view: &Arc<View>, bound: Bound<&[u8]>, direction: Direction) -> Result<Self> {
        let version = &view.version;
        let mut levels = vec![LevelCursor::memory(&version.memory, view.before, bound, direction)];
        levels.extend(version.frozen.iter().map(|frozen| LevelCursor::memory(frozen, NEWEST, bound, direction)));
        for root in version.roots() {
            levels.push(LevelCursor::tree(region, root, version.epoch, bound, direction)?);
        }
        Ok(RegionCursor { log: Arc::clone(&region.log), direction, levels, _view: Arc::clone(view) })
    }

    /// What is known of the next key that has a value.
    pub(crate) fn next(&mut self) -> Result<Option<KnownKey>> {
        loop {
            match self.next_or_deleted()? {
                Some(known) if known.pointer.kind() == PointerKind::Tombstone => {}
                nearest => return Ok(nearest),
            }
        }
    }

    /// What is known of the next key, which may have been deleted: the newest level's entry of it, taken out of all levels.
    pub(crate) fn next_or_deleted(&mut self) -> Result<Option<KnownKey>> {
        let is_nearer = match self.direction {
            Direction::Up => Ordering::Less,
            Direction::Down => Ordering::Greater,
        };
        let mut nearest = None;
        let mut superseded = Vec::new();
        for index in 0..self.levels.len() {
            let (newer, older) = self.levels.split_at_mut(index);
            let Some(known) = &mut older[0].next else { continue };
            let ordering = match nearest.and_then(|nearest: usize| newer[nearest].next.as_mut()) {
                Some(nearest) => self.log.compare(known, nearest)?,
                None => is_nearer,
            };
            if ordering == is_nearer {
                nearest = Some(index);
                superseded.clear();
            } else if ordering == Ordering::Equal {
                superseded.push(index);
            }
        }
        for index in superseded {
            self.levels[index].take()?;
        }
        nearest.map_or(Ok(None), |nearest| self.levels[nearest].take())
    }
}
