//! Frozen pages that a store has copied first, on their way to the commit.

use std::io;
use std::ptr;

use crossbeam_queue::ArrayQueue;

use crate::cache::region::Region;
use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// Copies that wait at a time (256 KiB); a store that finds no room waits for the commit to copy its page.
const SLOTS: usize = 64;

/// A fixed number of copies, handed from stores to who leads the commit without a lock.
pub(crate) struct SavedPages {
    memory: Reservation,
    free: ArrayQueue<Slot>,
    filled: ArrayQueue<(Slot, u64)>,
}

/// Room for a copy, for one owner at a time.
pub(crate) struct Slot(usize);

impl SavedPages {
    pub(crate) fn new() -> io::Result<Self> {
        let mut memory = Reservation::zeroed(SLOTS * PAGE_BYTES, PAGE_BYTES)?;
        memory.leave_out_on_fork()?;
        let free = ArrayQueue::new(SLOTS);
        for slot in 0..SLOTS {
            let _ = free.push(Slot(slot));
        }
        Ok(SavedPages { memory, free, filled: ArrayQueue::new(SLOTS) })
    }

    /// Takes a slot if one is free.
    pub(crate) fn take(&self) -> Option<Slot> {
        self.free.pop()
    }

    /// Gives a slot back.
    pub(crate) fn give_back(&self, slot: Slot) {
        let _ = self.free.push(slot);
    }

    /// Copies a page of ours (its word is busy), which is protected, and hands it over.
    pub(crate) fn save(&self, region: &Region, page: u64, slot: Slot) {
        // SAFETY: the slot is ours alone, and so is the page, by its word: it stays resident, and is readable.
        unsafe {
            let target = self.memory.base().add(slot.0 * PAGE_BYTES);
            ptr::copy_nonoverlapping(region.address(page) as *const u8, target, PAGE_BYTES);
        }
        let _ = self.filled.push((slot, page));
    }

    /// The next copy, with its page.
    pub(crate) fn next(&self) -> Option<(Slot, u64)> {
        self.filled.pop()
    }

    /// The bytes of a copy.
    pub(crate) fn bytes<'a>(&'a self, slot: &'a mut Slot) -> &'a mut [u8] {
        // SAFETY: the slot lies in the memory, and is the caller's alone as long as the bytes are borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(slot.0 * PAGE_BYTES), PAGE_BYTES) }
    }
}
