//! The parts of a mounted file system that every call needs.

use std::sync::Arc;

use super::growth_slots::GrowthSlots;
use super::lost_leases::LostLeases;
use crate::alloc::{Allocator, Reserved, Run};
use crate::data::Mode;
use crate::error::{Error, Result};
use crate::format::geometry::{EXTENT_BLOCKS, Geometry};
use crate::journal::Journals;
use crate::medium::Medium;

/// The parts of a mounted file system that every call needs.
pub(crate) struct Volume {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) geometry: Geometry,
    pub(crate) mode: Mode,
    pub(crate) journals: Journals,
    pub(crate) allocator: Allocator,
    pub(crate) lost: LostLeases,
    pub(crate) reserved: Reserved,
    pub(crate) slots: GrowthSlots,
}

impl Volume {
    /// The area of the processor that this thread runs on.
    pub(crate) fn home(&self) -> u32 {
        (rustix::thread::sched_getcpu() % self.geometry.areas as usize) as u32
    }

    /// Takes blocks, until the value is dropped or kept.
    pub(crate) fn take(&self, blocks: u64) -> Result<Taken<'_>> {
        let allocate = || self.allocator.allocate(self.home(), blocks);
        let runs = match allocate() {
            Err(Error::NoSpace { .. }) => {
                self.free(self.reserved.drain());
                self.allocator.reopen();
                allocate()
            }
            runs => runs,
        };
        Ok(Taken { allocator: &self.allocator, runs: runs? })
    }

    /// Takes blocks that become a file's from `block` on, behind all that it has: those of aligned extents where the file is aligned. `before` is
    /// where the block before lies. The rest of an extent is reserved for the file's next blocks.
    pub(crate) fn take_to_grow(&self, ino: u64, block: u32, count: u64, before: Option<u64>) -> Result<Taken<'_>> {
        // A process stores to what is reserved. These blocks are before that, in a hole.
        if self.reserved.is_leased(ino) {
            return self.take(count);
        }
        let mut taken = Taken { allocator: &self.allocator, runs: Vec::new() };
        let (mut next, mut before) = (u64::from(block), before);
        let end = next + count;
        while next < end {
            let in_extent = next % EXTENT_BLOCKS;
            let wanted = (end - next).min(EXTENT_BLOCKS - in_extent);
            let run = self.reserved.take(ino, next as u32, wanted).or_else(|| {
                let rest = match before {
                    _ if in_extent == 0 => self.allocator.take_extent(self.home()),
                    Some(before) if (before + 1) % EXTENT_BLOCKS == in_extent => self.allocator.take_rest(before + 1),
                    _ => None,
                }?;
                let (run, kept) = rest.split(wanted);
                if kept.count > 0 {
                    self.free(self.reserved.put(ino, (next + wanted) as u32, kept));
                }
                Some(run)
            });
            let runs = run.map_or_else(|| self.take(wanted), |run| Ok(self.taken(run)))?;
            before = runs.runs.last().map(|run| run.end() - 1);
            taken.join(runs);
            next = u64::from(block) + taken.blocks();
        }
        Ok(taken)
    }

    /// Reserves blocks that a file is to get from `block` on, behind all that it has, and that a process stores to before: up to `most` of a hole,
    /// or what is left of an aligned extent. Nothing if no block is free.
    pub(crate) fn lease_to_grow(&self, ino: u64, block: u32, most: Option<u64>, before: Option<u64>) -> Option<Run> {
        if let Some(run) = self.reserved.lease(ino, block) {
            return Some(run);
        }
        // A process may still store to what is leased for other blocks.
        if self.reserved.is_leased(ino) {
            return None;
        }
        let in_extent = u64::from(block) % EXTENT_BLOCKS;
        let run = match (most, before) {
            (None, _) if in_extent == 0 => self.allocator.take_extent(self.home()),
            (None, Some(before)) if (before + 1) % EXTENT_BLOCKS == in_extent => self.allocator.take_rest(before + 1),
            _ => None,
        };
        let most = most.unwrap_or(EXTENT_BLOCKS - in_extent);
        let run = run.or_else(|| self.allocator.take_hole(self.home(), most))?;
        let (run, rest) = run.split(u64::from(u32::MAX - block));
        self.free([rest].into_iter().filter(|rest| rest.count > 0));
        self.free(self.reserved.put(ino, block, run));
        self.reserved.lease(ino, block)
    }

    /// Takes an aligned extent, if there is one.
    pub(crate) fn take_extent(&self) -> Option<Taken<'_>> {
        self.allocator.take_extent(self.home()).map(|run| self.taken(run))
    }

    /// Takes blocks of extents that are broken already.
    pub(crate) fn take_holes(&self, blocks: u64) -> Result<Taken<'_>> {
        let mut taken = Taken { allocator: &self.allocator, runs: Vec::new() };
        while taken.blocks() < blocks {
            let left = blocks - taken.blocks();
            let run = self.allocator.take_hole(self.home(), left).ok_or(Error::NoSpace { wanted: blocks })?;
            taken.join(self.taken(run));
        }
        Ok(taken)
    }

    fn taken(&self, run: Run) -> Taken<'_> {
        Taken { allocator: &self.allocator, runs: vec![run] }
    }

    /// Gives back what is reserved for a file to grow into.
    pub(crate) fn give_back_reserved(&self, ino: u64) {
        self.free(self.reserved.remove(ino));
    }

    /// Gives blocks back that no transaction refers to any more. Those that a process may still store to go to nobody before it is gone.
    pub(crate) fn free(&self, runs: impl IntoIterator<Item = Run>) {
        let free = runs.into_iter().flat_map(|run| self.lost.keep(run));
        free.for_each(|run| self.allocator.free(run));
    }
}

/// Blocks that go back if they are not kept.
pub(crate) struct Taken<'volume> {
    allocator: &'volume Allocator,
    pub(crate) runs: Vec<Run>,
}

impl Taken<'_> {
    /// How many there are.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Adds blocks behind these.
    pub(crate) fn join(&mut self, mut others: Self) {
        for run in others.runs.drain(..) {
            match self.runs.last_mut() {
                Some(last) if last.end() == run.start => last.count += run.count,
                _ => self.runs.push(run),
            }
        }
    }

    /// The file system refers to them now.
    pub(crate) fn keep(mut self) {
        self.runs.clear();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.allocator.free(run));
    }
}
