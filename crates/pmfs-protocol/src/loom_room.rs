//! Appends to one file by threads of a process, explored in every interleaving with what the server and the process's other threads do. Room, turn and
//! words are the real ones.

#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::thread;

use crate::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::length_word::{CLOSED, sealed};
use crate::room::{Ending, LengthWord, Room};

const SEED: u32 = 7;
const BYTES: usize = 3;

struct File {
    room: Room,
    word: AtomicU64,
    /// Stored and loaded as bytes of the medium are: no order comes from them.
    bytes: [AtomicU64; BYTES],
}

impl File {
    fn new() -> Arc<File> {
        let file = File {
            room: Room::default(),
            word: AtomicU64::new(sealed(0, SEED)),
            bytes: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        if let Some(turn) = file.room.turn() {
            turn.reaches(BYTES as u64);
        }
        Arc::new(file)
    }

    fn word(&self) -> LengthWord<'_> {
        LengthWord { word: &self.word, seed: SEED }
    }

    fn store(&self, at: u64, byte: u64) {
        self.bytes[at as usize].store(byte, Ordering::Relaxed);
    }

    fn load(&self, at: u64) -> u64 {
        self.bytes[at as usize].load(Ordering::Relaxed)
    }

    /// Appends a byte behind an end, if the file ends there and there is room.
    fn append(&self, end: u64, byte: u64) -> bool {
        let Some(turn) = self.room.turn() else { return false };
        if turn.behind(self.word(), end) == 0 {
            return false;
        }
        self.store(end, byte);
        turn.stored(self.word(), end, end + 1)
    }

    /// The length that the server gives the file. Somebody has appended all bytes before it.
    fn settle(&self) -> u64 {
        let length = self.word().length().unwrap();
        (0..length).for_each(|at| assert_ne!(self.load(at), 0, "byte {at} of {length} is not stored"));
        length
    }
}

#[test]
fn loom_what_the_server_sees_is_stored_and_each_append_is_there_once() {
    loom::model(|| {
        let file = File::new();
        let appender = |byte| {
            let file = Arc::clone(&file);
            thread::spawn(move || u64::from((0..2).any(|end| file.append(end, byte))))
        };
        let (one, other) = (appender(1), appender(2));
        let seen = file.settle();
        let appended = one.join().unwrap() + other.join().unwrap();
        assert!(file.settle() == appended && seen <= appended);
        let found: Vec<u64> = (0..appended).map(|at| file.load(at)).collect();
        assert!(appended < 2 || found == [1, 2] || found == [2, 1], "{found:?}");
    });
}

/// The server takes the room back, and the process answers: nobody stores there any more when others append.
#[test]
fn loom_after_an_answer_others_append_behind_what_was_appended() {
    loom::model(|| {
        let file = File::new();
        let appender = Arc::clone(&file);
        let appender = thread::spawn(move || u64::from(appender.append(0, 1)) + u64::from(appender.append(1, 1)));
        // A wait for the turn has no end in a model. Where another thread has it, the answer has not come yet.
        let Some(turn) = file.room.turn() else { return appender.join().map(drop).unwrap() };
        turn.reaches(0);
        file.word().close();
        drop(turn);
        let end = file.settle();
        (end..BYTES as u64).for_each(|at| file.store(at, 2));
        assert_eq!(appender.join().unwrap(), end, "an append that has returned is lost");
        (end..BYTES as u64).for_each(|at| assert_eq!(file.load(at), 2, "a late store"));
    });
}

/// The same, but a thread does not end its turn in time. So the addresses go while it stores, and are not mapped anew before the turn ends.
#[test]
fn loom_a_turn_that_is_abandoned_stores_nothing_over_what_others_append() {
    loom::model(|| {
        let file = File::new();
        let is_mapped = Arc::new(loom::sync::Mutex::new(true));
        let (appender, mapped) = (Arc::clone(&file), Arc::clone(&is_mapped));
        let appender = thread::spawn(move || {
            let Some(turn) = appender.room.turn() else { return false };
            if turn.behind(appender.word(), 0) == 0 {
                return false;
            }
            // A store to addresses that were taken away fails.
            let is_stored = mapped
                .lock()
                .map(|mapped| {
                    if *mapped {
                        appender.store(0, 1)
                    }
                })
                .is_ok();
            is_stored && turn.stored(appender.word(), 0, 1)
        });
        let ending = file.room.turn_or_abandon();
        if let Ending::InTurn(turn) = &ending {
            turn.reaches(0);
        }
        file.word().close();
        drop(ending);
        *is_mapped.lock().unwrap() = false;
        let end = file.word().length().unwrap();
        (end..BYTES as u64).for_each(|at| file.store(at, 2));
        if !file.room.is_abandoned() {
            *is_mapped.lock().unwrap() = true;
        }
        assert_eq!(u64::from(appender.join().unwrap()), end, "an append that has returned is lost, or counts twice");
        (end..BYTES as u64).for_each(|at| assert_eq!(file.load(at), 2, "a late store"));
    });
}

/// The process does not answer, so others append to other blocks. Nothing counts that comes later.
#[test]
fn loom_what_is_stored_after_a_revocation_does_not_count() {
    loom::model(|| {
        let file = File::new();
        let appender = Arc::clone(&file);
        let appender = thread::spawn(move || u64::from(appender.append(0, 1)) + u64::from(appender.append(1, 1)));
        file.word().close();
        let end = file.settle();
        assert_eq!(appender.join().unwrap(), end, "an append that has returned is lost");
        assert_eq!(file.word.load(Ordering::Relaxed), sealed(end, SEED) | CLOSED);
    });
}

/// Whether an append counts whose store went to the page cache. `asks_first` looks at the flag before the store alone.
fn leaves(asks_first: bool) {
    loom::model(move || {
        let (file, shows_cache) = (File::new(), Arc::new(AtomicBool::new(false)));
        let (appender, shown) = (Arc::clone(&file), Arc::clone(&shows_cache));
        let appender = thread::spawn(move || {
            let Some(turn) = appender.room.turn() else { return };
            let word = appender.word();
            let counts = if asks_first { turn.stored(word, 0, 1) } else { true };
            // The store goes to what the addresses show.
            let is_cached = shown.load(Ordering::Acquire);
            let counts = if asks_first { counts } else { turn.stored(word, 0, 1) };
            assert!(!(counts && is_cached), "an append to the page cache counts");
        });
        file.room.leave();
        shows_cache.store(true, Ordering::Release);
        appender.join().unwrap();
    });
}

#[test]
fn loom_an_append_to_what_the_kernel_serves_does_not_count() {
    leaves(false);
}

#[test]
#[should_panic(expected = "an append to the page cache counts")]
fn loom_a_flag_that_is_asked_for_before_the_store_is_not_enough() {
    leaves(true);
}
