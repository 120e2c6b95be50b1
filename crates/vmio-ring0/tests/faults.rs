//! A range larger than its pool of frames: faults, eviction and write-back, in the machine alone.

#![allow(clippy::unwrap_used)]

mod support;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use vmio_ring0::{Frame, FramePool, Level, Machine, ManagedRange, PageState, Pages, Rights, leave};

const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / 8;
const RANGE_BYTES: usize = 4 << 20;
const PAGES: usize = RANGE_BYTES / PAGE_BYTES;
const FRAMES: u32 = 200;
/// Pages that are evicted with one shootdown.
const BATCH: usize = 16;

/// One at a time: they share a range, and count.
static TURN: Mutex<()> = Mutex::new(());

/// The managed range, and the pages as they would be in a file.
struct Paged {
    machine: &'static Machine,
    range: ManagedRange,
    file: Box<[AtomicU64]>,
    /// Taken by faults alone.
    is_locked: AtomicBool,
    hand: AtomicUsize,
    evicted: AtomicU64,
    written: AtomicU64,
    /// Evicted pages that had changed and counted as clean.
    stores_lost: AtomicU64,
}

static PAGED: OnceLock<Paged> = OnceLock::new();

impl Paged {
    /// The range of the tests, for as long as the turn.
    fn of(machine: &'static Machine) -> (&'static Paged, MutexGuard<'static, ()>) {
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let paged = PAGED.get_or_init(|| {
            let pages = Pages::new(machine, FramePool::new(machine, FRAMES, FRAMES).unwrap());
            let align = 2 << 20;
            // SAFETY: a new mapping without rights, of which the part that is managed stays ours.
            let start = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(ptr::null_mut(), RANGE_BYTES + align, libc::PROT_NONE, flags, -1, 0)
            };
            assert_ne!(start, libc::MAP_FAILED);
            let start = (start as usize).next_multiple_of(align);
            // SAFETY: nobody else knows of the addresses.
            let range =
                unsafe { ManagedRange::new(pages, start..start + RANGE_BYTES, Rights::ReadWrite, on_fault).unwrap() };
            Paged {
                machine,
                range,
                file: (0..PAGES * WORDS).map(|word| AtomicU64::new(word as u64)).collect(),
                is_locked: AtomicBool::new(false),
                hand: AtomicUsize::new(0),
                evicted: AtomicU64::new(0),
                written: AtomicU64::new(0),
                stores_lost: AtomicU64::new(0),
            }
        });
        (paged, turn)
    }

    fn word(&self, word: usize) -> *mut u64 {
        (self.range.addresses().start as *mut u64).wrapping_add(word)
    }

    fn load(&self, word: usize) -> u64 {
        // SAFETY: the range is managed, and the calling thread in the machine.
        unsafe { self.word(word).read_volatile() }
    }

    fn store(&self, word: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.word(word).write_volatile(value) };
    }

    /// The bytes of a page in the file.
    fn of_file(&self, page: usize) -> *mut u64 {
        self.file[page * WORDS].as_ptr()
    }

    /// Maps the page with the bytes of the file, in a frame that is free or another page's.
    fn fault(&self, page: usize, is_store: bool) -> bool {
        self.lock();
        let address = self.range.addresses().start + page * PAGE_BYTES;
        let pool = self.range.pages().pool();
        let is_resolved = if let Some(state) = self.range.pages().state(address) {
            // It was mapped for loads, or another thread was faster.
            assert!(!state.is_dirty || state.rights == Rights::ReadWrite);
            if is_store {
                self.range.pages().unprotect(address);
            }
            true
        } else {
            let frame = pool.take().unwrap_or_else(|| self.evict());
            // SAFETY: the frame and the page's words are this thread's while it holds the lock.
            unsafe { ptr::copy_nonoverlapping(self.of_file(page), pool.address(frame).cast(), WORDS) };
            let rights = if is_store { Rights::ReadWrite } else { Rights::Read };
            // SAFETY: the frame is the page's alone, and holds its bytes.
            unsafe { self.range.pages().map(address, frame, rights) }.unwrap()
        };
        self.unlock();
        is_resolved
    }

    fn lock(&self) {
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
    }

    fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }

    /// Unmaps some pages, writes those to the file that were stored to, and returns one of their frames. The others are free.
    fn evict(&self) -> Frame {
        let mut batch: [Option<(usize, PageState)>; BATCH] = [None; BATCH];
        for evicted in &mut batch {
            while evicted.is_none() {
                let page = self.hand.fetch_add(1, Ordering::Relaxed) % PAGES;
                // SAFETY: nobody has references into the range.
                let state = unsafe { self.range.pages().unmap(self.range.addresses().start + page * PAGE_BYTES) };
                *evicted = state.map(|state| (page, state));
            }
        }
        self.machine.shootdown();
        let mut frames = batch.into_iter().flatten().map(|(page, state)| {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            self.write_back(page, state);
            state.frame
        });
        let own = frames.next();
        frames.for_each(|frame| self.range.pages().pool().give_back(frame));
        own.unwrap()
    }

    /// Writes an unmapped page to the file if it was stored to. By whoever holds the lock.
    fn write_back(&self, page: usize, state: PageState) {
        let memory: *mut u64 = self.range.pages().pool().address(state.frame).cast();
        if state.is_dirty {
            self.written.fetch_add(1, Ordering::Relaxed);
            // SAFETY: no TLB has the frame any more, and the page's words are this thread's while it holds the lock.
            unsafe { ptr::copy_nonoverlapping(memory, self.of_file(page), WORDS) };
        } else {
            // SAFETY: as above.
            let is_same = |word| unsafe { memory.add(word).read() == self.of_file(page).add(word).read() };
            let differs = !(0..WORDS).all(is_same);
            self.stores_lost.fetch_add(u64::from(differs), Ordering::Relaxed);
        }
    }
}

fn on_fault(address: usize, is_store: bool) -> bool {
    let Some(paged) = PAGED.get() else { return false };
    paged.fault((address - paged.range.addresses().start) / PAGE_BYTES, is_store)
}

#[test]
fn faults_evictions_and_write_backs_need_no_exit() {
    let Some(machine) = support::machine() else { return };
    let (paged, _turn) = Paged::of(machine);
    machine.enter().unwrap();
    let pass = |add: u64| {
        for page in 0..PAGES {
            for word in [0, 1, WORDS - 1].map(|word| page * WORDS + word) {
                let held = paged.load(word);
                if page % 3 == 0 {
                    paged.store(word, held + add);
                }
            }
        }
    };
    // Whatever the host has to map, it has mapped after this.
    pass(0);
    let (before, evicted, written) =
        (machine.counts_of_thread(), paged.evicted.load(Ordering::Relaxed), paged.written.load(Ordering::Relaxed));
    for _ in 0..4 {
        pass(1 << 32);
    }
    let (after, now_evicted, now_written) =
        (machine.counts_of_thread(), paged.evicted.load(Ordering::Relaxed), paged.written.load(Ordering::Relaxed));
    let sums: Vec<u64> = (0..PAGES).map(|page| paged.load(page * WORDS + 1) - (page * WORDS + 1) as u64).collect();
    leave();
    let faults = after.faults - before.faults;
    println!("{faults} faults, {} evictions, {} exits", now_evicted - evicted, after.exits - before.exits);
    assert!(faults >= 4 * PAGES as u64, "{before:?} {after:?}");
    assert!(now_evicted - evicted >= 4 * (PAGES as u64 - u64::from(FRAMES)));
    let expected = PAGES.div_ceil(3) as u64 * 4;
    assert!((now_written - written).abs_diff(expected) <= u64::from(FRAMES), "{} writes", now_written - written);
    for (page, sum) in sums.into_iter().enumerate() {
        assert_eq!(sum, if page % 3 == 0 { 4 << 32 } else { 0 }, "page {page}");
    }
    assert_eq!(paged.stores_lost.load(Ordering::Relaxed), 0);
    let exits = after.exits - before.exits;
    if machine.level() == Level::Ring0 {
        assert_eq!(exits, 0);
    } else {
        assert!(exits >= faults, "{exits} exits, {faults} faults");
    }
}

#[test]
fn threads_share_a_range_under_eviction() {
    const THREADS: usize = 2;
    let Some(machine) = support::machine() else { return };
    let (paged, _turn) = Paged::of(machine);
    let before = machine.counts();
    let rounds = test_depth::pick(3, 30);
    let added: Vec<_> = (0..THREADS)
        .map(|thread| {
            std::thread::spawn(move || {
                machine.enter().unwrap();
                // Each thread counts in words of its own, in pages that all of them store to.
                for round in 0..rounds {
                    for page in 0..PAGES {
                        let word = page * WORDS + 8 + thread;
                        let held = paged.load(word);
                        paged.store(word, held + 1);
                        if round % 2 == 1 && page % 16 == 0 {
                            // SAFETY: has no arguments.
                            unsafe { libc::getppid() };
                        }
                    }
                }
                let sums = (0..PAGES).map(|page| page * WORDS + 8 + thread).all(|word| {
                    (paged.load(word) - word as u64).is_multiple_of(rounds) && paged.load(word) - word as u64 >= rounds
                });
                leave();
                sums
            })
        })
        .collect();
    for thread in added {
        assert!(thread.join().unwrap(), "a store was lost");
    }
    let after = machine.counts();
    println!("{:?}", after);
    assert!(after.shootdowns > before.shootdowns + 100);
    assert_eq!(paged.stores_lost.load(Ordering::Relaxed), 0);
}

#[test]
fn a_thread_outside_takes_a_page_from_one_inside() {
    const WORD: usize = 5;
    let Some(machine) = support::machine() else { return };
    let (paged, _turn) = Paged::of(machine);
    let is_inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            machine.enter().unwrap();
            let first = paged.load(WORD);
            is_inside.store(true, Ordering::Release);
            // No system call, and no miss but the one that is to come.
            while paged.load(WORD) == first {
                std::hint::spin_loop();
            }
            let second = paged.load(WORD);
            leave();
            (first, second)
        });
        while !is_inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // The reader misses the page, and waits for the lock, before the file has the new word.
        paged.lock();
        // SAFETY: nobody has references into the range.
        let state = unsafe { paged.range.pages().unmap(paged.range.addresses().start) }.unwrap();
        machine.shootdown();
        paged.write_back(0, state);
        paged.range.pages().pool().give_back(state.frame);
        let before = paged.file[WORD].fetch_add(1, Ordering::Relaxed);
        paged.unlock();
        assert_eq!(reader.join().unwrap(), (before, before + 1));
        paged.file[WORD].store(before, Ordering::Relaxed);
    });
}

#[test]
fn a_fault_that_nobody_resolves_is_the_hosts() {
    let Some(machine) = support::machine() else { return };
    let (paged, _turn) = Paged::of(machine);
    // SAFETY: the child loads from an address that has no rights outside, and ends either way.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            paged.load(0);
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
}
