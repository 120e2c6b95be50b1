//! The protocol of pages that can be deactivated, explored in every interleaving. The transitions are the real ones;
//! the model plays the kernel's note of a store, the frame and the device. No store may ever be lost.

use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::page::snapshot::{Snapshot, State};
use crate::page::views::SpanViews;
use crate::page::visit::Visit;
use crate::page::word::{Loaded, PageWord};

/// A page table entry over a frame of a memory file.
#[derive(Clone, Copy)]
struct Entry {
    mapped: bool,
    /// The kernel's note: no store has come since the entry was protected. The note outlasts deactivation and swapping.
    protected: bool,
}

/// An entry that never was protected, as the kernel shows it.
const NEVER_PROTECTED: Entry = Entry { mapped: false, protected: false };

/// The frame, which is there while the page is resident, and an entry for each address of the page.
struct Memory {
    value: u32,
    entries: [Entry; 2],
}

struct Page {
    word: PageWord,
    views: SpanViews,
    memory: Mutex<Memory>,
    device: Mutex<u32>,
    span: Mutex<()>,
}

impl Page {
    /// A page in memory, mapped at the first address, which a load has brought in.
    fn clean() -> Arc<Self> {
        let mapped = Entry { mapped: true, protected: true };
        let page = Page {
            word: PageWord::default(),
            views: SpanViews::default(),
            memory: Mutex::new(Memory { value: 1, entries: [mapped, NEVER_PROTECTED] }),
            device: Mutex::new(1),
            span: Mutex::new(()),
        };
        assert!(page.views.begin(0));
        page.views.finish(0);
        page.word.begin_load().unwrap();
        page.word.finish_load(Loaded::default());
        Arc::new(page)
    }

    /// A store instruction, which faults as often as it must. The kernel lets it through if the page is mapped.
    fn store_at(&self, view: usize, value: u32) {
        loop {
            {
                let mut memory = self.memory.lock().unwrap();
                if memory.entries[view].mapped {
                    memory.entries[view].protected = false;
                    memory.value = value;
                    return;
                }
            }
            self.fault(view, true);
        }
    }

    fn store(&self, value: u32) {
        self.store_at(0, value);
    }

    /// A load instruction.
    fn load_at(&self, view: usize) -> u32 {
        loop {
            {
                let memory = self.memory.lock().unwrap();
                if memory.entries[view].mapped {
                    return memory.value;
                }
            }
            self.fault(view, false);
        }
    }

    fn load(&self) -> u32 {
        self.load_at(0)
    }

    fn entry(&self, view: usize) -> Entry {
        self.memory.lock().unwrap().entries[view]
    }

    fn change(&self, view: usize, change: impl Fn(&mut Entry)) {
        change(&mut self.memory.lock().unwrap().entries[view]);
    }

    /// `Region::enter`.
    fn enter(&self, view: usize) {
        if !self.views.ready().contains(view) && self.views.begin(view) {
            self.change(view, |entry| entry.protected = true);
            self.views.finish(view);
        }
    }

    /// `Region::fault_run` and `Region::reactivate`.
    fn fault(&self, view: usize, store: bool) {
        self.enter(view);
        match self.word.load().state() {
            State::Absent => {
                if self.word.begin_load().is_ok() {
                    let value = *self.device.lock().unwrap();
                    let mut memory = self.memory.lock().unwrap();
                    memory.value = value;
                    memory.entries[view] = Entry { mapped: true, protected: !store };
                    drop(memory);
                    self.word.finish_load(Loaded { dirty_in: store.then_some(false), ..Loaded::default() });
                }
            }
            State::Clean | State::Dirty => {
                let Ok(before) = self.word.begin_reactivate() else { return };
                let forgets_nothing = before.is_inactive() || self.entry(view).protected;
                self.change(view, |entry| {
                    if !entry.mapped {
                        let protected = !store && !before.needs_write() && forgets_nothing;
                        *entry = Entry { mapped: true, protected };
                    }
                });
                let dirty = store || before.state() == State::Dirty;
                self.word.finish_reactivate(dirty.then_some(false), Some(0));
            }
            _ => self.word.wait_while(Snapshot::is_busy),
        }
    }

    /// `Region::deactivate`.
    fn deactivate(&self) {
        let _held = self.span.lock().unwrap();
        let Ok(before) = self.word.begin_deactivate(Visit::LAST) else { return };
        let views = self.views.ready();
        views.iter().for_each(|view| self.change(view, |entry| entry.mapped = false));
        let stored = views.iter().fold(false, |stored, view| stored | !self.entry(view).protected);
        views.iter().for_each(|view| self.change(view, |entry| entry.protected = true));
        self.word.finish_deactivate((stored || before.needs_write()).then_some(false));
    }

    /// `WriteBatch::collect_tracked` and the write. An evictor takes inactive pages only; `fails` plays a device error.
    fn write_back(&self, evictor: bool, fails: bool) {
        {
            let _held = self.span.lock().unwrap();
            let mut stored = false;
            if !evictor {
                for view in self.views.ready().iter() {
                    let mut memory = self.memory.lock().unwrap();
                    stored |= !memory.entries[view].protected;
                    memory.entries[view].protected = true;
                }
            } else if !self.word.load().is_inactive() {
                return;
            }
            if self.word.begin_write_tracked(stored).is_err() {
                if stored {
                    self.word.note_store();
                }
                return;
            }
            let copy = self.memory.lock().unwrap().value;
            self.word.finish_protect();
            drop(_held);
            if !fails {
                *self.device.lock().unwrap() = copy;
            }
        }
        self.word.finish_write(fails.then_some(false));
    }

    /// `Region::drop_inactive`.
    fn drop_inactive(&self) {
        if self.word.begin_drop(Visit::LAST) {
            let mut memory = self.memory.lock().unwrap();
            assert!(memory.entries.iter().all(|entry| !entry.mapped), "a page is dropped while it is mapped");
            memory.value = 0xdead;
            drop(memory);
            self.word.finish_evict(1);
        }
    }

    /// `Region::leave_view`, for a view that no thread touches any more.
    fn leave_view(&self, view: usize) {
        let _held = self.span.lock().unwrap();
        if self.views.ready().contains(view) {
            if !self.entry(view).protected {
                self.word.note_store();
            }
            self.views.remove(view);
            self.change(view, |entry| *entry = NEVER_PROTECTED);
        }
    }

    /// The kernel is short of memory: it unmaps pages, and keeps its notes.
    fn swap_out(&self, view: usize) {
        self.change(view, |entry| entry.mapped = false);
    }

    /// Checks that a later reader gets `expected`, and that the device holds it, unless the word or the kernel says
    /// that the device is older.
    fn check(&self, expected: u32) {
        let word = self.word.load();
        assert!(!word.is_busy() && !word.in_flight());
        let stored = self.views.ready().iter().any(|view| !self.entry(view).protected);
        if !word.needs_write() && !(stored && !word.is_inactive() && word.is_resident()) {
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
    beside_a_store_at(0, other);
}

fn beside_a_store_at(view: usize, other: impl Fn(&Page) + Send + Sync + 'static) {
    model(move || {
        let page = Page::clean();
        let storer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                if view != 0 {
                    // Mapped by a load, so that the kernel alone knows of the store.
                    page.load_at(view);
                }
                page.store_at(view, 2);
                assert_eq!(page.load_at(view), 2);
            })
        };
        other(&page);
        storer.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_store_survives_deactivation_and_dropping() {
    beside_a_store(|page| {
        page.deactivate();
        page.write_back(true, false);
        page.drop_inactive();
    });
}

#[test]
fn loom_a_store_survives_a_sync_that_takes_the_kernels_note() {
    beside_a_store(|page| {
        page.write_back(false, false);
        page.deactivate();
        page.drop_inactive();
    });
}

#[test]
fn loom_a_write_that_fails_while_the_page_is_touched_loses_nothing() {
    beside_a_store(|page| {
        page.deactivate();
        page.write_back(true, true);
        page.drop_inactive();
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
                page.deactivate();
                page.write_back(true, false);
                page.drop_inactive();
            })
        };
        page.write_back(false, false);
        assert_eq!(page.load(), 2);
        evictor.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_write_that_fails_while_a_load_reactivates_the_page_is_not_forgotten() {
    model(|| {
        let page = Page::clean();
        page.store(2);
        page.deactivate();
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
        page.deactivate();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.drop_inactive();
                assert_eq!(page.load(), 2);
            })
        };
        page.write_back(true, false);
        other.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_store_at_another_address_survives_deactivation_and_dropping() {
    beside_a_store_at(1, |page| {
        page.deactivate();
        page.write_back(true, false);
        page.drop_inactive();
    });
}

#[test]
fn loom_a_store_at_another_address_survives_a_sync() {
    beside_a_store_at(1, |page| {
        page.write_back(false, false);
        page.deactivate();
        page.drop_inactive();
    });
}

#[test]
fn loom_a_view_is_not_protected_again_once_it_may_be_stored_to() {
    beside_a_store_at(1, |page| {
        page.load_at(1);
        page.deactivate();
        page.drop_inactive();
    });
}

#[test]
fn loom_a_store_outlives_its_view() {
    model(|| {
        let page = Page::clean();
        page.load_at(1);
        page.store_at(1, 2);
        let evictor = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.deactivate();
                page.write_back(true, false);
                page.drop_inactive();
            })
        };
        page.leave_view(1);
        page.write_back(false, false);
        evictor.join().unwrap();
        page.check(2);
    });
}

#[test]
fn loom_a_store_is_not_forgotten_when_the_kernel_swaps_the_page_out() {
    beside_a_store_at(1, |page| {
        page.swap_out(1);
        page.deactivate();
        page.drop_inactive();
    });
}

#[test]
fn loom_a_store_is_not_forgotten_when_a_page_that_was_swapped_out_is_touched() {
    beside_a_store_at(1, |page| {
        page.swap_out(1);
        page.load_at(1);
        page.deactivate();
        page.drop_inactive();
    });
}

#[test]
fn loom_a_sync_writes_what_was_stored_at_another_address() {
    model(|| {
        let page = Page::clean();
        page.load_at(1);
        page.store_at(1, 2);
        page.write_back(false, false);
        assert_eq!(*page.device.lock().unwrap(), 2);
        page.check(2);
    });
}

#[test]
fn loom_stores_at_two_addresses_are_told_together() {
    model(|| {
        let page = Page::clean();
        page.store(2);
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.store_at(1, 3);
                page.write_back(false, false);
            })
        };
        page.deactivate();
        page.write_back(true, false);
        page.drop_inactive();
        other.join().unwrap();
        page.check(3);
    });
}
