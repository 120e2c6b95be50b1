//! What a commit writes of a page that is stored to while an older version of it is on its way to the journal, and whether that
//! makes the page again, also while the journal is used again below a reader.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmio::backing::{Access, Backing};
use vmio::journal::{Journal, JournalOptions};
use vmio::{Advice, Error, Mapping, MappingOptions};

use crate::support::device::{Device, DeviceBacking};
use crate::support::{PAGE, at, is_managed, load, roomy_cache, store, watchdog};

const HEADERS_BYTES: u64 = 128 << 10;

/// Holds one request up until it is let go, well or not.
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

    /// A request that is held up if it is the one.
    fn pass(&self) -> io::Result<()> {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.holds.store(true, Ordering::SeqCst);
            while self.holds.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            if self.fails.load(Ordering::SeqCst) {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
        Ok(())
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
    writes: Arc<Hold>,
    /// Where the log begins.
    reads_of_front: Arc<Hold>,
}

impl Backing for HeldDevice {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn access(&self) -> Access {
        self.device.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if offset == HEADERS_BYTES {
            self.reads_of_front.pass()?;
        }
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writes.pass()?;
        self.device.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.set_len(len)
    }

    fn describe(&self) -> String {
        "a journal whose requests are held up".into()
    }
}

/// A mapping of zeros, but for what `prepare` does to the device, and what holds up writes to its journal.
fn open(prepare: impl Fn(&Device)) -> (Mapping, Journal, Arc<Hold>) {
    let hold = Arc::new(Hold::default());
    let log = Device::of_pages(HEADERS_BYTES / PAGE + 500);
    let held = HeldDevice { device: log.backing(), writes: Arc::clone(&hold), reads_of_front: Arc::default() };
    let journal = Journal::create(held, JournalOptions::new()).unwrap();
    let data = Device::of_pages(200);
    prepare(&data);
    let map = Mapping::open(&roomy_cache(), data.backing(), MappingOptions::new().atomic(&journal)).unwrap();
    (map, journal, hold)
}

fn evict(map: &Mapping, page: u64) -> Result<(), Error> {
    map.advise(at(page)..at(page + 1), Advice::DontNeed)
}

/// A page that is committed with 1, holds 2 behind it, and is stored to once more while its spill is held up, which then may
/// fail. It has been committed and evicted when this returns.
fn stored_to_beside_its_spill(byte: u64, value: u64, fails: bool) -> (Mapping, Journal) {
    let (map, journal, hold) = open(|_| {});
    store(&map, at(0), 1);
    map.commit().unwrap();
    store(&map, at(0) + 8, 2);
    hold.arm();
    thread::scope(|scope| {
        scope.spawn(|| drop(evict(&map, 0)));
        hold.wait();
        store(&map, at(0) + byte, value);
        hold.let_go(fails);
    });
    map.commit().unwrap();
    evict(&map, 0).unwrap();
    (map, journal)
}

#[test]
fn what_a_spill_has_lost_is_part_of_the_commit() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("what_a_spill_has_lost_is_part_of_the_commit");
    let (map, _journal) = stored_to_beside_its_spill(16, 3, true);
    assert_eq!([0, 8, 16].map(|byte| load(&map, at(0) + byte)), [1, 2, 3]);
}

#[test]
fn what_was_spilled_and_taken_back_is_taken_back_by_the_commit() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("what_was_spilled_and_taken_back_is_taken_back_by_the_commit");
    let (map, _journal) = stored_to_beside_its_spill(8, 0, false);
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

/// A reader has found where the deltas of a page are when a checkpoint brings the older one into the file, and the log is written
/// over there.
#[test]
fn a_reader_whose_deltas_are_written_over_reads_the_page() {
    let _watchdog = watchdog("a_reader_whose_deltas_are_written_over_reads_the_page");
    let reads = Arc::new(Hold::default());
    let log = Device::of_pages(HEADERS_BYTES / PAGE + 100);
    let held = HeldDevice { device: log.backing(), writes: Arc::default(), reads_of_front: Arc::clone(&reads) };
    let journal = Journal::create(held, JournalOptions::new().checkpoint_at(1.0).commit_reserve(0.0)).unwrap();
    let file = journal.join(Device::of_pages(200).backing()).unwrap();
    let page = |value: u8| {
        let mut bytes = vec![0; PAGE as usize];
        (1..=value).for_each(|change| bytes[100 * usize::from(change)] = change);
        bytes
    };
    let first = journal.commit(|commit| {
        commit.write_changes(&file, 0, &page(0), &page(1))?;
        commit.write(&file, at(50), &[9; 20 * PAGE as usize])
    });
    first.unwrap();
    let second = journal.commit(|commit| {
        commit.write_changes(&file, 0, &page(1), &page(2))?;
        // Of a page that changes twice in a commit, the first change is in the log before the second is made.
        commit.write_changes(&file, 0, &page(2), &page(3))?;
        reads.arm();
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut buffer = vec![0; PAGE as usize];
                file.read_at(0, &mut buffer).map(|_| buffer)
            });
            reads.wait();
            journal.checkpoint().unwrap();
            // Two pages of the log each: it comes round, and leaves room for the commit.
            (100..140).for_each(|page| file.write_at(at(page), &[7; PAGE as usize]).unwrap());
            assert!(log.writes_of(HEADERS_BYTES / PAGE) > 1, "the log did not come round");
            reads.let_go(false);
            assert!(reader.join().unwrap().unwrap() == page(2));
        });
        Ok(())
    });
    second.unwrap();
    let mut buffer = vec![0; PAGE as usize];
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == page(3));
}

/// What the program stores behind the end is in memory alone: a copy of such a page as it stands is no pre-image.
#[test]
fn what_was_stored_behind_the_end_and_again_after_growth_is_committed() {
    if is_managed("an atomic mapping") {
        return;
    }
    let (cache, disk) = (roomy_cache(), std::sync::Arc::new(vmio::backing::MemoryBacking::new(100).unwrap()));
    let journal = Journal::create(vmio::backing::MemoryBacking::new(16 << 20).unwrap(), JournalOptions::new()).unwrap();
    let map = Mapping::open(&cache, disk, MappingOptions::new().atomic(&journal)).unwrap();
    store(&map, 8, 1);
    store(&map, 200, 0x47);
    map.commit().unwrap();
    map.set_len(PAGE).unwrap();
    assert_eq!(load(&map, 200), 0);
    store(&map, 200, 0x47);
    map.commit().unwrap();
    map.advise(0..PAGE, Advice::DontNeed).unwrap();
    assert!(!map.is_resident(0));
    assert_eq!((load(&map, 8), load(&map, 200)), (1, 0x47), "what was committed is gone");
}
