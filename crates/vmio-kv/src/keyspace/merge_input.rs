//! The inputs of merges: a memtable or a tree, whose entries are merged into the level below.

use std::collections::VecDeque;
use std::ops::Bound;

use crate::error::Result;
use crate::format::leaf::{Entry, KnownKey};
use crate::keyspace::memtable::{Memtable, NEWEST};
use crate::log::Log;
use crate::tree::{Cursor, Direction, MergeInput, Source, Tree};

/// How many entries are taken from a memtable at a time.
const BATCH: usize = 256;

impl MergeInput for Memtable {
    fn source(&self, from: &[u8]) -> Result<Box<dyn Source + '_>> {
        Ok(Box::new(MemtableSource { memtable: self, batch: VecDeque::new(), from: Bound::Included(from.to_vec()) }))
    }
}

struct MemtableSource<'memtable> {
    memtable: &'memtable Memtable,
    batch: VecDeque<KnownKey>,
    /// Where the next batch begins.
    from: Bound<Vec<u8>>,
}

impl MemtableSource<'_> {
    fn fill(&mut self) {
        if self.batch.is_empty() {
            let from = self.from.as_ref().map(Vec::as_slice);
            self.batch.extend(self.memtable.some(from, Direction::Up, NEWEST, BATCH).known);
            if let Some(last) = self.batch.back() {
                self.from = Bound::Excluded(last.bytes.clone());
            }
        }
    }
}

impl Source for MemtableSource<'_> {
    fn peek(&mut self) -> Result<Option<&mut KnownKey>> {
        self.fill();
        Ok(self.batch.front_mut())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        self.fill();
        Ok(self.batch.pop_front().map(Entry::to_record))
    }
}

impl MergeInput for Tree<'_> {
    fn source(&self, from: &[u8]) -> Result<Box<dyn Source + '_>> {
        let cursor = self.cursor(Bound::Included(from), Direction::Up)?;
        let mut source = TreeSource { cursor, current: None };
        source.find_current()?;
        Ok(Box::new(source))
    }
}

struct TreeSource<'log> {
    cursor: Cursor<&'log Log>,
    current: Option<Entry>,
}

impl TreeSource<'_> {
    fn find_current(&mut self) -> Result<()> {
        loop {
            self.current = self.cursor.next()?;
            if self.current.is_some() || self.cursor.take_skipped().is_none() {
                return Ok(());
            }
        }
    }
}

impl Source for TreeSource<'_> {
    fn peek(&mut self) -> Result<Option<&mut KnownKey>> {
        Ok(self.current.as_mut().map(|entry| &mut entry.key))
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        let current = self.current.take();
        if current.is_some() {
            self.find_current()?;
        }
        Ok(current)
    }
}
