//! Visits: how a visit of the evictor treats a page.

use crate::page::snapshot::{FREQUENCY_MAX, Snapshot};

/// The queues of S3-FIFO. A page stands in one of them by its frequency, not by a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FifoQueue {
    /// The page is new, or was away for so long that it is as good as new.
    Small,
    /// The page came back soon, or was touched while it was inactive.
    Main,
}

impl FifoQueue {
    /// The queue of a page with this frequency.
    #[inline]
    pub fn of(frequency: u8) -> Self {
        if frequency == 0 { FifoQueue::Small } else { FifoQueue::Main }
    }
}

/// Which pages a visit is for, and how much it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The visit passes over pages of the other queue.
    pub queue: Option<FifoQueue>,
    /// The visit counts as this many, one at least.
    pub weight: u8,
}

impl Visit {
    /// One visit of any page.
    pub const ORDINARY: Visit = Visit { queue: None, weight: 1 };
    /// A visit that no page survives.
    pub const LAST: Visit = Visit { queue: None, weight: u8::MAX };

    /// The word of a page that stays: as before if the visit passes over it, else with fewer visits left. `None` if it
    /// goes.
    #[inline]
    pub fn survivor(self, word: Snapshot) -> Option<Snapshot> {
        if self.queue.is_some_and(|queue| queue != FifoQueue::of(word.frequency())) {
            return Some(word);
        }
        Some(word.with_history(word.history().checked_sub(self.weight)?))
    }
}

/// How many visits of the evictor a page of this frequency survives.
#[inline]
pub fn visits_of(frequency: u8) -> u8 {
    (1 << frequency.min(FREQUENCY_MAX)) - 1
}
