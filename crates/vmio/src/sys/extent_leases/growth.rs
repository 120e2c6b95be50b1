//! Appends without a system call: to blocks behind the end of the file, which the server has leased for that.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::slots::Slots;

const NO_SLOT: u32 = u32::MAX;
/// How often a thread tries while another one appends.
const ATTEMPTS_MAX: u32 = 1000;
/// How long the thread that takes the room away waits for one that appends. A signal may have interrupted that for good.
const APPENDED_WITHIN: Duration = Duration::from_secs(1);

/// The part of a file behind its end that this process may fill. One thread at a time appends.
pub(super) struct Growth {
    is_busy: AtomicBool,
    /// The end of the leased blocks, in bytes of the file; 0 for none.
    room_end: AtomicU64,
    slot: AtomicU32,
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
        Growth { is_busy: AtomicBool::new(false), room_end: AtomicU64::new(0), slot: AtomicU32::new(NO_SLOT) }
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

    /// Ends the room before its addresses are taken away.
    pub(super) fn end(&self) {
        let deadline = Instant::now() + APPENDED_WITHIN;
        let turn = loop {
            match self.turn() {
                None if Instant::now() < deadline => {}
                turn => break turn,
            }
        };
        self.room_end.store(0, Ordering::SeqCst);
        drop(turn);
    }

    /// Gives the slot back. The server looks at it no more.
    pub(super) fn give_slot_back(&self, slots: &Slots) {
        let slot = self.slot.swap(NO_SLOT, Ordering::AcqRel);
        if slot != NO_SLOT {
            slots.give_back(slot);
        }
    }
}

impl Turn<'_> {
    /// The bytes for which there is room behind an end, if this process has stored all before it.
    pub(super) fn room(&self, slots: &Slots, end: u64) -> u64 {
        let is_ours = self.slot().is_some_and(|slot| slots.length(slot).load(Ordering::Relaxed) == end);
        if is_ours { self.growth.room_end.load(Ordering::SeqCst).saturating_sub(end) } else { 0 }
    }

    fn slot(&self) -> Option<u32> {
        Some(self.growth.slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT)
    }

    /// The slot for more room behind an end: it says that the file is so long.
    pub(super) fn slot_for(&self, slots: &Slots, end: u64) -> Option<u32> {
        let slot = match self.slot() {
            Some(slot) => slot,
            None => {
                let slot = slots.take()?;
                self.growth.slot.store(slot, Ordering::Relaxed);
                slot
            }
        };
        slots.length(slot).store(end, Ordering::Release);
        Some(slot)
    }

    /// The server has leased blocks up to here, and they are mapped.
    pub(super) fn has_room_up_to(&self, end: u64) {
        self.growth.room_end.store(end, Ordering::SeqCst);
    }

    /// Bytes are stored up to an end: they are part of the file now. False if the room has been taken away meanwhile.
    pub(super) fn stored_up_to(&self, slots: &Slots, end: u64) -> bool {
        let is_there = self.growth.room_end.load(Ordering::SeqCst) >= end;
        if let Some(slot) = self.slot().filter(|_| is_there) {
            slots.length(slot).store(end, Ordering::Release);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_appends_and_nobody_waits_for_ever() {
        let growth = Growth::new();
        let turn = growth.turn();
        assert!(turn.is_some() && growth.turn().is_none());
        growth.end();
        drop(turn);
        assert!(growth.turn().is_some());
    }
}
