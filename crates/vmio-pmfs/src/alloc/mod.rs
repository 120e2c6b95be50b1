//! Free blocks, in memory: for each area a list of aligned extents that are whole, and the runs of free blocks in those that are not.

mod area;
mod bits;
mod reserved;
mod used;

use std::ops::Range;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::geometry::{EXTENT_BLOCKS, Geometry};
use area::Area;
pub(crate) use reserved::Reserved;
pub(crate) use used::Used;

/// Blocks that follow each other on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.count
    }

    /// Its first blocks, as many as there are, and the others.
    pub(crate) fn split(&self, count: u64) -> (Run, Run) {
        let count = count.min(self.count);
        (Run { start: self.start, count }, Run { start: self.start + count, count: self.count - count })
    }
}

/// Runs as ranges that do not touch each other.
pub(crate) fn joined(mut runs: Vec<Run>) -> Vec<Range<u64>> {
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let touches = run.end() == next.start;
        run.count += if touches { next.count } else { 0 };
        touches
    });
    runs.into_iter().map(|run| run.start..run.end()).collect()
}

/// The free blocks of a file system.
pub(crate) struct Allocator {
    geometry: Geometry,
    areas: Vec<Mutex<Area>>,
}

/// How many blocks are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) blocks: u64,
    /// Those in aligned extents of which all blocks are free.
    pub(crate) aligned: u64,
}

impl Allocator {
    /// All blocks but those in use are free.
    pub(crate) fn new(geometry: &Geometry, used: &Used) -> Allocator {
        let area = |index| Mutex::new(Area::new(geometry.area(index).start / EXTENT_BLOCKS, used.free_of(index)));
        Allocator { geometry: *geometry, areas: (0..geometry.areas).map(area).collect() }
    }

    /// Takes blocks, `home` first: aligned extents for each 512, holes for the rest.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]; then it has taken none.
    pub(crate) fn allocate(&self, home: u32, count: u64) -> Result<Vec<Run>> {
        let mut taken: Vec<Run> = Vec::new();
        let mut left = count;
        while left > 0 {
            let run = match left >= EXTENT_BLOCKS {
                true => self.take_extent(home).or_else(|| self.take_hole(home, left)),
                false => self.take_hole(home, left),
            };
            let Some(run) = run else {
                taken.into_iter().for_each(|run| self.free(run));
                return Err(Error::NoSpace { wanted: count });
            };
            left -= run.count;
            match taken.last_mut() {
                Some(last) if last.end() == run.start => last.count += run.count,
                _ => taken.push(run),
            }
        }
        Ok(taken)
    }

    /// Gives blocks back. Nothing on the medium refers to them, not even after a crash.
    pub(crate) fn free(&self, run: Run) {
        if run.count > 0 {
            self.areas[self.geometry.area_of(run.start) as usize].lock().free(run);
        }
    }

    /// How many blocks are free.
    pub(crate) fn count(&self) -> Free {
        self.areas.iter().fold(Free::default(), |sum, area| {
            let area = area.lock();
            let aligned = sum.aligned + area.extents() * EXTENT_BLOCKS;
            Free {
                blocks: sum.blocks + area.extents() * EXTENT_BLOCKS + area.hole_blocks() + area.closed_blocks(),
                aligned,
            }
        })
    }

    /// All free blocks.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut all: Vec<Run> = Vec::new();
        for area in &self.areas {
            all.extend(area.lock().runs());
        }
        all
    }

    /// Closes up to this many broken extents, the emptiest first: nothing of them is given out. At least a sixteenth of each is free, and what is
    /// in use of them fits three quarters of the holes of the others.
    pub(crate) fn close_emptiest(&self, most: usize) -> Vec<u64> {
        let mut broken: Vec<(u64, u64, usize)> = Vec::new();
        for (index, area) in self.areas.iter().enumerate() {
            let pool = self.geometry.pool(index as u32);
            let is_in_pool =
                |extent: u64| pool.start <= extent * EXTENT_BLOCKS && (extent + 1) * EXTENT_BLOCKS <= pool.end;
            let broken_here = area.lock().broken().collect::<Vec<_>>();
            broken.extend(broken_here.into_iter().map(|(extent, free)| match is_in_pool(extent) {
                true => (free, extent, index),
                // It never becomes whole.
                false => (0, extent, index),
            }));
        }
        broken.sort_unstable_by(|one, other| other.cmp(one));
        let mut holes: u64 = self.areas.iter().map(|area| area.lock().hole_blocks()).sum();
        let (mut used, mut closed) = (0, Vec::new());
        for (free, extent, area) in broken.into_iter().take(most) {
            (holes, used) = (holes.saturating_sub(free), used + EXTENT_BLOCKS - free);
            if free < EXTENT_BLOCKS / 16 || used > holes / 4 * 3 {
                break;
            }
            // Others may have filled or freed it meanwhile.
            if self.areas[area].lock().close(extent) {
                closed.push(extent);
            }
        }
        closed
    }

    /// Gives out all extents again. Returns how many of those that were closed are whole.
    pub(crate) fn reopen(&self) -> u64 {
        self.areas.iter().map(|area| area.lock().reopen()).sum()
    }

    /// The free blocks from this one on, if they reach to the end of its aligned extent.
    pub(crate) fn take_rest(&self, block: u64) -> Option<Run> {
        self.areas[self.geometry.area_of(block) as usize].lock().take_rest(block)
    }

    /// An aligned extent of this area, else of the one that has most of them.
    pub(crate) fn take_extent(&self, home: u32) -> Option<Run> {
        self.first_local(home, Area::extents, Area::take_extent)
    }

    /// Up to `most` blocks from holes of this area, then of a broken extent of it, then of the area that has most.
    pub(crate) fn take_hole(&self, home: u32, most: u64) -> Option<Run> {
        let local = &self.areas[home as usize % self.areas.len()];
        if let Some(run) = local.lock().take_whole(most) {
            return Some(run);
        }
        self.first_local(home, Area::hole_blocks, |area| area.take_hole(most))
            .or_else(|| self.first_local(home, Area::extents, |area| area.break_extent(most)))
    }

    fn first_local(
        &self,
        home: u32,
        amount: impl Fn(&Area) -> u64,
        take: impl Fn(&mut Area) -> Option<Run>,
    ) -> Option<Run> {
        if let Some(run) = take(&mut self.areas[home as usize % self.areas.len()].lock()) {
            return Some(run);
        }
        // Others may take from it meanwhile; then the next one has most.
        loop {
            let (richest, amount) =
                self.areas.iter().map(|area| (area, amount(&area.lock()))).max_by_key(|(_, amount)| *amount)?;
            if amount == 0 {
                return None;
            }
            if let Some(run) = take(&mut richest.lock()) {
                return Some(run);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry { blocks: 8 * EXTENT_BLOCKS, areas: 2, inodes: 64, journal_blocks: 1, save_blocks: 1 }
    }

    /// A file system where these blocks are in use.
    fn with_used(runs: &[Run]) -> Result<Allocator> {
        let used = Used::new(&geometry());
        runs.iter().try_for_each(|run| used.add(*run))?;
        Ok(Allocator::new(&geometry(), &used))
    }

    #[test]
    fn large_requests_get_aligned_extents_and_small_ones_leave_them_whole() {
        let allocator = with_used(&[]).unwrap();
        let all = allocator.count();
        // Each area's first extent has the area's own parts, and the last one of all the superblock's copy.
        assert_eq!(all.aligned, 5 * EXTENT_BLOCKS);
        let large = allocator.allocate(0, EXTENT_BLOCKS).unwrap();
        assert!(large[0].start.is_multiple_of(EXTENT_BLOCKS) && large[0].count == EXTENT_BLOCKS);
        let small: Vec<Run> = (0..100).flat_map(|_| allocator.allocate(0, 3).unwrap()).collect();
        assert_eq!(allocator.count().aligned, 4 * EXTENT_BLOCKS);
        small.into_iter().chain(large).for_each(|run| allocator.free(run));
        assert_eq!(allocator.count(), all);
    }

    #[test]
    fn all_blocks_can_be_taken_once_and_come_back_whole() {
        let allocator = with_used(&[]).unwrap();
        let all = allocator.count();
        let mut runs = Vec::new();
        for size in (1..).map(|round| 1 + round * 37 % 700) {
            match allocator.allocate(1, size) {
                Ok(taken) => runs.extend(taken),
                Err(error) => {
                    assert!(matches!(error, Error::NoSpace { wanted } if wanted == size));
                    break;
                }
            }
        }
        runs.extend(allocator.allocate(0, allocator.count().blocks).unwrap());
        assert_eq!(allocator.count(), Free::default());
        runs.sort_unstable();
        assert!(runs.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), all.blocks);
        assert!(with_used(&runs).unwrap().count() == Free::default());
        runs.iter().for_each(|run| allocator.free(*run));
        assert_eq!(allocator.count(), all);
        runs.push(Run { start: runs[3].start, count: 1 });
        for wrong in [runs, vec![Run { start: 0, count: 1 }], vec![Run { start: u64::MAX - 1, count: 1 }]] {
            assert!(matches!(with_used(&wrong), Err(Error::Damaged { .. })));
        }
    }
}
