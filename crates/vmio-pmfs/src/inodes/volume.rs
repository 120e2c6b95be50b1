//! The parts of a mounted file system that every call needs.

use std::sync::Arc;

use super::lost_leases::LostLeases;
use crate::alloc::{Allocator, Run};
use crate::error::Result;
use crate::format::geometry::Geometry;
use crate::journal::Journals;
use crate::medium::Medium;

/// The parts of a mounted file system that every call needs.
pub(crate) struct Volume {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) geometry: Geometry,
    pub(crate) journals: Journals,
    pub(crate) allocator: Allocator,
    pub(crate) lost: LostLeases,
}

impl Volume {
    /// The area of the processor that this thread runs on.
    pub(crate) fn home(&self) -> u32 {
        (rustix::thread::sched_getcpu() % self.geometry.areas as usize) as u32
    }

    /// Takes blocks, until the value is dropped or kept.
    pub(crate) fn take(&self, blocks: u64) -> Result<Taken<'_>> {
        Ok(Taken { allocator: &self.allocator, runs: self.allocator.allocate(self.home(), blocks)? })
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
