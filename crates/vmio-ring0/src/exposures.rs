//! How often each frame of a pool is exposed. A system call may use an exposed frame for longer than its page has it, so a frame that is given back
//! meanwhile becomes free at the end of its last exposure.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::frames::Frame;
use crate::lock::{Lock, Taken};
use crate::managed::Rights;
use crate::memory::{Memory, PAGE_BYTES};

/// Bits of a count.
const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// The page has given the frame back.
const GIVEN_BACK: u64 = 1 << 63;

/// A word for each frame, zeros at first.
pub(crate) struct Exposures {
    words: Memory,
    frames: u32,
    /// Held while exposures of a page begin and end, so that the page outside is as the counts say. By threads that have signals blocked.
    lock: Lock,
}

/// The exposures of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts(u64);

/// Which exposures a count is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// For loads, at the page's address.
    Loads,
    /// For loads and stores, at the page's address.
    Stores,
    /// Of those that are nowhere any more, but have not ended.
    Withdrawn,
}

impl Of {
    fn with(rights: Rights) -> Of {
        match rights {
            Rights::Read => Of::Loads,
            Rights::ReadWrite => Of::Stores,
        }
    }

    fn shift(self) -> u32 {
        match self {
            Of::Loads => 0,
            Of::Stores => COUNT_BITS,
            Of::Withdrawn => 2 * COUNT_BITS,
        }
    }
}

impl Counts {
    fn count(self, of: Of) -> u64 {
        self.0 >> of.shift() & COUNT_MAX
    }

    fn changed(self, of: Of, by: i64) -> Counts {
        let count = self.count(of).checked_add_signed(by).filter(|count| *count <= COUNT_MAX);
        debug_assert!(count.is_some(), "{by} exposures {of:?} more than {self:?}");
        let count = count.unwrap_or(self.count(of));
        Counts(self.0 & !(COUNT_MAX << of.shift()) | count << of.shift())
    }

    /// How the page is to be seen outside, if at all.
    pub(crate) fn rights(self) -> Option<Rights> {
        match (self.count(Of::Loads), self.count(Of::Stores)) {
            (0, 0) => None,
            (_, 0) => Some(Rights::Read),
            _ => Some(Rights::ReadWrite),
        }
    }

    fn is_none(self) -> bool {
        self.rights().is_none() && self.count(Of::Withdrawn) == 0
    }
}

impl Exposures {
    /// Of a pool of this many frames.
    pub(crate) fn none(frames: u32) -> Result<Exposures> {
        let len = (frames as usize * size_of::<u64>()).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        Ok(Exposures { words: Memory::reserve(len, PAGE_BYTES)?, frames, lock: Lock::new() })
    }

    /// Keeps exposures from beginning and ending.
    pub(crate) fn lock(&self) -> Taken<'_> {
        self.lock.take()
    }

    /// The counts of a frame.
    pub(crate) fn counts(&self, frame: Frame) -> Counts {
        Counts(self.word(frame).load(Ordering::Acquire))
    }

    /// Counts one more; returns the counts before and after.
    pub(crate) fn begin(&self, frame: Frame, rights: Rights) -> (Counts, Counts) {
        self.change(frame, |counts| counts.changed(Of::with(rights), 1))
    }

    /// Counts one less; returns the counts before and after.
    pub(crate) fn end(&self, frame: Frame, rights: Rights) -> (Counts, Counts) {
        self.change(frame, |counts| counts.changed(Of::with(rights), -1))
    }

    /// Counts one as withdrawn; returns the counts before and after.
    pub(crate) fn withdraw(&self, frame: Frame, rights: Rights) -> (Counts, Counts) {
        self.change(frame, |counts| counts.changed(Of::with(rights), -1).changed(Of::Withdrawn, 1))
    }

    /// Counts all as withdrawn; returns the counts before and after.
    pub(crate) fn withdraw_all(&self, frame: Frame) -> (Counts, Counts) {
        self.change(frame, |counts| {
            let (loads, stores) = (counts.count(Of::Loads) as i64, counts.count(Of::Stores) as i64);
            counts.changed(Of::Loads, -loads).changed(Of::Stores, -stores).changed(Of::Withdrawn, loads + stores)
        })
    }

    /// Counts one withdrawn exposure less. True if it was the last one of a frame that was given back: that is free now.
    pub(crate) fn let_go(&self, frame: Frame) -> bool {
        let ended = |counts: Counts| {
            let left = counts.changed(Of::Withdrawn, -1);
            if left.is_none() { Counts(left.0 & !GIVEN_BACK) } else { left }
        };
        let (before, after) = self.change(frame, ended);
        before.0 & GIVEN_BACK != 0 && after.0 & GIVEN_BACK == 0
    }

    /// Notes that a page has given its frame back. False if the frame is not exposed, and free at once.
    pub(crate) fn keep(&self, frame: Frame) -> bool {
        // Nearly always.
        if self.counts(frame) == Counts(0) {
            return false;
        }
        let noted = |counts: Counts| if counts.is_none() { Counts(0) } else { Counts(counts.0 | GIVEN_BACK) };
        self.change(frame, noted).1.0 & GIVEN_BACK != 0
    }

    fn change(&self, frame: Frame, next: impl Fn(Counts) -> Counts) -> (Counts, Counts) {
        let word = self.word(frame);
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let after = next(Counts(seen));
            match word.compare_exchange_weak(seen, after.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (Counts(seen), after),
                Err(now) => seen = now,
            }
        }
    }

    fn word(&self, frame: Frame) -> &AtomicU64 {
        assert!(frame.0 < self.frames);
        // SAFETY: the memory has a word for each frame, all of them atomic, and lives as long as this.
        unsafe { &*(self.words.base() as *const AtomicU64).add(frame.0 as usize) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_kept_until_its_last_exposure_has_ended() {
        let (exposures, frame) = (Exposures::none(3).unwrap(), Frame(2));
        assert!(!exposures.keep(frame), "nobody has it");
        assert_eq!(exposures.begin(frame, Rights::Read).1.rights(), Some(Rights::Read));
        assert_eq!(exposures.begin(frame, Rights::ReadWrite).1.rights(), Some(Rights::ReadWrite));
        assert_eq!(exposures.withdraw(frame, Rights::ReadWrite).1.rights(), Some(Rights::Read));
        assert_eq!(exposures.withdraw_all(frame).1.rights(), None);
        assert!(exposures.keep(frame));
        assert!(!exposures.let_go(frame), "another has it");
        assert!(exposures.let_go(frame));
        assert!(!exposures.keep(frame), "it is as at first");
    }

    #[test]
    fn a_frame_whose_page_still_has_it_is_not_free() {
        let (exposures, frame) = (Exposures::none(1).unwrap(), Frame(0));
        exposures.begin(frame, Rights::Read);
        exposures.withdraw(frame, Rights::Read);
        assert!(!exposures.let_go(frame));
        exposures.begin(frame, Rights::Read);
        assert_eq!(exposures.end(frame, Rights::Read).1.rights(), None);
        assert!(!exposures.keep(frame));
    }
}
