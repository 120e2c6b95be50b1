//! Undo journals, one an area. A transaction writes the old bytes down, then the new ones in place, then that it is over.

pub(crate) mod recovery;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::format::geometry::Geometry;
use crate::format::journal_entry::{ENTRY_BYTES, JournalEntry, Said};
use crate::medium::Medium;
pub(crate) use transaction::Transaction;

/// The journals of a file system.
pub(crate) struct Journals {
    medium: Arc<dyn Medium>,
    rings: Vec<Mutex<Ring>>,
    /// The number of the next transaction, of all journals.
    next: AtomicU64,
}

/// A journal: entries in a ring, of which the newest transaction alone matters.
pub(crate) struct Ring {
    /// Where it begins, in bytes.
    at: u64,
    /// Entries that it has.
    entries: u64,
    /// Where the area keeps overwritten data, and how many bytes of it.
    saves_at: u64,
    save_bytes: u64,
    /// The place of the next entry.
    next: u64,
    lap: u16,
}

impl Ring {
    fn of(geometry: &Geometry, area: u32) -> Ring {
        Ring {
            at: geometry.journal_at(area),
            entries: geometry.journal_entries(),
            saves_at: geometry.saves_at(area),
            save_bytes: geometry.write_bytes_max() as u64,
            next: 0,
            lap: 0,
        }
    }

    /// The most entries of a transaction. Two of them fit the ring, so none overwrites a part of the one before it.
    fn most(&self) -> u64 {
        self.entries / 2 - 1
    }

    /// Writes an entry in the next place. It is durable at the next fence.
    fn append(&mut self, medium: &dyn Medium, transaction: u64, said: Said) {
        let entry = JournalEntry { transaction, lap: self.lap, said };
        medium.write(self.at + self.next * ENTRY_BYTES as u64, &entry.to_bytes());
        self.next += 1;
        if self.next == self.entries {
            (self.next, self.lap) = (0, self.lap.wrapping_add(1));
        }
    }
}

impl Journals {
    /// Begins a transaction in an area's journal. Until it ends, the journal has no other.
    pub(crate) fn begin(&self, area: u32) -> Transaction<'_> {
        let ring = self.rings[area as usize % self.rings.len()].lock();
        // The number comes after the lock: in a journal, numbers rise.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Transaction::new(&*self.medium, ring, number)
    }
}
