//! Commits, explored in every interleaving with stores and eviction. The page words and the store gate are the real
//! ones; the model plays page tables, buffers and the log. A store to page 0 comes before a store to page 1: no commit
//! may have the second without the first, and in the end no store is lost. For each rule, a test breaks it and must fail.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::page::snapshot::{Snapshot, State};
use crate::page::visit::Visit;
use crate::page::word::{Loaded, PageWord};
use crate::store_gate::StoreGate;

/// A rule to break.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A store makes a page writable while the gate is closed.
    OpensAtAnyTime,
    /// A store makes a frozen page writable without a copy.
    OpensFrozenPages,
    /// Evictors may spill a page whose copy is not written yet.
    SavesWithoutFlight,
    /// Evictors take frozen pages, with a ticket of the commit after.
    EvictsFrozenPages,
    /// A store marks a span as open before it makes the page writable.
    MarksBeforeItOpens,
}

#[derive(Clone, Copy)]
struct Entry {
    writable: bool,
    value: u32,
}

struct Machine {
    broken: Broken,
    words: [PageWord; 2],
    entries: [Mutex<Entry>; 2],
    gate: StoreGate,
    /// Whether a page was made writable since a commit last protected it.
    open: [AtomicU32; 2],
    /// The number of the present commit.
    present: AtomicU32,
    /// The number of tickets, by the parity of their commit.
    tickets: [AtomicU32; 2],
    /// Copies of page and value that stores have made.
    saved: Mutex<Vec<(usize, u32)>>,
    /// Commit, page and value, by position.
    log: Mutex<Vec<(u32, usize, u32)>>,
}

impl Machine {
    /// Both pages are dirty since commit 2, writable or protected.
    fn new(broken: Broken, writable: bool) -> Arc<Self> {
        let machine = Machine {
            broken,
            words: [PageWord::default(), PageWord::default()],
            entries: [0, 1].map(|_| Mutex::new(Entry { writable, value: 0 })),
            gate: StoreGate::default(),
            open: [0, 1].map(|_| AtomicU32::new(u32::from(writable))),
            present: AtomicU32::new(2),
            tickets: [AtomicU32::new(0), AtomicU32::new(0)],
            saved: Mutex::new(Vec::new()),
            log: Mutex::new(Vec::new()),
        };
        for word in &machine.words {
            word.begin_load().unwrap();
            word.finish_load(Loaded { dirty_in: Some(false), ..Loaded::default() });
        }
        Arc::new(machine)
    }

    fn present(&self) -> u32 {
        // Loom's loads may be late, whatever the order that they ask for.
        self.present.fetch_add(0, Ordering::SeqCst)
    }

    fn protect(&self, page: usize) {
        self.entries[page].lock().unwrap().writable = false;
    }

    fn value(&self, page: usize) -> u32 {
        self.entries[page].lock().unwrap().value
    }

    /// A store instruction, which traps as often as it must.
    fn store(&self, page: usize, value: u32) {
        loop {
            {
                let mut entry = self.entries[page].lock().unwrap();
                if entry.writable {
                    entry.value = value;
                    return;
                }
            }
            self.fault(page);
        }
    }

    /// `Region::fault` for a store to a resident page.
    fn fault(&self, page: usize) {
        let word = &self.words[page];
        if word.load().is_busy() {
            return word.wait_while(Snapshot::is_busy);
        }
        let passing = self.gate.try_enter(0);
        if passing.is_none() && self.broken != Broken::OpensAtAnyTime {
            return self.gate.wait();
        }
        let marks_early = self.broken == Broken::MarksBeforeItOpens;
        if marks_early {
            self.open[page].store(1, Ordering::SeqCst);
        }
        let frozen_in = self.fault_inside(page);
        if !marks_early {
            self.open[page].swap(1, Ordering::SeqCst);
        }
        drop(passing);
        if let Some(epoch) = frozen_in {
            word.wait_while(|seen| seen.is_frozen(epoch));
        }
    }

    /// With the gate open, unless that is the broken rule. Returns the present epoch if the page is frozen and there
    /// can be no copy now.
    fn fault_inside(&self, page: usize) -> Option<bool> {
        let word = &self.words[page];
        let epoch = self.present() % 2 == 1;
        if word.load().is_frozen(epoch) && self.broken != Broken::OpensFrozenPages {
            if word.begin_save(epoch).is_err() {
                return Some(epoch);
            }
            self.saved.lock().unwrap().push((page, self.value(page)));
            self.entries[page].lock().unwrap().writable = true;
            if self.broken == Broken::SavesWithoutFlight {
                word.finish_write(None);
            }
            word.finish_save(epoch);
            return None;
        }
        let only = (self.broken != Broken::OpensFrozenPages).then_some(epoch);
        if let Ok(before) = word.begin_upgrade(only) {
            self.entries[page].lock().unwrap().writable = true;
            word.finish_upgrade(if before.state() == State::Dirty { before.epoch() } else { epoch });
        }
        None
    }

    fn append(&self, commit: u32, page: usize, value: u32) {
        self.log.lock().unwrap().push((commit, page, value));
    }

    /// `WriteBatch::collect` and `write` for one page, once its word says Protecting.
    fn write(&self, commit: u32, page: usize) {
        let value = self.value(page);
        self.words[page].finish_protect();
        self.append(commit, page, value);
        self.words[page].finish_write(None);
    }

    /// An evictor that spills a page.
    fn spill(&self, page: usize) {
        let commit = loop {
            let commit = self.present();
            self.tickets[commit as usize % 2].fetch_add(1, Ordering::SeqCst);
            if self.present() == commit {
                break commit;
            }
            self.tickets[commit as usize % 2].fetch_sub(1, Ordering::SeqCst);
        };
        let only = (self.broken != Broken::EvictsFrozenPages).then_some(commit % 2 == 1);
        if self.words[page].begin_protect_to_evict(only, Visit::ORDINARY).is_ok() {
            self.protect(page);
            self.write(commit, page);
        }
        self.tickets[commit as usize % 2].fetch_sub(1, Ordering::SeqCst);
    }

    /// `Region::protect`.
    fn protect_open(&self) {
        for page in 0..2 {
            if self.open[page].swap(0, Ordering::SeqCst) == 0 {
                continue;
            }
            // The span's lock keeps out evictors that are at work.
            self.words[page].wait_while(|seen| seen.state() == State::Protecting);
            if self.words[page].load().state() == State::Dirty {
                self.protect(page);
            }
        }
    }

    /// Commits; returns the values of both pages in the commit.
    fn commit(&self) -> [u32; 2] {
        self.protect_open();
        self.gate.close();
        self.protect_open();
        let commit = self.present.fetch_add(1, Ordering::SeqCst);
        self.gate.open();
        for page in 0..2 {
            self.write_frozen(commit, page);
        }
        while self.tickets[commit as usize % 2].fetch_add(0, Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        let log = self.log.lock().unwrap();
        [0, 1].map(|page| {
            let images = log.iter().filter(|image| image.0 <= commit && image.1 == page);
            images.last().map_or(0, |image| image.2)
        })
    }

    fn write_frozen(&self, commit: u32, page: usize) {
        let epoch = commit % 2 == 1;
        loop {
            match self.words[page].begin_protect(Some(epoch)) {
                Ok(_) => self.write(commit, page),
                Err(seen) if seen.is_busy() => self.words[page].wait_while(Snapshot::is_busy),
                Err(seen) if seen.is_frozen(!epoch) => {
                    self.words[page].wait_while(|seen| seen.is_frozen(!epoch) && seen.in_flight())
                }
                Err(_) => break,
            }
        }
        loop {
            let Some((page, value)) = self.saved.lock().unwrap().pop() else { break };
            self.append(commit, page, value);
            self.words[page].finish_write(None);
        }
    }
}

fn explore(broken: Broken, writable: bool, evicts: Option<usize>) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(move || {
        let machine = Machine::new(broken, writable);
        let storer = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || (0..2).for_each(|page| machine.store(page, 1)))
        };
        let evictor = evicts.map(|page| {
            let machine = Arc::clone(&machine);
            thread::spawn(move || machine.spill(page))
        });
        let [first, second] = machine.commit();
        assert!(first >= second, "the second store is committed without the first");
        storer.join().unwrap();
        evictor.into_iter().for_each(|evictor| evictor.join().unwrap());
        assert_eq!(machine.commit(), [1, 1], "a store is lost");
    });
}

#[test]
fn loom_a_commit_is_a_point_in_time() {
    explore(Broken::Nothing, true, None);
    explore(Broken::Nothing, false, None);
}

#[test]
fn loom_a_commit_is_a_point_in_time_while_pages_are_evicted() {
    explore(Broken::Nothing, true, Some(0));
    explore(Broken::Nothing, true, Some(1));
}

#[test]
#[should_panic(expected = "a store is lost")]
fn loom_detects_opening_pages_while_the_gate_is_closed() {
    explore(Broken::OpensAtAnyTime, false, None);
}

#[test]
#[should_panic(expected = "committed without the first")]
fn loom_detects_opening_frozen_pages() {
    explore(Broken::OpensFrozenPages, true, None);
}

#[test]
#[should_panic(expected = "a store is lost")]
fn loom_detects_saving_without_flight() {
    explore(Broken::SavesWithoutFlight, true, Some(0));
}

#[test]
#[should_panic(expected = "committed without the first")]
fn loom_detects_evicting_frozen_pages() {
    explore(Broken::EvictsFrozenPages, true, Some(0));
}

#[test]
#[should_panic(expected = "a store is lost")]
fn loom_detects_marking_a_span_before_its_page_is_open() {
    explore(Broken::MarksBeforeItOpens, false, None);
}
