//! Stores new nodes, those of a kind one behind the other, and remembers which they are.

use crate::error::Result;
use crate::format::block::Block;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::unit_table::Purpose;
use crate::volume::allocator::Cursor;
use crate::volume::segment::Segment;

/// Nodes that are stored together.
const RUN_BLOCKS_MAX: usize = 64;

/// The nodes of a tree that is being made. If it is dropped before [`Self::finish`], they are given back.
pub(crate) struct NodeWriter<'segment> {
    segment: &'segment Segment,
    pub(super) region: u32,
    pub(super) epoch: u64,
    leaves: Run,
    branches: Run,
    taken: Vec<u64>,
}

/// Nodes of one kind that lie together and are not stored yet.
struct Run {
    purpose: Purpose,
    cursor: Cursor,
    start: u64,
    blocks: Vec<Block>,
}

impl Run {
    fn new(purpose: Purpose) -> Self {
        Run { purpose, cursor: Cursor::default(), start: 0, blocks: Vec::new() }
    }

    fn end(&self) -> u64 {
        self.start + (self.blocks.len() * BLOCK_BYTES) as u64
    }
}

/// Which kind of node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Leaf,
    Branch,
}

impl<'segment> NodeWriter<'segment> {
    /// For a tree of that level of a region.
    pub(crate) fn new(segment: &'segment Segment, region: u32, level: u8) -> Self {
        NodeWriter {
            segment,
            region,
            epoch: segment.next_epoch(),
            leaves: Run::new(Purpose::Leaves(level)),
            branches: Run::new(Purpose::Branches(level)),
            taken: Vec::new(),
        }
    }

    /// Stores a node at the place that it is given, which it has to know to be sealed.
    pub(super) fn write(&mut self, which: Which, seal: impl FnOnce(u64) -> Block) -> Result<u64> {
        let run = match which {
            Which::Leaf => &mut self.leaves,
            Which::Branch => &mut self.branches,
        };
        let offset = self.segment.take_node(&mut run.cursor, run.purpose, self.region)?;
        self.taken.push(offset);
        if offset != run.end() || run.blocks.len() == RUN_BLOCKS_MAX {
            self.segment.device.store(run.start, &run.blocks)?;
            run.blocks.clear();
            run.start = offset;
        }
        run.blocks.push(seal(offset));
        Ok(offset)
    }

    /// How many nodes there are.
    pub(super) fn blocks(&self) -> usize {
        self.taken.len()
    }

    /// Stores what is left; the nodes are the caller's, to be committed or abandoned.
    pub(super) fn finish(mut self) -> Result<Vec<u64>> {
        for run in [&self.leaves, &self.branches] {
            self.segment.device.store(run.start, &run.blocks)?;
        }
        Ok(std::mem::take(&mut self.taken))
    }

    pub(super) fn segment(&self) -> &'segment Segment {
        self.segment
    }
}

impl Drop for NodeWriter<'_> {
    fn drop(&mut self) {
        let mut allocator = self.segment.allocator();
        allocator.leave(&mut self.leaves.cursor);
        allocator.leave(&mut self.branches.cursor);
        drop(allocator);
        self.segment.abandon(&self.taken);
    }
}
