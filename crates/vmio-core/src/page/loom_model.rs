//! The page word's protocol, explored in every interleaving. The transitions are the real ones; the model plays the
//! page table entry, the frame and the device. No store may ever be lost.

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::page::snapshot::{Snapshot, State};
use crate::page::visit::Visit;
use crate::page::word::{Loaded, PageWord, PinOutcome};

/// The page table entry, as the hardware sees it: a store checks protection and writes in one step.
struct Entry {
    present: bool,
    writable: bool,
    value: u32,
}

struct Page {
    word: PageWord,
    entry: Mutex<Entry>,
    device: Mutex<u32>,
}

impl Page {
    /// A page in memory, dirty and writable, newer than the device.
    fn dirty(value: u32) -> Arc<Self> {
        let page = Page {
            word: PageWord::default(),
            entry: Mutex::new(Entry { present: true, writable: true, value }),
            device: Mutex::new(0),
        };
        page.word.begin_load().unwrap();
        page.word.finish_load(Loaded { dirty_in: Some(false), ..Loaded::default() });
        Arc::new(page)
    }

    /// A page on the device only.
    fn absent(value: u32) -> Arc<Self> {
        Arc::new(Page {
            word: PageWord::default(),
            entry: Mutex::new(Entry { present: false, writable: false, value: 0xdead }),
            device: Mutex::new(value),
        })
    }

    /// A store instruction, which traps as often as it must.
    fn store(&self, value: u32) {
        loop {
            {
                let mut entry = self.entry.lock().unwrap();
                if entry.present && entry.writable {
                    entry.value = value;
                    return;
                }
            }
            self.fault(true);
        }
    }

    /// A load instruction.
    fn load(&self) -> u32 {
        loop {
            {
                let entry = self.entry.lock().unwrap();
                if entry.present {
                    return entry.value;
                }
            }
            self.fault(false);
        }
    }

    /// `Region::fault`, without budget and bookkeeping.
    fn fault(&self, store: bool) {
        loop {
            let seen = self.word.load();
            match seen.state() {
                State::Absent => {
                    if self.word.begin_load().is_ok() {
                        assert!(!seen.in_flight(), "read from the device under a write in flight");
                        let value = *self.device.lock().unwrap();
                        *self.entry.lock().unwrap() = Entry { present: true, writable: store, value };
                        self.word.finish_load(Loaded { dirty_in: store.then_some(false), ..Loaded::default() });
                        return;
                    }
                }
                State::Clean | State::Dirty if !store => return,
                State::Clean | State::Dirty => {
                    if self.word.begin_upgrade(None).is_ok() {
                        self.entry.lock().unwrap().writable = true;
                        self.word.finish_upgrade(false);
                        return;
                    }
                }
                _ => self.word.wait_while(Snapshot::is_busy),
            }
        }
    }

    /// Write-back as in `WriteBatch`; `fails` plays a device error.
    fn write_back(&self, fails: bool) {
        if self.word.begin_protect(None).is_err() {
            return;
        }
        self.entry.lock().unwrap().writable = false;
        let copy = self.entry.lock().unwrap().value;
        self.word.finish_protect();
        if fails {
            self.word.finish_write(Some(false));
        } else {
            *self.device.lock().unwrap() = copy;
            self.word.finish_write(None);
        }
    }

    /// Eviction as in `Evictor::pass`.
    fn evict(&self) {
        if self.word.begin_evict(Visit::ORDINARY) {
            self.unmap();
            self.word.finish_evict(1);
        }
    }

    /// `Region::unmap_together`, for an absent page between its victims.
    fn unmap_with_neighbours(&self) {
        if self.word.claim_gap() {
            self.unmap();
            self.word.release_gap();
        }
    }

    fn unmap(&self) {
        let mut entry = self.entry.lock().unwrap();
        entry.present = false;
        entry.value = 0xdead;
    }

    /// Checks that a later reader gets `expected`, and that the device holds it if the page claims to be the same.
    fn check(&self, expected: u32) {
        let state = self.word.load().state();
        assert!(!self.word.load().is_busy() && !self.word.load().in_flight());
        if matches!(state, State::Clean | State::Absent) {
            assert_eq!(*self.device.lock().unwrap(), expected, "acknowledged as written, but it is not");
        }
        if state == State::Clean {
            assert!(!self.entry.lock().unwrap().writable, "a clean page must trap its first store");
        }
        assert_eq!(self.load(), expected, "a store is lost");
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn loom_a_store_survives_write_back_and_eviction() {
    model(|| {
        let page = Page::dirty(1);
        let storer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.store(2);
                assert_eq!(page.load(), 2);
            })
        };
        page.write_back(false);
        page.evict();
        storer.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_two_flushers_never_overtake_each_other() {
    model(|| {
        let page = Page::dirty(1);
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.store(2);
                page.write_back(false);
            })
        };
        page.write_back(false);
        page.evict();
        other.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_failed_write_loses_nothing() {
    model(|| {
        let page = Page::dirty(1);
        let storer = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.store(2))
        };
        page.write_back(true);
        page.evict();
        storer.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_one_thread_loads_the_others_wait() {
    model(|| {
        let page = Page::absent(7);
        let loader = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.load())
        };
        page.store(8);
        let seen = loader.join().unwrap();
        assert!(seen == 7 || seen == 8);
        page.check(8);
    });
}

#[test]
fn loom_a_page_that_comes_in_while_its_neighbours_go_stays() {
    model(|| {
        let page = Page::absent(7);
        let evictor = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.unmap_with_neighbours();
                page.unmap_with_neighbours();
            })
        };
        assert_eq!(page.load(), 7);
        page.store(8);
        evictor.join().unwrap();
        page.check(8);
    });
}

#[test]
fn loom_a_pinned_page_is_neither_protected_nor_evicted() {
    model(|| {
        let page = Page::dirty(1);
        let flusher = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.write_back(false);
                page.evict();
            })
        };
        let pinned = page.word.pin(true) == PinOutcome::Pinned;
        if pinned {
            // A system call writes without asking the page table.
            let entry_is_writable = page.entry.lock().unwrap().writable;
            assert!(entry_is_writable && page.word.load().state() == State::Dirty);
            page.entry.lock().unwrap().value = 3;
            page.word.unpin();
        }
        flusher.join().unwrap();
        page.check(if pinned { 3 } else { 1 });
    });
}
