//! The part of a file behind its end that a process may fill, as far as its threads and the server have to agree about it: who appends, what counts as
//! appended, and what ends it. Where the bytes and the words lie is the caller's business.

use crate::atomic::{ATTEMPTS_MAX, AtomicBool, AtomicU8, AtomicU64, Ordering, RESTS_MAX, rest, yield_now};
use crate::length_word::{CLOSED, length_of, sealed};

/// A word that says how long a file is, with its seed.
#[derive(Clone, Copy)]
pub struct LengthWord<'a> {
    /// The word.
    pub word: &'a AtomicU64,
    /// Its seed.
    pub seed: u32,
}

impl LengthWord<'_> {
    /// Whether it says this length, and is open.
    pub fn says(&self, length: u64) -> bool {
        self.word.load(Ordering::Acquire) == sealed(length, self.seed)
    }

    /// The length that it says, closed or not. A thread that sees it sees the bytes before that end, too.
    pub fn length(&self) -> Option<u64> {
        length_of(self.word.load(Ordering::Acquire), self.seed)
    }

    /// Whether it says nothing else any more.
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Has it say nothing else any more.
    pub fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// Has it say another length. False if it does not say the first one, or is closed.
    fn goes_on(&self, from: u64, to: u64) -> bool {
        let (from, to) = (sealed(from, self.seed), sealed(to, self.seed));
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Nobody appends.
const FREE: u8 = 0;
/// A thread has the turn.
const BUSY: u8 = 1;
/// A thread has the turn, and others have gone on without it.
const ABANDONED: u8 = 2;

/// The part of a file behind its end that a process may fill. One thread at a time appends.
#[derive(Default)]
pub struct Room {
    turn: AtomicU8,
    /// The addresses are about to show something else than the medium, for good.
    is_left: AtomicBool,
    /// The end of the leased blocks, in bytes of the file; 0 for none. It is looked at in a turn.
    end: AtomicU64,
}

/// The way in which a room ends.
pub enum Ending<'a> {
    /// Nobody appends.
    InTurn(Turn<'a>),
    /// A thread has a turn that does not end.
    Abandons,
    /// The same turn as at an end before.
    WasAbandoned,
}

/// Until it is dropped, no other thread of the process appends.
pub struct Turn<'a> {
    room: &'a Room,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.room.turn.store(FREE, Ordering::Release);
    }
}

impl Room {
    /// Waits a moment for the turn to append. Nothing if another thread keeps it, or this one does: a signal handler has interrupted it.
    pub fn turn(&self) -> Option<Turn<'_>> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(turn) = self.turn_now() {
                return Some(turn);
            }
            yield_now();
        }
        None
    }

    fn turn_now(&self) -> Option<Turn<'_>> {
        let is_free = self.turn.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
        is_free.then(|| Turn { room: self })
    }

    /// Waits for the turn before the addresses are taken away: a thread in the middle of an append would store over what others append next.
    ///
    /// A thread may not end its turn: a signal handler has interrupted it, and waits for those addresses to be taken away, or never returns. Then this
    /// goes on without the turn, and [`Self::is_abandoned`] says so until that turn ends. The caller closes the word and takes all addresses away, also
    /// those of the word; nobody may map them anew meanwhile.
    pub fn turn_or_abandon(&self) -> Ending<'_> {
        for _ in 0..RESTS_MAX {
            match self.turn_now() {
                Some(turn) => return Ending::InTurn(turn),
                None => rest(),
            }
        }
        loop {
            match self.turn.compare_exchange(BUSY, ABANDONED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ending::Abandons,
                Err(ABANDONED) => return Ending::WasAbandoned,
                Err(_) => {}
            }
            if let Some(turn) = self.turn_now() {
                return Ending::InTurn(turn);
            }
        }
    }

    /// Whether a thread may still store by a turn that others do not wait for: [`Self::turn_or_abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.turn.load(Ordering::Acquire) == ABANDONED
    }

    /// The addresses are about to show the kernel's page cache, where bytes behind the end are in no file. So no append counts that is not over.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::SeqCst);
    }

    /// Whether the addresses may show the kernel's page cache by now.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::SeqCst)
    }
}

impl Turn<'_> {
    /// The bytes for which there is room behind an end, if the process has stored all before it, as the word says.
    pub fn behind(&self, word: LengthWord<'_>, end: u64) -> u64 {
        if word.says(end) { self.end().saturating_sub(end) } else { 0 }
    }

    /// The end of the leased blocks, in bytes of the file; 0 for none.
    pub fn end(&self) -> u64 {
        self.room.end.load(Ordering::Relaxed)
    }

    /// The server has leased blocks up to here, and they are mapped. With 0, there is no room any more.
    pub fn reaches(&self, end: u64) {
        self.room.end.store(end, Ordering::Relaxed);
    }

    /// Bytes are stored from an end up to another: they are part of the file now. False if the room has been taken away meanwhile.
    pub fn stored(&self, word: LengthWord<'_>, from: u64, to: u64) -> bool {
        // Asked only now: the bytes are stored to what the addresses showed before.
        !self.room.is_left() && word.goes_on(from, to)
    }
}
