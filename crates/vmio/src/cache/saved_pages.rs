//! Copies of frozen pages that stores have made, on their way to the commit.

use std::io;

use crossbeam_queue::ArrayQueue;

use crate::cache::copy_slots::{CopySlots, Slot};
use crate::options::MappingOptions;

/// Copies that wait at a time (256 KiB); a store that finds no room waits for the commit to copy its page.
const SLOTS: u32 = 64;

/// A fixed number of copies, passed without a lock from stores to the thread that leads the commit.
pub(crate) struct SavedPages {
    pub(crate) slots: CopySlots,
    filled: ArrayQueue<SavedPage>,
}

/// A page that was copied.
pub(crate) struct SavedPage {
    pub(crate) page: u64,
    pub(crate) copy: Slot,
    /// Its pre-image, if it has one.
    pub(crate) pre_image: Option<Slot>,
}

impl SavedPages {
    /// For a mapping: `None` if its changes do not go to a journal.
    pub(crate) fn of(options: &MappingOptions) -> io::Result<Option<Self>> {
        let new = || Ok(SavedPages { slots: CopySlots::new(SLOTS)?, filled: ArrayQueue::new(SLOTS as usize) });
        options.journal.is_some().then(new).transpose()
    }

    /// Queues a copy for the commit.
    pub(crate) fn push(&self, saved: SavedPage) {
        let queued = self.filled.push(saved);
        debug_assert!(queued.is_ok(), "there are as many places as slots");
    }

    /// The next copy.
    pub(crate) fn next(&self) -> Option<SavedPage> {
        self.filled.pop()
    }
}
