//! A pass of an evictor: what it is to achieve, and what it has achieved.

use std::ops::AddAssign;

use vmio_core::page::visit::{FifoQueue, Visit};

/// The number of victims that a pass aims at: FastMap's batch (§3.3).
pub(crate) const PASS_PAGES: usize = 512;
/// No page of the lower frequencies survives a visit that counts as this many.
pub(super) const VISIT_WEIGHT_MAX: u8 = 16;

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// Pages given back.
    pub(crate) freed: u32,
    /// Dirty pages written.
    pub(crate) written: u32,
    /// Of those, pages whose frames can be deactivated.
    pub(super) written_inactive: u32,
    /// Pages that failed to be written or unmapped.
    pub(crate) failed: u32,
    /// Spans looked at.
    pub(crate) spans: u32,
}

impl AddAssign for Pass {
    fn add_assign(&mut self, other: Pass) {
        self.freed += other.freed;
        self.written += other.written;
        self.written_inactive += other.written_inactive;
        self.failed += other.failed;
        self.spans += other.spans;
    }
}

/// The goal of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Give back clean pages, and write only where it is worth it. A visit has this `weight`, which is more than one after a
    /// pass that brought little.
    Evict { weight: u8 },
    /// Give back pages whatever it takes.
    EvictHard,
    /// Like `EvictHard`; if only pages below the floors of mappings are left, give back those.
    EvictBelowFloors,
    /// Write the oldest dirty pages, evict nothing.
    Clean,
}

impl Goal {
    /// The goal of an ordinary pass.
    pub(crate) const EVICT: Goal = Goal::Evict { weight: 1 };

    /// The goal after a pass with this one that brought little.
    pub(crate) fn harder(self) -> Self {
        match self {
            Goal::Evict { weight: weight @ ..VISIT_WEIGHT_MAX } => Goal::Evict { weight: weight * 4 },
            _ => Goal::EvictHard,
        }
    }

    /// The visit that a span gets with this goal.
    pub(super) fn visit(self, queue: Option<FifoQueue>) -> Visit {
        match self {
            Goal::Evict { weight } => Visit { queue, weight },
            _ if self.is_hard() => Visit::LAST,
            _ => Visit::ORDINARY,
        }
    }

    pub(super) fn is_hard(self) -> bool {
        matches!(self, Goal::EvictHard | Goal::EvictBelowFloors)
    }
}
