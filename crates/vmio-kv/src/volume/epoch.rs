//! Reclamation epochs tell when blocks that a commit has retired may be used again.
//!
//! A version of a keyspace refers to nodes and records. The commit that makes the next version retires some of them, which readers of
//! earlier versions may still look at. Each version holds a reclamation epoch, and each epoch holds the next one. So an epoch ends only
//! after all before it, and the blocks retired at its end come free then.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::format::free_log::Freed;

/// The blocks that have lost their last reader.
#[derive(Default)]
pub(crate) struct ReclaimableBlocks(Mutex<Vec<Freed>>);

impl ReclaimableBlocks {
    /// Takes all blocks without readers.
    pub(crate) fn take(&self) -> Vec<Freed> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, freed: &mut Vec<Freed>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(freed);
    }
}

/// Blocks that a commit has retired. They become [`ReclaimableBlocks`] when the last reclamation epoch that ended with them has no readers. That is
/// one keyspace's epoch for its nodes, and all keyspaces' epochs for chunks of the log.
pub(crate) struct RetiredBlocks {
    reclaimable: Arc<ReclaimableBlocks>,
    freed: Vec<Freed>,
}

impl RetiredBlocks {
    pub(crate) fn new(reclaimable: &Arc<ReclaimableBlocks>, freed: Vec<Freed>) -> Arc<Self> {
        Arc::new(RetiredBlocks { reclaimable: Arc::clone(reclaimable), freed })
    }
}

impl Drop for RetiredBlocks {
    fn drop(&mut self) {
        self.reclaimable.put(&mut self.freed);
    }
}

/// The time between two commits of a keyspace.
#[derive(Default)]
pub(crate) struct ReclamationEpoch {
    ending: OnceLock<(Arc<RetiredBlocks>, Arc<ReclamationEpoch>)>,
}

impl ReclamationEpoch {
    /// The first epoch.
    pub(crate) fn first() -> Arc<ReclamationEpoch> {
        Arc::default()
    }

    /// Ends the epoch with the blocks that its last commit has retired, and begins the next one.
    pub(crate) fn end(&self, retired: Arc<RetiredBlocks>) -> Arc<ReclamationEpoch> {
        let next = ReclamationEpoch::first();
        let ended = self.ending.set((retired, Arc::clone(&next)));
        assert!(ended.is_ok(), "a reclamation epoch ends once");
        next
    }
}

impl Drop for ReclamationEpoch {
    fn drop(&mut self) {
        let mut ending = self.ending.take();
        // In a loop: a long chain of epochs must not end by recursion.
        while let Some((retired, next)) = ending {
            drop(retired);
            ending = Arc::into_inner(next).and_then(|mut next| next.ending.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(offset: u64) -> Vec<Freed> {
        vec![Freed { offset, blocks: 1 }]
    }

    #[test]
    fn retired_blocks_wait_for_all_earlier_readers() {
        let reclaimable = Arc::new(ReclaimableBlocks::default());
        let first = ReclamationEpoch::first();
        let second = first.end(RetiredBlocks::new(&reclaimable, freed(1)));
        let third = second.end(RetiredBlocks::new(&reclaimable, freed(2)));
        drop(second);
        assert_eq!(reclaimable.take(), vec![], "a reader of the first may look at both");
        drop(first);
        assert_eq!(reclaimable.take(), [freed(1), freed(2)].concat());
        drop(third);
        assert_eq!(reclaimable.take(), vec![]);
    }

    #[test]
    fn a_later_reader_does_not_hold_earlier_blocks() {
        let reclaimable = Arc::new(ReclaimableBlocks::default());
        let first = ReclamationEpoch::first();
        let second = first.end(RetiredBlocks::new(&reclaimable, freed(1)));
        drop(first);
        assert_eq!(reclaimable.take(), freed(1));
        drop(second);
    }

    #[test]
    fn a_long_chain_ends_without_recursion() {
        let reclaimable = Arc::new(ReclaimableBlocks::default());
        let first = ReclamationEpoch::first();
        let mut last = Arc::clone(&first);
        for number in 0..1_000_000 {
            last = last.end(RetiredBlocks::new(&reclaimable, freed(number)));
        }
        drop((first, last));
        assert_eq!(reclaimable.take().len(), 1_000_000);
    }

    #[test]
    fn chunks_wait_for_the_readers_of_all_keyspaces() {
        let reclaimable = Arc::new(ReclaimableBlocks::default());
        let (left, right) = (ReclamationEpoch::first(), ReclamationEpoch::first());
        let chunk = RetiredBlocks::new(&reclaimable, freed(1));
        let _next = (left.end(Arc::clone(&chunk)), right.end(Arc::clone(&chunk)));
        drop((chunk, left));
        assert_eq!(reclaimable.take(), vec![]);
        drop(right);
        assert_eq!(reclaimable.take(), freed(1));
    }
}
