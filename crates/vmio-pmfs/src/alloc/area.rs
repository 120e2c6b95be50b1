//! The free blocks of an area.

use std::collections::{BTreeSet, VecDeque};

use super::Run;
use super::bits::Bits;
use crate::format::geometry::EXTENT_BLOCKS;

/// The free blocks of an area. Each aligned extent is whole, broken (some of its blocks are free) or full.
pub(super) struct Area {
    /// The number of the first aligned extent.
    first: u64,
    /// The free blocks of each.
    free: Vec<Bits>,
    /// Extents that are whole; taken at the front, given back at the end.
    whole: VecDeque<usize>,
    /// Extents that are broken, by their longest run of free blocks: a request takes the shortest run that has all of it.
    broken: BTreeSet<(u64, usize)>,
    broken_blocks: u64,
    /// Extents that are to become whole: nothing of them is given out.
    closed: BTreeSet<usize>,
    closed_blocks: u64,
}

impl Area {
    /// An area whose aligned extents from one on have these free blocks.
    pub(super) fn new(first: u64, free: Vec<Bits>) -> Area {
        let mut area = Area {
            first,
            free,
            whole: VecDeque::new(),
            broken: BTreeSet::new(),
            broken_blocks: 0,
            closed: BTreeSet::new(),
            closed_blocks: 0,
        };
        (0..area.free.len()).for_each(|index| area.insert(index));
        area
    }

    /// How many aligned extents are whole.
    pub(super) fn extents(&self) -> u64 {
        self.whole.len() as u64
    }

    /// How many blocks of closed extents are free.
    pub(super) fn closed_blocks(&self) -> u64 {
        self.closed_blocks
    }

    /// How many blocks of broken extents are free.
    pub(super) fn hole_blocks(&self) -> u64 {
        self.broken_blocks
    }

    /// All free blocks.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        (self.first..).zip(&self.free).flat_map(|(extent, bits)| {
            bits.runs().map(move |run| Run { start: extent * EXTENT_BLOCKS + run.start, count: run.end - run.start })
        })
    }

    pub(super) fn take_extent(&mut self) -> Option<Run> {
        let index = self.whole.pop_front()?;
        self.free[index] = Bits::default();
        Some(Run { start: (self.first + index as u64) * EXTENT_BLOCKS, count: EXTENT_BLOCKS })
    }

    /// `count` blocks in one piece of a broken extent.
    pub(super) fn take_whole(&mut self, count: u64) -> Option<Run> {
        let (_, index) = *self.broken.range((count, 0)..).next()?;
        Some(self.cut(index, count))
    }

    /// Up to `most` blocks of broken extents: all in one piece, else the longest piece that there is.
    pub(super) fn take_hole(&mut self, most: u64) -> Option<Run> {
        self.take_whole(most).or_else(|| {
            let index = self.broken.last()?.1;
            Some(self.cut(index, most))
        })
    }

    /// Up to `most` blocks of an aligned extent, which is broken then.
    pub(super) fn break_extent(&mut self, most: u64) -> Option<Run> {
        let index = self.whole.pop_front()?;
        Some(self.cut(index, most))
    }

    /// The free blocks from this one on, if they reach to the end of their extent.
    pub(super) fn take_rest(&mut self, block: u64) -> Option<Run> {
        let (index, from) = ((block / EXTENT_BLOCKS - self.first) as usize, block % EXTENT_BLOCKS);
        // Of a whole extent, nobody asks for the rest.
        self.free[index].runs().find(|run| run.contains(&from) && run.end == EXTENT_BLOCKS && run.start > 0)?;
        self.remove(index);
        self.free[index].clear(from..EXTENT_BLOCKS);
        self.insert(index);
        Some(Run { start: block, count: EXTENT_BLOCKS - from })
    }

    /// Adds free blocks.
    pub(super) fn free(&mut self, run: Run) {
        let mut at = run.start;
        while at < run.end() {
            let extent = at / EXTENT_BLOCKS;
            let end = run.end().min((extent + 1) * EXTENT_BLOCKS);
            let index = (extent - self.first) as usize;
            self.remove(index);
            self.free[index].set(at % EXTENT_BLOCKS..end - extent * EXTENT_BLOCKS);
            self.insert(index);
            at = end;
        }
    }

    /// The broken extents, and how many blocks of each are free.
    pub(super) fn broken(&self) -> impl Iterator<Item = (u64, u64)> {
        self.broken.iter().map(|(_, index)| (self.first + *index as u64, self.free[*index].count()))
    }

    /// Gives out nothing of an extent any more. False if it is not broken.
    pub(super) fn close(&mut self, extent: u64) -> bool {
        let index = (extent - self.first) as usize;
        let is_broken = self.broken.contains(&(self.free[index].longest(), index));
        if is_broken {
            self.remove(index);
            self.closed.insert(index);
            self.insert(index);
        }
        is_broken
    }

    /// Ends that for all extents. Returns how many are whole.
    pub(super) fn reopen(&mut self) -> u64 {
        let closed = std::mem::take(&mut self.closed);
        self.closed_blocks = 0;
        closed.iter().for_each(|index| self.insert(*index));
        closed.into_iter().filter(|index| self.free[*index].count() == EXTENT_BLOCKS).count() as u64
    }

    /// Takes up to `most` blocks in one piece of a broken extent.
    fn cut(&mut self, index: usize, most: u64) -> Run {
        self.remove(index);
        let run = self.free[index].best(most).unwrap_or_default();
        let count = most.min(run.end - run.start);
        self.free[index].clear(run.start..run.start + count);
        self.insert(index);
        Run { start: (self.first + index as u64) * EXTENT_BLOCKS + run.start, count }
    }

    /// Puts an extent where it belongs by its free blocks.
    fn insert(&mut self, index: usize) {
        match self.free[index].count() {
            count if self.closed.contains(&index) => self.closed_blocks += count,
            0 => (),
            EXTENT_BLOCKS => self.whole.push_back(index),
            count => {
                self.broken.insert((self.free[index].longest(), index));
                self.broken_blocks += count;
            }
        }
    }

    /// Takes an extent that is not whole out of where it is.
    fn remove(&mut self, index: usize) {
        if self.closed.contains(&index) {
            self.closed_blocks -= self.free[index].count();
        }
        if self.broken.remove(&(self.free[index].longest(), index)) {
            self.broken_blocks -= self.free[index].count();
        }
    }
}
