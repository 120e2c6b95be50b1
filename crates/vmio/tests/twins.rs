//! What a commit writes of a page that is stored to while an older version of it is on its way to the journal, and whether that
//! makes the page again.
#![allow(clippy::unwrap_used)]

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmio::backing::{Access, Backing};
use vmio::journal::{Journal, JournalOptions};
use vmio::{Advice, Error, Mapping, MappingOptions};

use support::device::{Device, DeviceBacking};
use support::{PAGE, at, is_managed, load, roomy_cache, store, watchdog};

const JOURNAL_PAGES: u64 = 500;

/// Holds one write up until it is let go, well or not.
#[derive(Default)]
struct Hold {
    is_armed: AtomicBool,
    holds: AtomicBool,
    fails: AtomicBool,
}

impl Hold {
    fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    fn wait(&self) {
        while !self.holds.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    fn let_go(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
        self.holds.store(false, Ordering::SeqCst);
    }
}

struct HeldDevice {
    device: DeviceBacking,
    hold: Arc<Hold>,
}

impl Backing for HeldDevice {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn access(&self) -> Access {
        self.device.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.hold.is_armed.swap(false, Ordering::SeqCst) {
            self.hold.holds.store(true, Ordering::SeqCst);
            while self.hold.holds.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            if self.hold.fails.load(Ordering::SeqCst) {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
        self.device.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.set_len(len)
    }

    fn describe(&self) -> String {
        "a journal whose writes are held up".into()
    }
}

/// A mapping of zeros, but for what `prepare` does to the device, and what holds up writes to its journal.
fn open(prepare: impl Fn(&Device)) -> (Mapping, Journal, Arc<Hold>) {
    let hold = Arc::new(Hold::default());
    let log = Device::of_pages((128 << 10) / PAGE + JOURNAL_PAGES);
    let held = HeldDevice { device: log.backing(), hold: Arc::clone(&hold) };
    let journal = Journal::create(held, JournalOptions::new()).unwrap();
    let data = Device::of_pages(200);
    prepare(&data);
    let map = Mapping::open(&roomy_cache(), data.backing(), MappingOptions::new().atomic(&journal)).unwrap();
    (map, journal, hold)
}

fn evict(map: &Mapping, page: u64) -> Result<(), Error> {
    map.advise(at(page)..at(page + 1), Advice::DontNeed)
}

#[test]
fn what_a_spill_has_lost_is_part_of_the_commit() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("what_a_spill_has_lost_is_part_of_the_commit");
    let (map, _journal, hold) = open(|_| {});
    store(&map, at(0), 1);
    map.commit().unwrap();
    store(&map, at(0) + 8, 2);
    hold.arm();
    thread::scope(|scope| {
        scope.spawn(|| drop(evict(&map, 0)));
        hold.wait();
        store(&map, at(0) + 16, 3);
        hold.let_go(true);
    });
    map.commit().unwrap();
    evict(&map, 0).unwrap();
    assert_eq!([0, 8, 16].map(|byte| load(&map, at(0) + byte)), [1, 2, 3]);
}

#[test]
fn what_was_spilled_and_taken_back_is_taken_back_by_the_commit() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("what_was_spilled_and_taken_back_is_taken_back_by_the_commit");
    let (map, _journal, hold) = open(|_| {});
    store(&map, at(0), 1);
    map.commit().unwrap();
    store(&map, at(0) + 8, 2);
    hold.arm();
    thread::scope(|scope| {
        scope.spawn(|| drop(evict(&map, 0)));
        hold.wait();
        store(&map, at(0) + 8, 0);
        hold.let_go(false);
    });
    map.commit().unwrap();
    evict(&map, 0).unwrap();
    assert_eq!([0, 8].map(|byte| load(&map, at(0) + byte)), [1, 0]);
}

#[test]
fn what_a_failed_commit_was_to_have_is_part_of_the_next() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("what_a_failed_commit_was_to_have_is_part_of_the_next");
    let (map, _journal, hold) = open(|_| {});
    // So much that it takes several writes.
    let much = |value| (0..60).for_each(|page| (0..180).for_each(|word| store(&map, at(page) + 8 * word, value)));
    much(1);
    store(&map, at(100), 1);
    hold.arm();
    thread::scope(|scope| {
        let commit = scope.spawn(|| map.commit());
        hold.wait();
        // A page that the commit has not got to yet.
        store(&map, at(100) + 8, 2);
        hold.let_go(true);
        let error = commit.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Journal { .. }), "{error:?}");
    });
    map.commit().unwrap();
    map.advise(0..at(200), Advice::DontNeed).unwrap();
    (0..60).for_each(|page| assert_eq!([0, 179].map(|word| load(&map, at(page) + 8 * word)), [1, 1]));
    assert_eq!([0, 8].map(|byte| load(&map, at(100) + byte)), [1, 2]);
}

#[test]
fn garbage_below_a_fresh_page_never_shows() {
    if is_managed("an atomic mapping") {
        return;
    }
    let (map, journal, _hold) = open(|device| (0..200).for_each(|page| device.set_word(at(page) + 16, 77)));
    map.advise(0..at(2), Advice::Fresh).unwrap();
    assert_eq!(load(&map, at(0)), 0);
    (0..3).for_each(|page| store(&map, at(page) + 8, 5));
    map.commit().unwrap();
    map.advise(0..at(200), Advice::DontNeed).unwrap();
    let words = || (0..3).map(|page| [8, 16].map(|byte| load(&map, at(page) + byte))).collect::<Vec<_>>();
    assert_eq!(words(), [[5, 0], [5, 0], [5, 77]]);
    journal.checkpoint().unwrap();
    map.advise(0..at(200), Advice::DontNeed).unwrap();
    assert_eq!(words(), [[5, 0], [5, 0], [5, 77]]);
}
