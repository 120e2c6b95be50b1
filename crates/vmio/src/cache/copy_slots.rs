//! Slots for a fixed number of copies of pages. The trap path takes them.

use std::io;

use crossbeam_queue::ArrayQueue;

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// The memory of the slots, and which of them are free. Slots are taken and given back without a lock.
pub(crate) struct CopySlots {
    memory: Reservation,
    free: ArrayQueue<u32>,
}

/// A slot for one copy, with one owner at a time.
pub(crate) struct Slot(u32);

impl Slot {
    /// The number of the slot.
    pub(crate) fn number(&self) -> u32 {
        self.0
    }

    /// The slot of this number. The caller takes over from an owner that has kept the number alone.
    pub(crate) fn of_number(number: u32) -> Self {
        Slot(number)
    }
}

impl CopySlots {
    /// Slots for this many copies. They take memory as they are used.
    pub(crate) fn new(slots: u32) -> io::Result<Self> {
        let mut memory = Reservation::zeroed(slots as usize * PAGE_BYTES, PAGE_BYTES)?;
        memory.leave_out_on_fork()?;
        let free = ArrayQueue::new(slots as usize);
        for slot in 0..slots {
            let _ = free.push(slot);
        }
        Ok(CopySlots { memory, free })
    }

    /// Takes a slot if one is free.
    pub(crate) fn take(&self) -> Option<Slot> {
        let slot = self.free.pop().map(Slot);
        debug_assert!(slot.as_ref().is_none_or(|slot| (slot.0 as usize) < self.free.capacity()));
        slot
    }

    /// Gives a slot back.
    pub(crate) fn give_back(&self, slot: Slot) {
        debug_assert!((slot.0 as usize) < self.free.capacity());
        let given_back = self.free.push(slot.0);
        debug_assert!(given_back.is_ok(), "a slot was given back twice");
    }

    /// The bytes of a copy.
    pub(crate) fn bytes<'a>(&'a self, slot: &'a mut Slot) -> &'a mut [u8] {
        let start = slot.0 as usize * PAGE_BYTES;
        assert!(start < self.memory.len(), "slot {} of {} bytes", slot.0, self.memory.len());
        // SAFETY: the slot lies in the memory, and is the caller's alone as long as the bytes are borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(start), PAGE_BYTES) }
    }
}
