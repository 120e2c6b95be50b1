//! Copies of clean pages for checkpoints, explored in every interleaving with a store, its commit and an eviction. The
//! page word is the real one; the model plays the frame and the index of versions. A copy that counts is of the version
//! that the checkpoint asked for. For each rule, a test breaks it and must fail.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use crate::page::snapshot::State;
use crate::page::visit::Visit;
use crate::page::word::{Loaded, PageWord, PinOutcome};

/// A rule to break.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The copy counts whatever has become of the page.
    NeverLooksAgain,
    /// The copy counts if the page is clean again.
    LooksAtThePageAlone,
    /// The copy counts if the version is the same.
    LooksAtTheVersionAlone,
    /// The page may leave memory meanwhile.
    DoesNotPin,
    /// A commit writes nothing of a page that is as before, even if the page is pinned.
    IgnoresPins,
}

struct Machine {
    broken: Broken,
    word: PageWord,
    is_in_memory: AtomicBool,
    frame: [AtomicU32; 2],
    /// The newest version in the log.
    version: AtomicU32,
}

impl Machine {
    /// A clean page, the same as version 1.
    fn new(broken: Broken) -> Arc<Self> {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded::default());
        let frame = [AtomicU32::new(1), AtomicU32::new(1)];
        Arc::new(Machine { broken, word, is_in_memory: AtomicBool::new(true), frame, version: AtomicU32::new(1) })
    }

    fn is_clean(&self) -> bool {
        let seen = self.word.load();
        seen.state() == State::Clean && !seen.in_flight()
    }

    fn is_newest(&self) -> bool {
        self.version.load(Ordering::SeqCst) == 1
    }

    /// `Region::copy_clean`, for version 1.
    fn copy(&self) -> Option<[u32; 2]> {
        let pins = self.broken != Broken::DoesNotPin;
        if !self.is_newest() || !self.is_clean() || pins && self.word.pin(false) != PinOutcome::Pinned {
            return None;
        }
        let copy = [0, 1].map(|half| {
            assert!(self.is_in_memory.load(Ordering::SeqCst), "the page has left memory");
            self.frame[half].load(Ordering::SeqCst)
        });
        let counts = match self.broken {
            Broken::NeverLooksAgain => true,
            Broken::LooksAtThePageAlone => self.is_clean(),
            Broken::LooksAtTheVersionAlone => self.is_newest(),
            Broken::Nothing | Broken::DoesNotPin | Broken::IgnoresPins => self.is_clean() && self.is_newest(),
        };
        if pins {
            self.word.unpin();
        }
        counts.then_some(copy)
    }

    /// A store, and the commit of it.
    fn store_and_commit(&self) {
        if self.word.begin_upgrade(None).is_err() {
            return;
        }
        self.word.finish_upgrade(false);
        self.frame.iter().for_each(|half| half.store(2, Ordering::SeqCst));
        self.word.begin_protect(None).unwrap();
        self.word.finish_protect();
        self.version.store(2, Ordering::SeqCst);
        self.word.finish_write(None);
    }

    /// A store that is taken back, and `Region::write_frozen_deltas`, which finds that nothing has changed.
    fn store_and_take_back(&self) {
        if self.word.begin_upgrade(None).is_err() {
            return;
        }
        self.word.finish_upgrade(false);
        [2, 1].into_iter().for_each(|value| self.frame.iter().for_each(|half| half.store(value, Ordering::SeqCst)));
        let before = self.word.begin_protect(None).unwrap();
        let is_written = before.pins() > 0 && self.broken != Broken::IgnoresPins;
        if is_written {
            // Whole, by the thread that takes it next.
            self.word.fail_protect();
            self.word.begin_protect(None).unwrap();
        }
        self.word.finish_protect();
        if is_written {
            self.version.store(2, Ordering::SeqCst);
        }
        self.word.finish_write(None);
    }

    fn evict(&self) {
        if self.word.begin_evict(Visit::LAST) {
            self.is_in_memory.store(false, Ordering::SeqCst);
            self.word.finish_evict(1);
        }
    }
}

fn explore(broken: Broken) {
    loom::model(move || {
        let machine = Machine::new(broken);
        let other = {
            let machine = Arc::clone(&machine);
            thread::spawn(
                move || if broken == Broken::DoesNotPin { machine.evict() } else { machine.store_and_commit() },
            )
        };
        assert!(matches!(machine.copy(), None | Some([1, 1])), "the copy is of another version");
        other.join().unwrap();
    });
}

#[test]
fn loom_a_copy_is_of_the_version_that_was_asked_for() {
    explore(Broken::Nothing);
    loom::model(|| {
        let machine = Machine::new(Broken::Nothing);
        let other = Arc::clone(&machine);
        let evictor = thread::spawn(move || other.evict());
        assert!(matches!(machine.copy(), None | Some([1, 1])));
        evictor.join().unwrap();
    });
}

fn explore_taking_back(broken: Broken) {
    loom::model(move || {
        let machine = Machine::new(broken);
        let other = Arc::clone(&machine);
        let storer = thread::spawn(move || other.store_and_take_back());
        assert!(matches!(machine.copy(), None | Some([1, 1])), "the copy is of another version");
        storer.join().unwrap();
    });
}

#[test]
fn loom_a_copy_has_nothing_of_a_store_that_was_taken_back() {
    explore_taking_back(Broken::Nothing);
}

#[test]
#[should_panic(expected = "of another version")]
fn loom_detects_ignoring_pins() {
    explore_taking_back(Broken::IgnoresPins);
}

#[test]
#[should_panic(expected = "of another version")]
fn loom_detects_never_looking_again() {
    explore(Broken::NeverLooksAgain);
}

#[test]
#[should_panic(expected = "of another version")]
fn loom_detects_looking_at_the_page_alone() {
    explore(Broken::LooksAtThePageAlone);
}

#[test]
#[should_panic(expected = "of another version")]
fn loom_detects_looking_at_the_version_alone() {
    explore(Broken::LooksAtTheVersionAlone);
}

#[test]
#[should_panic(expected = "has left memory")]
fn loom_detects_copying_without_a_pin() {
    explore(Broken::DoesNotPin);
}
