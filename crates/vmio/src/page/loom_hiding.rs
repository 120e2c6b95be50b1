//! The protocol of pages that can be hidden, explored in every interleaving: the transitions are the real ones; the
//! kernel's note of a store, the frame and the device are played. What must never happen is that a store is lost.

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::page::word::{Loaded, PageWord, Snapshot, State};

/// A page table entry over a frame of a memory file.
struct Entry {
    in_sight: bool,
    /// Nobody has stored to it since it was protected: the kernel's note. It outlasts hiding.
    protected: bool,
    /// The frame, which is there while the page is resident.
    value: u32,
}

struct Page {
    word: PageWord,
    entry: Mutex<Entry>,
    device: Mutex<u32>,
    span: Mutex<()>,
}

impl Page {
    /// In memory and in sight, brought in by a load.
    fn clean() -> Arc<Self> {
        let page = Page {
            word: PageWord::new(),
            entry: Mutex::new(Entry { in_sight: true, protected: true, value: 1 }),
            device: Mutex::new(1),
            span: Mutex::new(()),
        };
        page.word.begin_load().unwrap();
        page.word.finish_load(Loaded::default());
        Arc::new(page)
    }

    /// A store instruction, with the fault as often as it takes; the kernel lets it through if the page is in sight.
    fn store(&self, value: u32) {
        loop {
            {
                let mut entry = self.entry.lock().unwrap();
                if entry.in_sight {
                    entry.protected = false;
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
                if entry.in_sight {
                    return entry.value;
                }
            }
            self.fault(false);
        }
    }

    /// `Region::fault` and `Region::reveal`.
    fn fault(&self, store: bool) {
        match self.word.load().state() {
            State::Absent => {
                if self.word.begin_load().is_ok() {
                    let value = *self.device.lock().unwrap();
                    *self.entry.lock().unwrap() = Entry { in_sight: true, protected: !store, value };
                    self.word.finish_load(Loaded { dirty_in: store.then_some(false), ..Loaded::default() });
                }
            }
            State::Clean | State::Dirty => {
                let Ok(before) = self.word.begin_reveal() else { return };
                {
                    let mut entry = self.entry.lock().unwrap();
                    if !entry.in_sight {
                        entry.in_sight = true;
                        entry.protected = before.is_hidden() && !store && !before.needs_write();
                    }
                }
                let dirty = store || before.state() == State::Dirty;
                self.word.finish_reveal(dirty.then_some(false), 0);
            }
            _ => self.word.wait_while(Snapshot::is_busy),
        }
    }

    /// `Region::hide`.
    fn hide(&self) {
        let _held = self.span.lock().unwrap();
        let Ok(before) = self.word.begin_hide() else { return };
        self.entry.lock().unwrap().in_sight = false;
        let stored = !self.entry.lock().unwrap().protected;
        self.word.finish_hide((stored || before.needs_write()).then_some(false));
    }

    /// `WriteBatch::collect_tracked` and the write; an evictor's takes hidden pages only, `fails` plays a device error.
    fn write_back(&self, evictor: bool, fails: bool) {
        {
            let _held = self.span.lock().unwrap();
            let mut stored = false;
            if !evictor {
                let mut entry = self.entry.lock().unwrap();
                stored = !entry.protected;
                entry.protected = true;
            } else if !self.word.load().is_hidden() {
                return;
            }
            if self.word.begin_write_tracked(stored).is_err() {
                if stored {
                    self.word.note_store();
                }
                return;
            }
            let copy = self.entry.lock().unwrap().value;
            self.word.finish_protect();
            drop(_held);
            if !fails {
                *self.device.lock().unwrap() = copy;
            }
        }
        self.word.finish_write(fails.then_some(false));
    }

    /// `Region::drop_hidden`.
    fn drop_hidden(&self) {
        if self.word.begin_drop(true) {
            let mut entry = self.entry.lock().unwrap();
            assert!(!entry.in_sight, "a page is dropped under the program's eyes");
            entry.value = 0xdead;
            drop(entry);
            self.word.finish_evict(1);
        }
    }

    /// What a later reader gets; and what the device holds, if neither the word nor the kernel says that it is older.
    fn check(&self, expected: u32) {
        let word = self.word.load();
        assert!(!word.is_busy() && !word.in_flight());
        let stored = !word.is_hidden() && word.is_resident() && !self.entry.lock().unwrap().protected;
        if !word.needs_write() && !stored {
            assert_eq!(*self.device.lock().unwrap(), expected, "taken for written, but it is not");
        }
        assert_eq!(self.load(), expected, "a store is lost");
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn beside_a_store(other: impl Fn(&Page) + Send + Sync + 'static) {
    model(move || {
        let page = Page::clean();
        let storer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.store(2);
                assert_eq!(page.load(), 2);
            })
        };
        other(&page);
        storer.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_store_survives_hiding_and_dropping() {
    beside_a_store(|page| {
        page.hide();
        page.write_back(true, false);
        page.drop_hidden();
    });
}

#[test]
fn loom_a_store_survives_a_sync_that_takes_the_kernels_note() {
    beside_a_store(|page| {
        page.write_back(false, false);
        page.hide();
        page.drop_hidden();
    });
}

#[test]
fn loom_a_write_that_fails_while_the_page_is_touched_loses_nothing() {
    beside_a_store(|page| {
        page.hide();
        page.write_back(true, true);
        page.drop_hidden();
    });
}

#[test]
fn loom_a_sync_beside_an_evictor_loses_nothing() {
    model(|| {
        let page = Page::clean();
        page.store(2);
        let evictor = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.hide();
                page.write_back(true, false);
                page.drop_hidden();
            })
        };
        page.write_back(false, false);
        assert_eq!(page.load(), 2);
        evictor.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_write_that_fails_while_a_load_rescues_the_page_is_not_forgotten() {
    model(|| {
        let page = Page::clean();
        page.store(2);
        page.hide();
        let loader = {
            let page = Arc::clone(&page);
            thread::spawn(move || assert_eq!(page.load(), 2))
        };
        page.write_back(true, true);
        loader.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_note_taken_while_a_write_is_in_flight_is_kept() {
    model(|| {
        let page = Page::clean();
        page.store(2);
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.store(3);
                page.write_back(false, false);
            })
        };
        page.write_back(false, false);
        other.join().unwrap();
        page.check(3);
    });
}

#[test]
fn loom_a_page_is_not_dropped_while_its_write_is_in_flight() {
    model(|| {
        let page = Page::clean();
        page.store(2);
        page.hide();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.drop_hidden();
                assert_eq!(page.load(), 2);
            })
        };
        page.write_back(true, false);
        other.join().unwrap();
        page.check(2);
    });
}
