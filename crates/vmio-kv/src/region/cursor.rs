//! Going through a region in order: all its levels at once, the newest record of each key.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::leaf::KnownKey;
use crate::format::pointer::PointerKind;
use crate::region::memory_level::{MemoryLevel, NEWEST};
use crate::region::{Region, View};
use crate::tree::{Cursor, Tree};

/// Entries that are taken from a level in memory at a time.
const BATCH: usize = 64;

/// A level in memory, entry by entry.
struct MemoryCursor {
    level: Arc<MemoryLevel>,
    /// Records from this number on are not seen.
    before: u64,
    batch: VecDeque<KnownKey>,
}

impl MemoryCursor {
    fn seek(level: &Arc<MemoryLevel>, before: u64, from: Bound<&[u8]>) -> Self {
        let mut cursor = MemoryCursor { level: Arc::clone(level), before, batch: VecDeque::new() };
        cursor.fill(from);
        cursor
    }

    fn fill(&mut self, from: Bound<&[u8]>) {
        let some = self.level.some_from(from, self.before, BATCH);
        self.batch.extend(some.iter().map(|(key, pointer)| KnownKey::whole(key, *pointer)));
    }

    fn advance(&mut self) {
        if let Some(last) = self.batch.pop_front()
            && self.batch.is_empty()
        {
            self.fill(Bound::Excluded(&last.bytes));
        }
    }
}

/// A place in a region. Levels are in order of age, the newest first.
pub(crate) struct RegionCursor<'region> {
    region: &'region Region,
    memory: Vec<MemoryCursor>,
    trees: Vec<(Cursor<'region>, Option<KnownKey>)>,
    /// Keeps what the levels in memory and the trees refer to.
    _view: Arc<View>,
}

impl<'region> RegionCursor<'region> {
    /// At the first key that is not less.
    pub(crate) fn seek(region: &'region Region, view: &Arc<View>, key: &[u8]) -> Result<Self> {
        let version = &view.version;
        let levels = std::iter::once((&version.memory, view.before))
            .chain(version.frozen.as_ref().map(|frozen| (frozen, NEWEST)));
        let memory = levels.map(|(level, before)| MemoryCursor::seek(level, before, Bound::Included(key))).collect();
        let mut trees = Vec::new();
        for root in version.roots() {
            let cursor = Cursor::seek(Tree::new(&region.log, region.number, root), key)?;
            let current = cursor.current();
            trees.push((cursor, current));
        }
        Ok(RegionCursor { region, memory, trees, _view: Arc::clone(view) })
    }

    fn levels(&mut self) -> impl Iterator<Item = &mut KnownKey> {
        let memory = self.memory.iter_mut().filter_map(|cursor| cursor.batch.front_mut());
        memory.chain(self.trees.iter_mut().filter_map(|(_, current)| current.as_mut()))
    }

    /// The next key that has a value, and where its record is.
    pub(crate) fn next(&mut self) -> Result<Option<KnownKey>> {
        loop {
            let Some(mut least) = self.take_least()? else { return Ok(None) };
            if least.pointer.kind() != PointerKind::Tombstone {
                self.region.log.complete(&mut least)?;
                return Ok(Some(least));
            }
        }
    }

    /// Takes the least key out of all levels: the newest level's entry of it.
    fn take_least(&mut self) -> Result<Option<KnownKey>> {
        let log = Arc::clone(&self.region.log);
        let mut least: Option<KnownKey> = None;
        for known in self.levels() {
            let is_less = match &mut least {
                Some(least) => log.compare(known, least)? == Ordering::Less,
                None => true,
            };
            if is_less {
                least = Some(known.clone());
            }
        }
        let Some(mut least) = least else { return Ok(None) };
        for cursor in &mut self.memory {
            if let Some(known) = cursor.batch.front_mut()
                && log.compare(known, &mut least)? == Ordering::Equal
            {
                cursor.advance();
            }
        }
        for (cursor, current) in &mut self.trees {
            if let Some(known) = current
                && log.compare(known, &mut least)? == Ordering::Equal
            {
                cursor.advance()?;
                *current = cursor.current();
            }
        }
        Ok(Some(least))
    }
}
