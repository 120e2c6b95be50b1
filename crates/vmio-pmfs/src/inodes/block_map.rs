//! The map from a file's blocks to those of the medium.
//!
//! On the medium an extent keeps its place, in the inode or in a block of its chain, and the order of places means nothing. So a change
//! of the map changes a few places. In memory an ordered index says which place has which blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::alloc::Run;
use crate::error::{Damage, Error, Result};
use crate::format::chain::{self, CHAIN_EXTENTS};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, Geometry, MAP_CHANGES_MAX};
use crate::format::inode::{Extent, INLINE_EXTENTS, Inode};
use crate::journal::Transaction;
use crate::medium::Medium;

/// Blocks of a file that are there, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Blocks of the medium.
    There {
        /// The first of them.
        run: Run,
        /// Whether all of them are of aligned extents, aligned in the file too: huge pages can map them.
        is_aligned: bool,
    },
    /// Nothing, which reads as zeros.
    Hole {
        /// How many blocks.
        count: u64,
    },
}

impl Piece {
    pub(crate) fn count(&self) -> u64 {
        match self {
            Piece::There { run, .. } => run.count,
            Piece::Hole { count } => *count,
        }
    }
}

/// The blocks of a file.
#[derive(Default)]
pub(crate) struct BlockMap {
    /// Each place: those of the inode, then those of the chain.
    places: Vec<Extent>,
    /// Places in use, by first block of the file.
    by_block: BTreeMap<u32, usize>,
    free: BTreeSet<usize>,
    /// Places that differ from the medium.
    changed: BTreeSet<usize>,
    /// The blocks of the chain.
    chain: Vec<u64>,
    /// Whether the next changes save blocks of the chain as a whole and overwrite them.
    is_rewritten: bool,
}

impl BlockMap {
    /// Reads an inode's map.
    pub(crate) fn load(medium: &dyn Medium, geometry: &Geometry, ino: u64, inode: &Inode) -> Result<BlockMap> {
        let mut map = BlockMap { places: inode.extents.to_vec(), ..BlockMap::default() };
        let (mut next, mut seen) = (inode.chain, BTreeSet::new());
        while next != 0 {
            let at = next.saturating_mul(BLOCK_BYTES);
            // A chain that comes back to itself would have no end.
            if next >= geometry.blocks || !seen.insert(next) {
                let damage = Damage::Field { field: "next block", found: next };
                return Err(Error::Damaged { structure: "a chain of extents", at: geometry.inode_at(ino), damage });
            }
            let mut block = [0; BLOCK_BYTES as usize];
            medium.read(at, &mut block);
            let (after, extents) = chain::from_block(ino, &block, at)?;
            map.chain.push(next);
            map.places.extend(extents);
            next = after;
        }
        let damaged = |found| {
            let damage = Damage::Field { field: "extent at block", found };
            Error::Damaged { structure: "an inode", at: geometry.inode_at(ino), damage }
        };
        for (place, extent) in map.places.iter().enumerate() {
            if extent.count == 0 {
                map.free.insert(place);
            } else if extent.file_block.checked_add(extent.count).is_none()
                || extent.start.checked_add(extent.count.into()).is_none_or(|end| end > geometry.blocks)
                || map.by_block.insert(extent.file_block, place).is_some()
            {
                return Err(damaged(extent.file_block.into()));
            }
        }
        let (mut end, mut blocks) = (0, 0);
        for (first, place) in &map.by_block {
            let count = map.places[*place].count;
            blocks += u64::from(count);
            // Each has a block of its own. Who walks all blocks of a file has an end.
            if *first < end || blocks > geometry.blocks {
                return Err(damaged((*first).into()));
            }
            end = first + count;
        }
        Ok(map)
    }

    /// All blocks that the file has, those of its chain among them.
    pub(crate) fn all_runs(&self) -> Vec<Run> {
        let chain = self.chain.iter().map(|block| Run { start: *block, count: 1 });
        self.extents().map(|extent| Run { start: extent.start, count: extent.count.into() }).chain(chain).collect()
    }

    /// The extents, by their place in the file.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.by_block.values().map(|place| &self.places[*place])
    }

    /// The blocks of the chain.
    pub(crate) fn chain(&self) -> &[u64] {
        &self.chain
    }

    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> u64 {
        self.extents().map(|extent| u64::from(extent.count)).sum::<u64>() + self.chain.len() as u64
    }

    /// The block behind the last one that is there.
    pub(crate) fn end(&self) -> u32 {
        self.by_block.last_key_value().map_or(0, |(first, place)| first + self.places[*place].count)
    }

    /// The piece of a file from a block on, up to `most` blocks.
    pub(crate) fn piece(&self, block: u32, most: u64) -> Piece {
        let before = self.by_block.range(..=block).next_back().map(|(_, place)| self.places[*place]);
        if let Some(extent) = before.filter(|extent| block - extent.file_block < extent.count) {
            let ahead = u64::from(block - extent.file_block);
            let left = u64::from(extent.count) - ahead;
            let (is_aligned, same) = aligned(&extent, block);
            return Piece::There {
                run: Run { start: extent.start + ahead, count: left.min(most).min(same) },
                is_aligned,
            };
        }
        let next = self.by_block.range(block..).next().map_or(u64::MAX, |(first, _)| u64::from(first - block));
        Piece::Hole { count: next.min(most) }
    }

    /// The blocks of the medium that some of the file's have.
    pub(crate) fn runs_of(&self, blocks: Range<u32>) -> Vec<Run> {
        let mut runs = Vec::new();
        let first = self.by_block.range(..blocks.start).next_back().map_or(blocks.start, |(first, _)| *first);
        for (start, place) in self.by_block.range(first..blocks.end.max(first)) {
            let extent = self.places[*place];
            let (from, to) = (blocks.start.max(*start), blocks.end.min(start + extent.count));
            if from < to {
                runs.push(Run { start: extent.start + u64::from(from - start), count: (to - from).into() });
            }
        }
        runs
    }

    /// Whether some blocks of a range are not there.
    pub(crate) fn has_hole(&self, blocks: &Range<u32>) -> bool {
        let there: u64 = self.runs_of(blocks.clone()).iter().map(|run| run.count).sum();
        there < blocks.len() as u64
    }

    /// How many aligned extents it has, aligned in the file too.
    pub(crate) fn aligned_extents(&self) -> u64 {
        let of = |extent: &Extent| {
            let aligned = aligned_blocks(extent);
            aligned.end.saturating_sub(aligned.start) / EXTENT_BLOCKS
        };
        self.extents().map(of).sum()
    }

    /// Whether a block is of an aligned extent that is not whole yet, since the file ends in it.
    pub(crate) fn is_growing(&self, block: u32) -> bool {
        self.by_block.last_key_value().is_some_and(|(first, place)| {
            let (extent, begin) = (self.places[*place], u64::from(block) / EXTENT_BLOCKS * EXTENT_BLOCKS);
            let is_in = (*first..first + extent.count).contains(&block);
            is_in && u64::from(*first) <= begin && extent.start % EXTENT_BLOCKS == u64::from(*first) % EXTENT_BLOCKS
        })
    }

    /// Whether blocks of the file lie in an extent that has others before and behind them.
    pub(crate) fn is_inside_one(&self, blocks: &Range<u32>) -> bool {
        let before = self.by_block.range(..blocks.start).next_back().map(|(_, place)| self.places[*place]);
        before.is_some_and(|extent| extent.file_block + extent.count > blocks.end)
    }

    /// Whether the extent before a block ends at it, and on the medium at this block.
    pub(crate) fn goes_on_at(&self, block: u32, start: u64) -> bool {
        let before = self.by_block.range(..block).next_back().map(|(_, place)| self.places[*place]);
        before.is_some_and(|last| last.file_block + last.count == block && last.start + u64::from(last.count) == start)
    }

    /// Whether this number of further extents needs another block of the chain.
    pub(crate) fn is_short_of(&self, extents: usize) -> bool {
        self.free.len() < extents
    }

    /// Adds a block to the chain. It is written with the next changes.
    pub(crate) fn extend_chain(&mut self, block: u64) {
        self.chain.push(block);
        let first = self.places.len();
        self.places.resize(first + CHAIN_EXTENTS, Extent::default());
        self.free.extend(first..first + CHAIN_EXTENTS);
        // Its checksum, and the one before that names it.
        self.changed.insert(first);
        if first > INLINE_EXTENTS {
            self.changed.insert(first - 1);
        }
    }

    /// Gives blocks of the file other blocks of the medium, or none. Returns what they had.
    ///
    /// The map has room for as many extents as there are runs, and one more if the blocks lie inside one.
    pub(crate) fn replace(&mut self, blocks: Range<u32>, runs: &[Run]) -> Vec<Run> {
        let freed = self.clear(blocks.clone());
        let mut next = blocks.start;
        for run in runs {
            let extent = Extent { file_block: next, count: run.count as u32, start: run.start };
            next += run.count as u32;
            self.insert(extent);
        }
        freed
    }

    fn clear(&mut self, blocks: Range<u32>) -> Vec<Run> {
        let mut freed = Vec::new();
        let first = self.by_block.range(..blocks.start).next_back().map_or(blocks.start, |(first, _)| *first);
        let touched: Vec<usize> = self.by_block.range(first..blocks.end).map(|(_, place)| *place).collect();
        for place in touched {
            let extent = self.places[place];
            let (start, end) = (extent.file_block, extent.file_block + extent.count);
            let (from, to) = (start.max(blocks.start), end.min(blocks.end));
            if from >= to {
                continue;
            }
            freed.push(Run { start: extent.start + u64::from(from - start), count: (to - from).into() });
            self.changed.insert(place);
            self.by_block.remove(&start);
            let behind = Extent { file_block: to, count: end - to, start: extent.start + u64::from(to - start) };
            match (start < from, to < end) {
                (true, _) => {
                    self.places[place].count = from - start;
                    self.by_block.insert(start, place);
                    if to < end {
                        self.add(behind);
                    }
                }
                (false, true) => {
                    self.places[place] = behind;
                    self.by_block.insert(to, place);
                }
                (false, false) => {
                    self.places[place] = Extent::default();
                    self.free.insert(place);
                }
            }
        }
        freed
    }

    /// Adds an extent, or makes the one before it longer.
    fn insert(&mut self, extent: Extent) {
        let before = self.by_block.range(..extent.file_block).next_back().map(|(_, place)| *place);
        if let Some(place) = before {
            let last = &mut self.places[place];
            if last.file_block + last.count == extent.file_block && last.start + u64::from(last.count) == extent.start {
                last.count += extent.count;
                self.changed.insert(place);
                return;
            }
        }
        self.add(extent);
    }

    fn add(&mut self, extent: Extent) {
        let place = self.free.pop_first();
        debug_assert!(place.is_some(), "no place for an extent");
        if let Some(place) = place {
            self.places[place] = extent;
            self.by_block.insert(extent.file_block, place);
            self.changed.insert(place);
        }
    }

    /// How many blocks of a new chain the next changes need: nothing if they are few.
    pub(crate) fn new_chain_wanted(&self) -> Option<usize> {
        let places = self.by_block.len().saturating_sub(INLINE_EXTENTS);
        let is_empty = places == 0 && !self.chain.is_empty();
        (is_empty || self.changed.len() > MAP_CHANGES_MAX).then(|| places.div_ceil(CHAIN_EXTENTS))
    }

    /// Puts all extents side by side, in a new chain of these blocks. Returns the old one.
    pub(crate) fn renew(&mut self, blocks: Vec<u64>) -> Vec<Run> {
        let mut places: Vec<Extent> = self.extents().copied().collect();
        let used = places.len();
        places.resize(INLINE_EXTENTS + blocks.len() * CHAIN_EXTENTS, Extent::default());
        self.by_block = places[..used].iter().enumerate().map(|(place, extent)| (extent.file_block, place)).collect();
        self.free = (used..places.len()).collect();
        self.changed = (INLINE_EXTENTS..places.len()).step_by(CHAIN_EXTENTS).collect();
        self.places = places;
        let old = std::mem::replace(&mut self.chain, blocks);
        old.into_iter().map(|block| Run { start: block, count: 1 }).collect()
    }

    /// Puts all extents side by side, in the first blocks of the chain. Returns its others.
    pub(crate) fn renew_in_place(&mut self, blocks: usize) -> Vec<Run> {
        let mut kept = self.chain.clone();
        let rest = kept.split_off(blocks.min(kept.len()));
        self.renew(kept);
        self.is_rewritten = true;
        rest.into_iter().map(|block| Run { start: block, count: 1 }).collect()
    }

    /// Puts the changes into a transaction and the inode, which the caller writes. Nothing refers yet to blocks of the chain in `fresh`.
    pub(crate) fn store(&mut self, transaction: &mut Transaction<'_>, ino: u64, inode: &mut Inode, fresh: &[u64]) {
        inode.extents.copy_from_slice(&self.places[..INLINE_EXTENTS]);
        inode.chain = self.chain.first().copied().unwrap_or(0);
        let changed: BTreeSet<usize> = std::mem::take(&mut self.changed)
            .into_iter()
            .filter_map(|place| Some(place.checked_sub(INLINE_EXTENTS)? / CHAIN_EXTENTS))
            .collect();
        for index in changed.into_iter().filter(|index| *index < self.chain.len()) {
            let first = INLINE_EXTENTS + index * CHAIN_EXTENTS;
            let next = self.chain.get(index + 1).copied().unwrap_or(0);
            let block = chain::to_block(ino, next, &self.places[first..first + CHAIN_EXTENTS]);
            let at = self.chain[index] * BLOCK_BYTES;
            match fresh.contains(&self.chain[index]) {
                true => transaction.fresh(at, &block),
                false if self.is_rewritten => transaction.overwrite(at, &block),
                false => transaction.set(at, &block),
            }
        }
        self.is_rewritten = false;
    }
}

/// The blocks of the file that are of whole aligned extents.
pub(crate) fn aligned_blocks(extent: &Extent) -> Range<u64> {
    let (first, end) = (u64::from(extent.file_block), u64::from(extent.file_block) + u64::from(extent.count));
    match extent.start % EXTENT_BLOCKS == first % EXTENT_BLOCKS {
        true => first.next_multiple_of(EXTENT_BLOCKS)..end / EXTENT_BLOCKS * EXTENT_BLOCKS,
        false => 0..0,
    }
}

/// Whether a block of an extent is of an aligned extent, and how many blocks from it on are the same.
fn aligned(extent: &Extent, block: u32) -> (bool, u64) {
    let Range { start: from, end: to } = aligned_blocks(extent);
    let block = u64::from(block);
    match block {
        _ if from >= to || block >= to => (false, u64::MAX),
        _ if block < from => (false, from - block),
        _ => (true, to - block),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> BlockMap {
        let places = vec![Extent::default(); INLINE_EXTENTS];
        BlockMap { places, free: (0..INLINE_EXTENTS).collect(), ..BlockMap::default() }
    }

    fn run(start: u64, count: u64) -> Run {
        Run { start, count }
    }

    #[test]
    fn blocks_are_replaced_in_the_middle_and_merged_at_the_end() {
        let mut map = map();
        assert_eq!(map.replace(0..10, &[run(100, 10)]), []);
        assert_eq!(map.replace(10..12, &[run(110, 2)]), []);
        assert_eq!(map.by_block.len(), 1, "an append in place makes the extent longer");
        assert_eq!(map.replace(3..5, &[run(50, 2)]), [run(103, 2)]);
        let extents: Vec<_> = map.extents().map(|one| (one.file_block, one.count, one.start)).collect();
        assert_eq!(extents, [(0, 3, 100), (3, 2, 50), (5, 7, 105)]);
        assert_eq!(map.replace(2..6, &[]), [run(102, 1), run(50, 2), run(105, 1)]);
        assert_eq!(map.piece(1, 99), Piece::There { run: run(101, 1), is_aligned: false });
        assert_eq!(map.piece(2, 99), Piece::Hole { count: 4 });
        assert_eq!(map.piece(2, 3), Piece::Hole { count: 3 });
        assert_eq!(map.end(), 12);
        assert_eq!(map.blocks(), 8);
    }

    #[test]
    fn aligned_extents_are_known_as_such() {
        let mut map = map();
        map.replace(500..2000, &[run(512 * 7 + 500, 1500)]);
        assert_eq!(map.piece(500, 9999), Piece::There { run: run(512 * 7 + 500, 12), is_aligned: false });
        assert_eq!(map.piece(512, 9999), Piece::There { run: run(512 * 8, 1024), is_aligned: true });
        assert_eq!(map.piece(1536, 9999), Piece::There { run: run(512 * 10, 464), is_aligned: false });
        map.replace(4096..4096 + 512, &[run(513, 512)]);
        assert_eq!(map.piece(4096, 9999), Piece::There { run: run(513, 512), is_aligned: false });
    }
}
