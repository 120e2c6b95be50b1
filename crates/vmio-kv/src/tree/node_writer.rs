//! Writes the new nodes of a tree, each kind in runs of blocks, and keeps a list of them.

use std::mem;
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::format::block::Block;
use crate::format::child::Child;
use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::unit_table::Purpose;
use crate::volume::allocator::Cursor;
use crate::volume::block_runs::BlockRuns;
use crate::volume::segment::Segment;

/// The most nodes that are written together.
pub(crate) const RUN_BLOCKS_MAX: u64 = 64;

/// A kind of node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Leaf,
    Branch,
}

/// Where the nodes of a new tree go: the threads that write its parts take runs of the same units.
pub(super) struct NodeSpace<'segment> {
    pub(super) segment: &'segment Segment,
    pub(super) keyspace: u32,
    level: u8,
    leaves: Mutex<Cursor>,
    branches: Mutex<Cursor>,
}

impl<'segment> NodeSpace<'segment> {
    /// For a tree of a keyspace's level.
    pub(super) fn new(segment: &'segment Segment, keyspace: u32, level: u8) -> Self {
        NodeSpace { segment, keyspace, level, leaves: Mutex::default(), branches: Mutex::default() }
    }

    fn take_run(&self, which: Which) -> Result<Extent> {
        let (cursor, purpose) = match which {
            Which::Leaf => (&self.leaves, Purpose::Leaves(self.level)),
            Which::Branch => (&self.branches, Purpose::Branches(self.level)),
        };
        // The lock is held until a new unit has begun: no other thread gets blocks of it before.
        let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
        self.segment.take_nodes(&mut cursor, purpose, self.keyspace, RUN_BLOCKS_MAX)
    }
}

impl Drop for NodeSpace<'_> {
    fn drop(&mut self) {
        let mut allocator = self.segment.allocator();
        for cursor in [&mut self.leaves, &mut self.branches] {
            allocator.leave(cursor.get_mut().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Nodes that nothing refers to yet. A drop frees them, unless they are kept.
pub(super) struct TakenNodes<'segment> {
    segment: &'segment Segment,
    blocks: BlockRuns,
}

impl<'segment> TakenNodes<'segment> {
    pub(super) fn none(segment: &'segment Segment) -> Self {
        TakenNodes { segment, blocks: BlockRuns::default() }
    }

    /// Adds the nodes of another list.
    pub(super) fn append(&mut self, mut other: Self) {
        self.blocks.append(mem::take(&mut other.blocks));
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks.blocks()
    }

    /// Gives the nodes to the caller, which commits them.
    pub(super) fn keep(mut self) -> BlockRuns {
        mem::take(&mut self.blocks)
    }
}

impl Drop for TakenNodes<'_> {
    fn drop(&mut self) {
        self.segment.abandon(self.blocks.freed());
    }
}

/// A run of blocks, and the nodes for it that were not stored yet.
struct Run {
    taken: Extent,
    epoch: u64,
    nodes: Vec<Block>,
}

impl Run {
    fn none() -> Self {
        Run { taken: Extent { offset: 0, blocks: 0 }, epoch: 0, nodes: Vec::new() }
    }

    fn end(&self) -> u64 {
        self.taken.offset + (self.nodes.len() * BLOCK_BYTES) as u64
    }

    fn free_blocks(&self) -> u64 {
        self.taken.blocks - self.nodes.len() as u64
    }
}

/// Writes the nodes of a new tree, or of a part of it. A drop before [`Self::finish`] frees them.
pub(super) struct NodeWriter<'space> {
    space: &'space NodeSpace<'space>,
    leaves: Run,
    branches: Run,
    taken: TakenNodes<'space>,
}

impl<'space> NodeWriter<'space> {
    pub(super) fn new(space: &'space NodeSpace<'space>) -> Self {
        NodeWriter { space, leaves: Run::none(), branches: Run::none(), taken: TakenNodes::none(space.segment) }
    }

    /// Writes a node, which `seal` makes for a place and an epoch.
    pub(super) fn write(&mut self, which: Which, seal: impl FnOnce(u64, u64) -> Block) -> Result<Child> {
        let run = match which {
            Which::Leaf => &mut self.leaves,
            Which::Branch => &mut self.branches,
        };
        if run.free_blocks() == 0 {
            self.space.segment.device.store(run.taken.offset, &run.nodes)?;
            run.nodes.clear();
            run.taken = Extent { offset: 0, blocks: 0 };
            run.taken = self.space.take_run(which)?;
            // Later than the epoch of whatever these blocks had: a lost write leaves an older node.
            run.epoch = self.space.segment.next_epoch();
        }
        let offset = run.end();
        self.taken.blocks.push(offset);
        run.nodes.push(seal(offset, run.epoch));
        Ok(Child::new(offset, run.epoch))
    }

    /// Stores the remaining nodes.
    pub(super) fn finish(mut self) -> Result<TakenNodes<'space>> {
        for run in [&self.leaves, &self.branches] {
            self.space.segment.device.store(run.taken.offset, &run.nodes)?;
        }
        Ok(mem::replace(&mut self.taken, TakenNodes::none(self.space.segment)))
    }

    pub(super) fn space(&self) -> &'space NodeSpace<'space> {
        self.space
    }
}

impl Drop for NodeWriter<'_> {
    fn drop(&mut self) {
        let unused = [&self.leaves, &self.branches].map(|run| Freed { offset: run.end(), blocks: run.free_blocks() });
        self.space.segment.abandon(unused.into_iter().filter(|freed| freed.blocks > 0));
    }
}
