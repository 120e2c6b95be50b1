//! A discard that the kernel refuses, explored in every interleaving with a sync. The page word is the real one; the
//! model plays the page table entry, the sync epochs and the mark of the span. The next sync must write every store
//! that comes afterwards. For each rule, a test breaks it and must fail.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::page::snapshot::State;
use crate::page::word::{Loaded, PageWord};

/// A rule to break.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The page is dirty again in its old epoch.
    KeepsItsEpoch,
    /// A sync may look at the span between the announcement and the word.
    HoldsNoSpan,
}

struct Entry {
    writable: bool,
    value: u32,
}

struct Machine {
    broken: Broken,
    word: PageWord,
    entry: Mutex<Entry>,
    device: Mutex<u32>,
    epoch: AtomicBool,
    /// The span is among the dirty ones.
    is_marked: AtomicBool,
    span: Mutex<()>,
}

impl Machine {
    /// In memory, dirty and writable.
    fn new(broken: Broken) -> Arc<Self> {
        let word = PageWord::default();
        word.begin_load().unwrap();
        word.finish_load(Loaded { dirty_in: Some(false), ..Loaded::default() });
        Arc::new(Machine {
            broken,
            word,
            entry: Mutex::new(Entry { writable: true, value: 1 }),
            device: Mutex::new(0),
            epoch: AtomicBool::new(false),
            is_marked: AtomicBool::new(true),
            span: Mutex::new(()),
        })
    }

    /// `Region::announce_dirty`.
    fn announce_dirty(&self) -> bool {
        self.is_marked.store(true, Ordering::SeqCst);
        self.epoch.load(Ordering::SeqCst)
    }

    /// `CachedFile::discard_pages`, of a page that the kernel keeps.
    fn discard(&self) {
        if !self.word.begin_discard() {
            return;
        }
        match self.broken {
            Broken::Nothing => {
                let _held = self.span.lock().unwrap();
                self.word.fail_deactivate(Some(self.announce_dirty()));
            }
            Broken::HoldsNoSpan => self.word.fail_deactivate(Some(self.announce_dirty())),
            Broken::KeepsItsEpoch => {
                self.word.fail_evict(State::Dirty);
                self.is_marked.store(true, Ordering::SeqCst);
            }
        }
    }

    /// `Region::sync_pages`.
    fn sync(&self) {
        let ended = self.epoch.fetch_xor(true, Ordering::SeqCst);
        if !self.is_marked.swap(false, Ordering::SeqCst) {
            return;
        }
        {
            let _held = self.span.lock().unwrap();
            if self.word.begin_protect(Some(ended)).is_ok() {
                let copy = {
                    let mut entry = self.entry.lock().unwrap();
                    entry.writable = false;
                    entry.value
                };
                self.word.finish_protect();
                *self.device.lock().unwrap() = copy;
                self.word.finish_write(None);
            }
        }
        if self.word.load().state() == State::Dirty {
            self.is_marked.store(true, Ordering::SeqCst);
        }
    }

    /// A store instruction, with its trap if there is one.
    fn store(&self, value: u32) {
        let is_trapped = !self.entry.lock().unwrap().writable;
        if is_trapped {
            self.word.begin_upgrade(None).unwrap();
            let epoch = self.announce_dirty();
            self.entry.lock().unwrap().writable = true;
            self.word.finish_upgrade(epoch);
        }
        self.entry.lock().unwrap().value = value;
    }
}

fn explore(broken: Broken) {
    loom::model(move || {
        let machine = Machine::new(broken);
        let discarder = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || machine.discard())
        };
        machine.sync();
        discarder.join().unwrap();
        machine.store(2);
        machine.sync();
        assert_eq!(*machine.device.lock().unwrap(), 2, "a store is lost");
    });
}

#[test]
fn loom_a_page_that_could_not_be_discarded_is_synced() {
    explore(Broken::Nothing);
}

#[test]
#[should_panic(expected = "a store is lost")]
fn loom_detects_keeping_the_epoch_of_a_page_that_could_not_be_discarded() {
    explore(Broken::KeepsItsEpoch);
}

#[test]
#[should_panic(expected = "a store is lost")]
fn loom_detects_announcing_a_page_without_its_span() {
    explore(Broken::HoldsNoSpan);
}
