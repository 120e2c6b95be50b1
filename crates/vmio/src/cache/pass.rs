//! A pass of an evictor: what it is to achieve, and what it has achieved.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use vmio_core::page::visit::{FrequencyClass, Visit};

/// The number of victims that a pass aims at: FastMap's batch (§3.3).
pub(crate) const PASS_PAGES: usize = 512;
/// For this many rounds with failed writes, evictors keep the floors of mappings. A fault gives up later.
const FAILED_ROUNDS_ABOVE_FLOORS: u32 = 8;
/// No page of the lower frequencies survives a visit that counts as this many.
const VISITS_MAX: u8 = 16;
/// For this long without a page gained, evictors keep the floors of mappings.
pub(super) const PATIENCE_ABOVE_FLOORS: Duration = Duration::from_millis(128);

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
    /// Give back clean pages, and write only where it is worth it. A visit counts as `visits`, which is more than one after a
    /// pass that brought little.
    Evict { visits: u8 },
    /// Give back pages whatever it takes.
    EvictHard,
    /// Like `EvictHard`; if only pages below the floors of mappings are left, give back those.
    EvictBelowFloors,
    /// Write the oldest dirty pages, evict nothing.
    Clean,
}

impl Goal {
    /// The goal of an ordinary pass.
    pub(crate) const EVICT: Goal = Goal::Evict { visits: 1 };

    /// The goal after a pass with this one that brought little.
    pub(crate) fn harder(self) -> Self {
        match self {
            Goal::Evict { visits: visits @ ..VISITS_MAX } => Goal::Evict { visits: visits * 4 },
            _ => Goal::EvictHard,
        }
    }

    /// The visit that a span gets with this goal.
    pub(super) fn visit(self, queue: Option<FrequencyClass>) -> Visit {
        match self {
            Goal::Evict { visits } => Visit { queue, weight: visits },
            _ if self.is_hard() => Visit::LAST,
            _ => Visit::ORDINARY,
        }
    }

    /// The goal of a thread that has gained no page since `since`, in `idle_rounds` rounds. In the last `failed_rounds` of
    /// them, writes failed.
    pub(crate) fn after(idle_rounds: u32, failed_rounds: u32, since: Instant) -> Self {
        match idle_rounds {
            0 => Goal::EVICT,
            1 => Goal::Evict { visits: VISITS_MAX },
            _ if failed_rounds > FAILED_ROUNDS_ABOVE_FLOORS => Goal::EvictBelowFloors,
            _ if since.elapsed() > PATIENCE_ABOVE_FLOORS => Goal::EvictBelowFloors,
            _ => Goal::EvictHard,
        }
    }

    pub(super) fn is_hard(self) -> bool {
        matches!(self, Goal::EvictHard | Goal::EvictBelowFloors)
    }
}
