//! The free blocks of an area.

use std::collections::{BTreeMap, VecDeque};

use super::Run;
use crate::format::geometry::EXTENT_BLOCKS;

/// The free blocks of an area. No hole has an aligned extent in it: those are in the list.
#[derive(Default)]
pub(super) struct Area {
    /// First blocks of aligned extents; taken at the front, given back at the end.
    extents: VecDeque<u64>,
    /// Lengths of holes by first block.
    holes: BTreeMap<u64, u64>,
    hole_blocks: u64,
}

impl Area {
    pub(super) fn extents(&self) -> u64 {
        self.extents.len() as u64
    }

    pub(super) fn hole_blocks(&self) -> u64 {
        self.hole_blocks
    }

    /// All free blocks: aligned extents and holes.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        let extents = self.extents.iter().map(|start| Run { start: *start, count: EXTENT_BLOCKS });
        extents.chain(self.holes.iter().map(|(start, count)| Run { start: *start, count: *count }))
    }

    pub(super) fn take_extent(&mut self) -> Option<Run> {
        self.extents.pop_front().map(|start| Run { start, count: EXTENT_BLOCKS })
    }

    /// `count` blocks in one piece, from the first hole that has them.
    pub(super) fn take_whole(&mut self, count: u64) -> Option<Run> {
        let start = self.holes.iter().find(|(_, length)| **length >= count).map(|(start, _)| *start)?;
        Some(self.cut(start, count))
    }

    /// Up to `most` blocks, from the first hole that has all, else the first.
    pub(super) fn take_hole(&mut self, most: u64) -> Option<Run> {
        self.take_whole(most).or_else(|| {
            let (start, length) = self.holes.first_key_value().map(|(start, length)| (*start, *length))?;
            Some(self.cut(start, length.min(most)))
        })
    }

    /// Up to `most` blocks of an aligned extent, the rest of which becomes a hole.
    pub(super) fn break_extent(&mut self, most: u64) -> Option<Run> {
        let extent = self.take_extent()?;
        let count = most.min(EXTENT_BLOCKS);
        let rest = Run { start: extent.start + count, count: EXTENT_BLOCKS - count };
        if rest.count > 0 {
            self.add_hole(rest);
        }
        Some(Run { start: extent.start, count })
    }

    /// Adds free blocks, merged with their neighbours. Aligned extents that have become whole go to the list.
    pub(super) fn free(&mut self, run: Run) {
        let Run { mut start, count } = run;
        let mut end = start + count;
        if count == 0 {
            return;
        }
        if let Some((before, length)) = self.holes.range(..start).next_back().map(|(start, length)| (*start, *length))
            && before + length == start
        {
            self.remove_hole(before);
            start = before;
        }
        if let Some(length) = self.holes.get(&end).copied() {
            self.remove_hole(end);
            end += length;
        }
        let first = start.next_multiple_of(EXTENT_BLOCKS);
        let last = end / EXTENT_BLOCKS * EXTENT_BLOCKS;
        if first >= last {
            return self.add_hole(Run { start, count: end - start });
        }
        self.extents.extend((first..last).step_by(EXTENT_BLOCKS as usize));
        for (start, end) in [(start, first), (last, end)].into_iter().filter(|(start, end)| start < end) {
            self.add_hole(Run { start, count: end - start });
        }
    }

    fn cut(&mut self, start: u64, count: u64) -> Run {
        let length = self.remove_hole(start);
        if length > count {
            self.add_hole(Run { start: start + count, count: length - count });
        }
        Run { start, count }
    }

    fn add_hole(&mut self, run: Run) {
        let overlapped = self.holes.insert(run.start, run.count);
        debug_assert!(overlapped.is_none(), "block {} is free twice", run.start);
        self.hole_blocks += run.count;
    }

    fn remove_hole(&mut self, start: u64) -> u64 {
        let length = self.holes.remove(&start).unwrap_or_default();
        self.hole_blocks -= length;
        length
    }
}
