//! Appends without a system call: to blocks behind the end of the file, which the server has leased for that.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use vmio_pmfs_protocol::{CLOSED, Ending, LengthWord, Room, SEED_OF_MEMORY, Turn as RoomTurn, sealed};

use super::holder::Holder;
use super::medium_slot::MediumSlot;
use super::slots::Slots;

const NO_SLOT: u32 = u32::MAX;
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
    room: Room,
    slot: AtomicU32,
    /// The slot of the room before, at which the server may still look.
    slot_before: AtomicU32,
    /// The word of the medium that says the length, where appends are durable. Null where a slot of memory says it.
    durable: AtomicPtr<AtomicU64>,
    /// The seed of that word.
    seed: AtomicU32,
    /// The page that this word is in. It stays mapped until another word takes its place, in a turn.
    medium_slot: Mutex<Option<MediumSlot>>,
}

/// Until it is dropped, no other thread appends.
pub(super) struct Turn<'a> {
    growth: &'a Growth,
    turn: RoomTurn<'a>,
}

/// The word of shared memory that says a length.
fn word_of_memory(slots: &Slots, slot: u32) -> LengthWord<'_> {
    LengthWord { word: slots.length(slot), seed: SEED_OF_MEMORY }
}

impl Growth {
    pub(super) fn new() -> Growth {
        Growth {
            room: Room::default(),
            slot: AtomicU32::new(NO_SLOT),
            slot_before: AtomicU32::new(NO_SLOT),
            durable: AtomicPtr::new(ptr::null_mut()),
            seed: AtomicU32::new(SEED_OF_MEMORY),
            medium_slot: Mutex::new(None),
        }
    }

    /// The word of the medium that says the length, if one does.
    fn durable_word(&self) -> Option<LengthWord<'_>> {
        // SAFETY: it is null, or of the page that `medium_slot` keeps mapped; that one is replaced in a turn with the lock, and this is called in a turn or
        // with the lock.
        let word = unsafe { self.durable.load(Ordering::Acquire).as_ref()? };
        Some(LengthWord { word, seed: self.seed.load(Ordering::Relaxed) })
    }

    /// Waits a moment for the turn to append. Nothing if another thread keeps it, or this one does: a signal handler has interrupted it.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        Some(Turn { growth: self, turn: self.room.turn()? })
    }

    /// The addresses are about to show the kernel's page cache, where bytes behind the end are in no file. So no append counts that is not over.
    pub(super) fn leave(&self) {
        self.room.leave();
    }

    /// Whether [`Self::leave`] was called: the addresses may show the page cache by now.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.room.is_left()
    }

    /// Whether a thread may still store by a turn for whose end [`Self::end`] has not waited: nobody maps anything for it until then.
    pub(super) fn is_abandoned(&self) -> bool {
        self.room.is_abandoned()
    }

    /// Ends the room before its addresses are taken away. Nothing is appended by its slot any more. False if a thread is in the middle of an append, and does
    /// not go on: it may still store wherever the addresses let it.
    pub(super) fn end(&self, slots: &Slots) -> bool {
        let ending = self.room.turn_or_abandon();
        if let Ending::InTurn(turn) = &ending {
            turn.reaches(0);
        }
        // Without a turn, that thread may replace the page.
        let page = self.medium_slot.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slot.swap(NO_SLOT, Ordering::SeqCst);
        if let Some(word) = self.durable_word() {
            word.close();
            self.durable.store(ptr::null_mut(), Ordering::SeqCst);
        }
        let is_over = matches!(ending, Ending::InTurn(_));
        if let Some(page) = page.as_ref().filter(|_| !is_over) {
            page.take_away();
        }
        drop(page);
        if slot != NO_SLOT {
            word_of_memory(slots, slot).close();
            let before = self.slot_before.swap(slot, Ordering::SeqCst);
            // The room of this one has ended long ago: the server has granted another one since. A turn that was abandoned then may still have it.
            if before != NO_SLOT && !matches!(ending, Ending::WasAbandoned) {
                slots.give_back(before);
            }
        }
        is_over
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
        match self.word(slots) {
            Some(word) if !durably || self.growth.durable_word().is_some() => self.turn.behind(word, end),
            _ => 0,
        }
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
    fn word<'a>(&'a self, slots: &'a Slots) -> Option<LengthWord<'a>> {
        let slot = self.slot()?;
        Some(self.growth.durable_word().unwrap_or_else(|| word_of_memory(slots, slot)))
    }

    /// The word of the medium that says how long the file is, if one does: durable once it is written back.
    pub(super) fn durable_word(&self) -> Option<&AtomicU64> {
        self.growth.durable_word().map(|word| word.word)
    }

    /// Whether the server may have refused what was appended durably: it has closed the word.
    pub(super) fn may_have_lost(&self) -> bool {
        self.growth.durable_word().is_some_and(|word| word.is_closed())
    }

    /// The slot for more room behind an end: it says that the file is so long. Nothing if another thread has appended since the caller knew the end.
    pub(super) fn slot_for(&self, slots: &Slots, end: u64) -> Option<u32> {
        let slot = match (self.slot(), self.word(slots)) {
            (Some(slot), Some(word)) if self.turn.end() > 0 => {
                if !word.says(end) {
                    return None;
                }
                slot
            }
            // Nothing was appended by it.
            (Some(slot), _) => slot,
            (None, _) => {
                // There was room in this very turn, if others have gone on without it.
                self.turn.reaches(0);
                let slot = slots.take()?;
                // The server does not look at it yet. It may be closed from its last use.
                slots.length(slot).store(sealed(end, SEED_OF_MEMORY), Ordering::Release);
                self.growth.slot.store(slot, Ordering::Relaxed);
                slot
            }
        };
        let (word, length) = (slots.length(slot), sealed(end, SEED_OF_MEMORY));
        let now = word.load(Ordering::Acquire);
        // One that the server has closed stays closed: the bytes behind the end are not this process's any more.
        let is_open =
            now & CLOSED == 0 && word.compare_exchange(now, length, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_open.then_some(slot)
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
        let Some(mapped) = mapped.as_ref() else { return false };
        let word = LengthWord { word: mapped.word(at), seed: mapped.seed(at) };
        self.growth.seed.store(word.seed, Ordering::SeqCst);
        self.growth.durable.store(ptr::from_ref(word.word).cast_mut(), Ordering::SeqCst);
        word.says(end)
    }

    /// The server has leased blocks up to here, and they are mapped.
    pub(super) fn has_room_up_to(&self, end: u64) {
        self.turn.reaches(end);
    }

    /// Bytes are stored from an end up to another: they are part of the file now. False if the room has been taken away meanwhile.
    pub(super) fn stored(&self, slots: &Slots, from: u64, to: u64) -> bool {
        self.word(slots).is_some_and(|word| self.turn.stored(word, from, to))
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
    fn what_is_stored_while_the_addresses_are_left_does_not_count() {
        let (growth, slots) = (Growth::new(), slots());
        let turn = growth.turn().unwrap();
        turn.slot_for(&slots, 100).unwrap();
        turn.has_room_up_to(1000);
        assert!(turn.stored(&slots, 100, 150));
        assert!(!growth.is_left());
        growth.leave();
        assert!(growth.is_left());
        assert!(!turn.stored(&slots, 150, 200));
        assert_eq!(slots.length(0).load(Ordering::Relaxed), sealed(150, SEED_OF_MEMORY));
    }

    #[test]
    fn after_a_turn_that_was_abandoned_there_is_room_again() {
        let (growth, slots) = (Growth::new(), slots());
        let turn = growth.turn().unwrap();
        let slot = turn.slot_for(&slots, 100).unwrap();
        turn.has_room_up_to(1000);
        assert!(!growth.end(&slots) && growth.is_abandoned());
        assert!(!turn.stored(&slots, 100, 150));
        // Others append meanwhile, and a lease fails.
        let other = turn.slot_for(&slots, 200).unwrap();
        assert_ne!(other, slot);
        drop(turn);
        assert!(!growth.is_abandoned());
        let turn = growth.turn().unwrap();
        assert_eq!(turn.slot_for(&slots, 300), Some(other));
        turn.has_room_up_to(1000);
        assert!(turn.stored(&slots, 300, 350));
        assert_eq!(slots.length(slot).load(Ordering::Relaxed), sealed(100, SEED_OF_MEMORY) | CLOSED);
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
        assert_eq!(slots.length(slot).load(Ordering::Relaxed), sealed(150, SEED_OF_MEMORY) | CLOSED);
    }

    #[test]
    fn a_slot_that_the_server_has_closed_stays_closed() {
        let (growth, slots) = (Growth::new(), slots());
        let turn = growth.turn().unwrap();
        let slot = turn.slot_for(&slots, 100).unwrap();
        // The server does so before this process has got any room.
        slots.length(slot).fetch_or(CLOSED, Ordering::SeqCst);
        assert_eq!(turn.slot_for(&slots, 100), None);
        assert_eq!(slots.length(slot).load(Ordering::Relaxed), sealed(100, SEED_OF_MEMORY) | CLOSED);
    }
}
