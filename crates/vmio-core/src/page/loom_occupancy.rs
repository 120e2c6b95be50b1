//! A span whose memory is given back, explored in every interleaving. The gate and the page word are the real ones; the
//! model plays the page table entry. No page and no mark that a thread has just put there may be dropped. Each model
//! also runs without the gate, and must then fail.

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::page::occupancy::Occupancy;
use crate::page::snapshot::{Snapshot, State};
use crate::page::visit::Visit;
use crate::page::word::{Loaded, PageWord};

struct Span {
    gated: bool,
    pages: Occupancy,
    word: PageWord,
    /// Whether the page table has an entry for the page.
    present: Mutex<bool>,
}

impl Span {
    fn new(gated: bool) -> Arc<Self> {
        let (pages, word) = (Occupancy::default(), PageWord::default());
        Arc::new(Span { gated, pages, word, present: Mutex::new(false) })
    }

    /// `Region::fault` for a load.
    fn fault(&self) {
        loop {
            match self.word.load().state() {
                State::Absent => {
                    self.pages.enter();
                    if self.word.begin_load().is_ok() {
                        *self.present.lock().unwrap() = true;
                        self.word.finish_load(Loaded::default());
                        return;
                    }
                    self.pages.leave(1);
                }
                State::Clean | State::Dirty => return,
                _ => self.word.wait_while(Snapshot::is_busy),
            }
        }
    }

    /// Eviction as in `Evictor::pass`.
    fn evict(&self) {
        if self.word.begin_evict(Visit::LAST) {
            *self.present.lock().unwrap() = false;
            self.word.finish_evict(1);
            self.pages.leave(1);
        }
    }

    /// `Mapping::mark_fresh`.
    fn mark_fresh(&self) {
        self.pages.enter();
        self.word.mark_fresh();
        self.pages.leave(1);
    }

    /// `Region::close_block` to `Region::open_block`.
    fn give_back(&self) {
        let closed = match self.gated {
            true => self.pages.try_close(),
            false => self.pages.count() == 0,
        };
        if !closed {
            return;
        }
        *self.present.lock().unwrap() = false;
        if !self.word.load().is_fresh() {
            let _ = self.word.update(|_| Some(Snapshot::UNTOUCHED));
        }
        if self.gated {
            self.pages.open();
        }
    }

    fn check(&self) {
        let resident = self.word.load().is_resident();
        assert!(!self.word.load().is_busy(), "a page that nobody will ever settle");
        assert_eq!(resident, *self.present.lock().unwrap(), "the word and the page table differ");
        assert_eq!(u32::from(resident), self.pages.count());
        assert!(!resident || !self.pages.try_close());
    }
}

fn a_page_comes_in_meanwhile(gated: bool) {
    loom::model(move || {
        let span = Span::new(gated);
        let loader = {
            let span = Arc::clone(&span);
            thread::spawn(move || span.fault())
        };
        span.give_back();
        loader.join().unwrap();
        assert!(span.word.load().is_resident(), "the page that came in is lost");
        span.check();
    });
}

fn a_page_comes_back_meanwhile(gated: bool) {
    loom::model(move || {
        let span = Span::new(gated);
        span.fault();
        let loader = {
            let span = Arc::clone(&span);
            thread::spawn(move || span.fault())
        };
        span.evict();
        span.give_back();
        loader.join().unwrap();
        span.check();
    });
}

fn a_mark_is_made_meanwhile(gated: bool) {
    loom::model(move || {
        let span = Span::new(gated);
        span.fault();
        span.evict();
        let marker = {
            let span = Arc::clone(&span);
            thread::spawn(move || span.mark_fresh())
        };
        span.give_back();
        marker.join().unwrap();
        assert!(span.word.load().is_fresh(), "a mark is lost");
        span.check();
    });
}

#[test]
fn loom_a_page_that_comes_in_is_not_dropped() {
    a_page_comes_in_meanwhile(true);
}

#[test]
#[should_panic]
fn loom_a_page_that_comes_in_is_dropped_without_the_gate() {
    a_page_comes_in_meanwhile(false);
}

#[test]
fn loom_a_page_that_comes_back_is_not_dropped() {
    a_page_comes_back_meanwhile(true);
}

#[test]
#[should_panic]
fn loom_a_page_that_comes_back_is_dropped_without_the_gate() {
    a_page_comes_back_meanwhile(false);
}

#[test]
fn loom_a_mark_is_not_forgotten() {
    a_mark_is_made_meanwhile(true);
}

#[test]
#[should_panic(expected = "a mark is lost")]
fn loom_a_mark_is_forgotten_without_the_gate() {
    a_mark_is_made_meanwhile(false);
}
