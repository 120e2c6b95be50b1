//! Lists of blocks, as runs.
//!
//! A tree's nodes lie one behind the other, and a compacted tree is freed as a whole. A list of its single blocks would grow with the tree,
//! to many megabytes; its runs are few.

use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::geometry::unit_of;

/// Blocks in the order in which they were added. No run goes beyond an allocation unit.
#[derive(Debug, Default)]
pub(crate) struct BlockRuns {
    runs: Vec<Extent>,
    blocks: u64,
}

impl BlockRuns {
    /// Adds a block.
    pub(crate) fn push(&mut self, offset: u64) {
        self.push_run(Extent { offset, blocks: 1 });
    }

    /// Adds a run. It is joined with the last one if it begins where that ends.
    pub(crate) fn push_run(&mut self, run: Extent) {
        self.blocks += run.blocks;
        match self.runs.last_mut() {
            Some(last) if last.offset + last.bytes() == run.offset && unit_of(last.offset) == unit_of(run.offset) => {
                last.blocks += run.blocks;
            }
            _ => self.runs.push(run),
        }
    }

    /// Adds all blocks of another list.
    pub(crate) fn append(&mut self, other: Self) {
        other.runs.into_iter().for_each(|run| self.push_run(run));
    }

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The runs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.runs.iter().copied()
    }

    /// The runs, to be freed.
    pub(crate) fn freed(&self) -> impl Iterator<Item = Freed> + '_ {
        self.iter().map(Freed::from)
    }
}

impl Extend<u64> for BlockRuns {
    fn extend<Offsets: IntoIterator<Item = u64>>(&mut self, offsets: Offsets) {
        offsets.into_iter().for_each(|offset| self.push(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BLOCK_BYTES};

    #[test]
    fn neighbours_within_a_unit_are_one_run() {
        let offset = |unit: u64, block: u64| unit * ALLOCATION_UNIT_BYTES + block * BLOCK_BYTES as u64;
        let mut runs = BlockRuns::default();
        runs.extend((ALLOCATION_UNIT_BLOCKS - 3..ALLOCATION_UNIT_BLOCKS).map(|block| offset(1, block)));
        runs.extend((0..2).map(|block| offset(2, block)));
        let mut others = BlockRuns::default();
        others.extend([offset(2, 3), offset(2, 2)]);
        runs.append(others);
        let run = |unit, block, blocks| Extent { offset: offset(unit, block), blocks };
        let wanted = [run(1, ALLOCATION_UNIT_BLOCKS - 3, 3), run(2, 0, 2), run(2, 3, 1), run(2, 2, 1)];
        assert_eq!(runs.iter().collect::<Vec<_>>(), wanted);
        assert_eq!(runs.blocks(), 7);
    }
}
