//! Appends without a system call: to blocks behind the end of the file, which the server has leased for that.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vmio_pmfs_protocol::CLOSED;

use super::holder::Holder;
use super::medium_slot::MediumSlot;
use super::slots::Slots;

const NO_SLOT: u32 = u32::MAX;
/// How often a thread tries while another one appends.
const ATTEMPTS_MAX: u32 = 1000;
/// How long the thread that takes the room away rests between attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

thread_local! {
    /// Whether the thread stores while it keeps others from appending. Constant, so that a handler can look.
    static STORES_IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread stores while it keeps others from appending: its copies must not wait for leases.
pub(crate) fn stores_in_turn() -> bool {
    STORES_IN_TURN.get()
}

/// The part of a file behind its end that this process may fill. One thread at a time appends.
pub(super) struct Growth {
    is_busy: AtomicBool,
    /// The end of the leased blocks, in bytes of the file; 0 for none.
    room_end: AtomicU64,
    slot: AtomicU32,
    /// The slot of the room before, at which the server may still look.
    slot_before: AtomicU32,
    /// The word of the medium that says the length, where appends are durable. Null where a slot of memory says it.
    durable: AtomicPtr<AtomicU64>,
    /// The page that this word is in. It stays mapped until another word takes its place, in a turn.
    medium_slot: Mutex<Option<MediumSlot>>,
}

/// Until it is dropped, no other thread appends.
pub(super) struct Turn<'a> {
    growth: &'a Growth,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.growth.is_busy.store(false, Ordering::Release);
    }
}

impl Growth {
    pub(super) const fn new() -> Growth {
        Growth {
            is_busy: AtomicBool::new(false),
            room_end: AtomicU64::new(0),
            slot: AtomicU32::new(NO_SLOT),
            slot_before: AtomicU32::new(NO_SLOT),
            durable: AtomicPtr::new(ptr::null_mut()),
            medium_slot: Mutex::new(None),
        }
    }

    /// The word of the medium that says the length, if one does.
    fn durable_word(&self) -> Option<&AtomicU64> {
        // SAFETY: it is null, or of the page that `medium_slot` keeps mapped; that one is replaced in a turn, as this is called.
        unsafe { self.durable.load(Ordering::Acquire).as_ref() }
    }

    /// Waits a moment for the turn to append. Nothing if another thread keeps it, or this one does: a signal handler has interrupted it.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        for _ in 0..ATTEMPTS_MAX {
            if !self.is_busy.swap(true, Ordering::Acquire) {
                return Some(Turn { growth: self });
            }
            std::thread::yield_now();
        }
        None
    }

    /// Ends the room before its addresses are taken away. Nothing is appended by its slot any more.
    pub(super) fn end(&self, slots: &Slots) {
        // A thread that is in the middle would store over what others append next. If it never ends, the server takes everything from this process.
        let turn = loop {
            match self.turn() {
                Some(turn) => break turn,
                None => std::thread::sleep(AGAIN_AFTER),
            }
        };
        self.room_end.store(0, Ordering::SeqCst);
        let slot = self.slot.swap(NO_SLOT, Ordering::SeqCst);
        if let Some(word) = self.durable_word() {
            word.fetch_or(CLOSED, Ordering::SeqCst);
            self.durable.store(ptr::null_mut(), Ordering::SeqCst);
        }
        if slot != NO_SLOT {
            slots.length(slot).fetch_or(CLOSED, Ordering::SeqCst);
            let before = self.slot_before.swap(slot, Ordering::SeqCst);
            // The room of this one has ended long ago: the server has granted another one since.
            if before != NO_SLOT {
                slots.give_back(before);
            }
        }
        drop(turn);
    }

    /// Gives the slots back. The server looks at them no more.
    pub(super) fn give_slots_back(&self, slots: &Slots) {
        for slot in [&self.slot, &self.slot_before] {
            let slot = slot.swap(NO_SLOT, Ordering::AcqRel);
            if slot != NO_SLOT {
                slots.give_back(slot);
            }
        }
    }
}

impl Turn<'_> {
    /// The bytes for which there is room behind an end, if this process has stored all before it. With `durably`, that only a sync makes durable is no
    /// room.
    pub(super) fn room(&self, slots: &Slots, end: u64, durably: bool) -> u64 {
        let is_ours = self.word(slots).is_some_and(|word| word.load(Ordering::Relaxed) == end);
        if !is_ours || durably && self.durable_word().is_none() {
            return 0;
        }
        self.growth.room_end.load(Ordering::SeqCst).saturating_sub(end)
    }

    /// Makes a copy that fails where it meets a part without a lease. A lease may take until the server has others back, and the server may be waiting for
    /// the end of this turn.
    pub(super) fn without_leases<T>(&self, copy: impl FnOnce() -> T) -> T {
        let before = STORES_IN_TURN.replace(true);
        let copied = copy();
        STORES_IN_TURN.set(before);
        copied
    }

    fn slot(&self) -> Option<u32> {
        Some(self.growth.slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT)
    }

    /// The word that says how long the file is.
    fn word<'a>(&'a self, slots: &'a Slots) -> Option<&'a AtomicU64> {
        let slot = self.slot()?;
        Some(self.durable_word().unwrap_or_else(|| slots.length(slot)))
    }

    /// The word of the medium that says how long the file is, if one does: durable once it is written back.
    pub(super) fn durable_word(&self) -> Option<&AtomicU64> {
        self.growth.durable_word()
    }

    /// The slot for more room behind an end: it says that the file is so long. Nothing if another thread has appended since the caller knew the end.
    pub(super) fn slot_for(&self, slots: &Slots, end: u64) -> Option<u32> {
        let slot = match (self.slot(), self.word(slots)) {
            (Some(slot), Some(word)) if self.growth.room_end.load(Ordering::SeqCst) > 0 => {
                if word.load(Ordering::Relaxed) != end {
                    return None;
                }
                slot
            }
            // Nothing was appended by it.
            (Some(slot), _) => slot,
            (None, _) => {
                let slot = slots.take()?;
                self.growth.slot.store(slot, Ordering::Relaxed);
                slot
            }
        };
        slots.length(slot).store(end, Ordering::Release);
        Some(slot)
    }

    /// From now on a word of the medium says the length, or the slot of memory. False if the word cannot be mapped, or says another length than `end`.
    pub(super) fn says_lengths_at(&self, holder: &Holder, at: Option<u64>, end: u64) -> bool {
        let mut mapped = self.growth.medium_slot.lock().unwrap_or_else(PoisonError::into_inner);
        self.growth.durable.store(ptr::null_mut(), Ordering::SeqCst);
        let Some(at) = at else { return true };
        if mapped.as_ref().is_none_or(|mapped| !mapped.has(at)) {
            *mapped =
                MediumSlot::map(holder, at).inspect_err(|error| tracing::debug!(%error, "no durable appends")).ok();
        }
        let Some(word) = mapped.as_ref().map(|mapped| mapped.word(at)) else { return false };
        self.growth.durable.store(ptr::from_ref(word).cast_mut(), Ordering::SeqCst);
        word.load(Ordering::Acquire) == end
    }

    /// The server has leased blocks up to here, and they are mapped.
    pub(super) fn has_room_up_to(&self, end: u64) {
        self.growth.room_end.store(end, Ordering::SeqCst);
    }

    /// Bytes are stored from an end up to another: they are part of the file now. False if the room has been taken away meanwhile.
    pub(super) fn stored(&self, slots: &Slots, from: u64, to: u64) -> bool {
        let word = self.word(slots);
        word.is_some_and(|word| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::sys::PAGE_BYTES;

    fn slots() -> Slots {
        let memory = File::from(memfd_create("slots", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(PAGE_BYTES as u64).unwrap();
        Slots::new(&memory).unwrap()
    }

    #[test]
    fn one_thread_appends_and_others_do_not_wait_for_ever() {
        let growth = Growth::new();
        let turn = growth.turn();
        assert!(turn.is_some() && growth.turn().is_none());
        drop(turn);
        assert!(growth.turn().is_some());
    }

    #[test]
    fn an_end_that_is_old_lowers_no_length() {
        let (growth, slots) = (Growth::new(), slots());
        let turn = growth.turn().unwrap();
        let slot = turn.slot_for(&slots, 100).unwrap();
        turn.has_room_up_to(1000);
        assert_eq!((turn.room(&slots, 100, false), turn.room(&slots, 100, true)), (900, 0));
        assert!(turn.stored(&slots, 100, 150));
        assert_eq!((turn.room(&slots, 100, false), turn.slot_for(&slots, 100)), (0, None));
        assert_eq!(turn.slot_for(&slots, 150), Some(slot));
        drop(turn);
        growth.end(&slots);
        let turn = growth.turn().unwrap();
        // A thread that comes late finds the slot closed, and the next room has another one.
        assert!(!turn.stored(&slots, 150, 200));
        assert_ne!(turn.slot_for(&slots, 100), Some(slot));
        assert_eq!(slots.length(slot).load(Ordering::Relaxed), 150 | CLOSED);
    }
}
