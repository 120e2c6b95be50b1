//! No error is lost and no byte is wrong, whatever the device does: unreadable pages, failed and slow writes, a device
//! without space, failed flushes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use vmio::{Access, Advice, Cache, Error, Mapping, MappingOptions, OnReadError, PageVerifier};

use crate::support::denial::{PROTECTING, deny_ioctls};
use crate::support::device::{Device, READ_EIO, READ_SHORT, READS, WRITE_EIO, WRITE_ENOSPC, WRITES};
use crate::support::{
    PAGE, SPAN, at, check_empty, has_own_page_tables, load, read, roomy_cache, store, tiny_cache, watchdog,
};

fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new()).unwrap()
}

fn page(number: u64) -> std::ops::Range<u64> {
    at(number)..at(number + 1)
}

// ---- reading

#[test]
fn an_unreadable_page_is_an_error_of_pin_and_read_at() {
    let cache = roomy_cache();
    let device = Device::of_pages(64);
    device.set_word(at(9), 99);
    device.set_faults(5, READ_EIO);
    device.set_faults(6, READ_SHORT);
    let map = open(&cache, &device);
    let is_read_error = |result: vmio::Result<()>, bad: u64, code: Option<i32>| match result {
        Err(Error::Read { offset, source, .. }) => {
            assert_eq!((offset, source.raw_os_error()), (at(bad), code), "{source}");
        }
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        is_read_error(read(&map, page(5)).map(drop), 5, Some(libc::EIO));
        is_read_error(map.pin(at(3)..at(8), Access::ReadOnly).map(drop), 5, Some(libc::EIO));
        is_read_error(map.pin(page(5), Access::ReadWrite).map(drop), 5, Some(libc::EIO));
        is_read_error(map.write_at(at(5), b"x"), 5, Some(libc::EIO));
        is_read_error(map.advise(page(5), Advice::WillNeed), 5, Some(libc::EIO));
        is_read_error(read(&map, at(6)..at(6) + 1).map(drop), 6, None);
        assert!(!map.is_resident(at(5)));
    }
    assert!(matches!(map.take_read_error(), Some(Error::Read { .. })));
    assert!(map.take_read_error().is_none());
    assert_eq!(read(&map, at(9)..at(9) + 8).unwrap(), 99_u64.to_le_bytes());
    device.set_faults(5, 0);
    assert_eq!(read(&map, page(5)).unwrap(), vec![0; PAGE as usize]);
    assert_eq!(cache.stats().pinned_pages, 0);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn an_unreadable_neighbour_does_not_spoil_read_ahead() {
    let cache = roomy_cache();
    let device = Device::of_pages(256);
    (0..256).for_each(|page| device.set_word(at(page), page));
    device.set_faults(10, READ_EIO);
    device.set_faults(40, READ_SHORT);
    let map = open(&cache, &device);
    map.advise(0..map.len(), Advice::Sequential { window_bytes: 0 }).unwrap();
    for number in (0..256).filter(|number| ![10, 40].contains(number)) {
        assert_eq!(load(&map, at(number)), number);
    }
    assert!(read(&map, page(10)).is_err());
    assert!(read(&map, page(40)).is_err());
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn poison_stands_in_for_an_unreadable_page() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    device.set_word(at(2), 7);
    device.set_faults(2, READ_EIO);
    let pattern = *b"POISONED";
    let options = MappingOptions::new().on_read_error(OnReadError::Poison(pattern));
    let map = Mapping::open(&cache, device.backing(), options).unwrap();
    assert!(map.take_read_error().is_none());
    load(&map, at(3));
    assert_eq!(map.failed_reads(), 0);
    for word in 0..PAGE / 8 {
        assert_eq!(load(&map, at(2) + 8 * word), u64::from_le_bytes(pattern));
    }
    assert_eq!(map.failed_reads(), 1);
    assert!(matches!(map.take_read_error(), Some(Error::Read { offset, .. }) if offset == at(2)));
    assert!(matches!(read(&map, page(2)), Err(Error::Read { .. })));
    assert!(map.write_at(at(2), b"x").is_err());
    map.sync().unwrap();
    assert_eq!(device.word(at(2)), 7, "poison was written to the device");
    // Given up and read again, the page is what it is.
    device.set_faults(2, 0);
    map.advise(page(2), Advice::DontNeed).unwrap();
    assert_eq!(load(&map, at(2)), 7);
}

// ---- writing

#[test]
fn every_sync_reports_a_page_that_cannot_be_written_until_it_is() {
    for (fault, code) in [(WRITE_EIO, libc::EIO), (WRITE_ENOSPC, libc::ENOSPC)] {
        let cache = roomy_cache();
        let device = Device::of_pages(3 * SPAN);
        let map = open(&cache, &device);
        let bad = [5, SPAN + 5];
        let good = [4, 6, 2 * SPAN];
        bad.iter().for_each(|page| device.set_faults(*page, fault));
        bad.iter().chain(&good).for_each(|page| store(&map, at(*page), 1));
        for _ in 0..5 {
            match map.sync() {
                Err(Error::Write { offset, failed_pages, source, .. }) => {
                    assert_eq!((offset, failed_pages), (at(5), 2), "the first of the pages, and how many");
                    assert_eq!(source.raw_os_error(), Some(code));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(cache.stats().dirty_pages, 2);
            good.iter().for_each(|page| assert_eq!(device.word(at(*page)), 1, "page {page}"));
        }
        assert!(matches!(map.flush(page(5)), Err(Error::Write { .. })));
        map.flush(page(2 * SPAN)).unwrap();
        // A store meanwhile belongs to the page like any other.
        store(&map, at(5) + 8, 2);
        device.set_all_faults(0);
        map.sync().unwrap();
        bad.iter().for_each(|page| assert_eq!(device.word(at(*page)), 1, "page {page}"));
        assert_eq!(device.word(at(5) + 8), 2);
        assert_eq!(cache.stats().dirty_pages, 0);
        map.close().unwrap();
        check_empty(&cache);
    }
}

/// It would come later, over what the program has written past the mapping since.
#[test]
fn what_cannot_be_written_is_not_given_up_in_silence() {
    for (fault, code) in [(WRITE_EIO, libc::EIO), (WRITE_ENOSPC, libc::ENOSPC)] {
        let cache = roomy_cache();
        let device = Device::of_pages(64);
        let map = open(&cache, &device);
        device.set_faults(9, fault);
        [8, 9, 10].iter().for_each(|page| store(&map, at(*page), 1));
        for _ in 0..2 {
            match map.advise(at(8)..map.len(), Advice::DontNeed) {
                Err(Error::Write { offset, failed_pages, source, .. }) => {
                    assert_eq!((offset, failed_pages, source.raw_os_error()), (at(9), 1, Some(code)));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!([8, 9, 10].map(|page| device.word(at(page))), [1, 0, 1], "its neighbours");
            assert!(map.is_resident(at(9)) && !map.is_resident(at(8)));
        }
        device.set_all_faults(0);
        map.advise(at(8)..map.len(), Advice::DontNeed).unwrap();
        assert_eq!(device.word(at(9)), 1);
        device.set_word(at(9), 2);
        map.sync().unwrap();
        assert_eq!((device.word(at(9)), load(&map, at(9))), (2, 2));
        map.close().unwrap();
        check_empty(&cache);
    }
}

#[test]
fn close_and_drop_report_what_could_not_be_written() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    device.set_faults(3, WRITE_EIO);
    let map = open(&cache, &device);
    store(&map, at(3), 1);
    assert!(matches!(map.close(), Err(Error::Lost { offset, lost_pages: 1, .. }) if offset == at(3)));
    check_empty(&cache);
    let map = open(&cache, &device);
    store(&map, at(3), 1);
    drop(map);
    assert_eq!(cache.stats().drop_failures, 1);
    check_empty(&cache);
}

/// While evictors try the page again and again, no sync may slip through between two of their attempts.
#[test]
fn no_sync_succeeds_while_a_page_cannot_be_written() {
    let _watchdog = watchdog("no_sync_succeeds_while_a_page_cannot_be_written");
    let cache = tiny_cache();
    let (device, churned) = (Device::of_pages(300), Device::of_pages(2048));
    let (map, churn) = (open(&cache, &device), open(&cache, &churned));
    (0..40).for_each(|page| device.set_faults(page, WRITE_EIO));
    (0..300).for_each(|page| store(&map, at(page), 1));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = crate::support::Random(1);
            while !done.load(Ordering::Relaxed) {
                store(&churn, at(random.below(2048)), 1);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let given_up = map.advise(0..map.len(), Advice::DontNeed);
                assert!(matches!(given_up, Err(Error::Write { .. })), "{given_up:?}");
            }
        });
        let slipped: Vec<u32> = (0..2000).filter(|_| map.sync().is_ok()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(slipped.is_empty(), "{} of 2000 syncs succeeded, the first {}", slipped.len(), slipped[0]);
    });
    device.set_all_faults(0);
    map.sync().unwrap();
    (0..300).for_each(|page| assert_eq!(device.word(at(page)), 1));
}

/// The pages that a sync has copied when it can protect no more are on their way: they are written all the same, and none
/// stays marked as such, for which the next sync would wait for ever.
#[test]
fn a_sync_that_cannot_protect_writes_what_it_has() {
    if has_own_page_tables("call that can fail to protect them") {
        return;
    }
    /// Denies protection to the thread that is the first to seal a page.
    struct Denying(AtomicBool);
    impl PageVerifier for Denying {
        fn verify(&self, _offset: u64, _page: &[u8]) -> bool {
            true
        }
        fn seal(&self, _offset: u64, _page: &mut [u8]) {
            if !self.0.swap(true, Ordering::SeqCst) {
                deny_ioctls(&PROTECTING);
            }
        }
    }
    let _watchdog = watchdog("a_sync_that_cannot_protect_writes_what_it_has");
    let cache = roomy_cache();
    let device = Device::of_pages(2 * SPAN);
    let options = MappingOptions::new().verifier(Denying(AtomicBool::new(false)));
    let map = Mapping::open(&cache, device.backing(), options).unwrap();
    (0..2 * SPAN).for_each(|page| store(&map, at(page), page + 1));
    let failed = thread::scope(|scope| scope.spawn(|| map.sync()).join().unwrap());
    assert!(matches!(failed, Err(Error::System { .. })), "{failed:?}");
    let written = (0..2 * SPAN).filter(|page| device.word(at(*page)) == page + 1).count();
    assert!((1..2 * SPAN as usize).contains(&written), "{written} pages");
    map.sync().unwrap();
    (0..2 * SPAN).for_each(|page| assert_eq!(device.word(at(page)), page + 1));
    assert_eq!(cache.stats().dirty_pages, 0);
}

#[test]
fn a_failed_flush_is_for_good() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    store(&map, at(1), 1);
    device.fail_flushes(true);
    assert!(matches!(map.sync(), Err(Error::Flush { .. })));
    device.fail_flushes(false);
    for _ in 0..3 {
        store(&map, at(2), 1);
        assert!(matches!(map.sync(), Err(Error::Flush { .. })));
        assert!(matches!(map.flush(page(2)), Err(Error::Flush { .. })));
    }
    assert!(matches!(map.close(), Err(Error::Flush { .. })));
    check_empty(&cache);
}

#[test]
fn a_cache_full_of_unwritable_pages_fails_accesses_in_place_of_hanging() {
    let _watchdog = watchdog("a_cache_full_of_unwritable_pages_fails_accesses_in_place_of_hanging");
    let cache = tiny_cache();
    let device = Device::of_pages(2000);
    device.set_all_faults(WRITE_ENOSPC);
    let map = open(&cache, &device);
    let mut written = 0;
    let error = loop {
        match map.write_at(at(written), &7_u64.to_le_bytes()) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written <= cache.stats().capacity_pages);
    };
    assert!(matches!(error, Error::CacheExhausted { .. }), "{error}");
    assert!(written >= cache.stats().capacity_pages - 64, "only {written} pages were taken");
    assert!(matches!(read(&map, page(1999)), Err(Error::CacheExhausted { .. })));
    // What is there can be read and changed, and nothing is lost.
    (0..written).for_each(|number| assert_eq!(load(&map, at(number)), 7));
    assert!(matches!(map.sync(), Err(Error::Write { .. })));
    device.set_all_faults(0);
    map.sync().unwrap();
    (0..written).for_each(|number| assert_eq!(device.word(at(number)), 7));
    read(&map, page(1999)).unwrap();
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn pins_of_the_whole_allowance_leave_room_for_everybody_else() {
    let cache = tiny_cache();
    let device = Device::of_pages(2000);
    let map = open(&cache, &device);
    // Two pages are for the page tables.
    let limit = 478;
    assert!(matches!(map.pin(0..at(limit + 1), Access::ReadOnly), Err(Error::TooManyPins { limit_pages: 480, .. })));
    let pin = map.pin(0..at(limit), Access::ReadOnly).unwrap();
    (0..2000).for_each(|number| assert_eq!(load(&map, at(number)), 0));
    assert!(matches!(map.pin(page(1000), Access::ReadOnly), Err(Error::TooManyPins { .. })));
    read(&map, page(1000)).expect("read_at beside the pins");
    map.write_at(at(1000), b"x").expect("write_at beside the pins");
    drop(pin);
}

// ---- everything at once

#[derive(Clone, Copy, Debug)]
enum Operation {
    Faults(u64, u8),
    NoFaults,
    Write(u64, u16),
    Read(u64, u64),
    Pin(u64, u64, bool),
    DontNeed(u64, u64),
    Stream(u64),
    Sync,
    Flush(u64),
    SlowWrites(bool),
}

const PAGES: u64 = 900;
/// Faults stay on so few pages that the cache cannot fill up with unwritable ones.
const BAD_PAGES: u64 = 60;

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let faults = prop::sample::select(vec![READ_EIO, READ_SHORT, WRITE_EIO, WRITE_ENOSPC, READ_EIO | WRITE_EIO]);
    let any_page = || prop_oneof![0..BAD_PAGES, 0..PAGES];
    prop_oneof![
        4 => (0..BAD_PAGES, faults).prop_map(|(page, faults)| Faults(page, faults)),
        1 => Just(NoFaults),
        6 => (any_page(), any::<u16>()).prop_map(|(page, value)| Write(page, value)),
        4 => (any_page(), 1..20_u64).prop_map(|(page, pages)| Read(page, pages)),
        2 => (any_page(), 1..8_u64, any::<bool>()).prop_map(|(page, pages, write)| Pin(page, pages, write)),
        2 => (any_page(), 1..100_u64).prop_map(|(page, pages)| DontNeed(page, pages)),
        1 => (BAD_PAGES..PAGES).prop_map(Stream),
        3 => Just(Sync),
        2 => any_page().prop_map(Flush),
        1 => any::<bool>().prop_map(SlowWrites),
    ]
}

struct Modelled {
    device: Arc<Device>,
    map: Mapping,
    words: Vec<u64>,
    /// Pages that could not be written at some time since the last sync without faults.
    suspects: BTreeSet<u64>,
}

impl Modelled {
    fn unreadable(&self, pages: std::ops::Range<u64>) -> bool {
        pages.into_iter().any(|page| self.device.faults(page) & READS != 0)
    }

    fn check_synced(&self) {
        for page in 0..PAGES {
            assert_eq!(self.device.word(at(page)), self.words[page as usize], "page {page} after a good sync");
        }
    }

    fn sync(&mut self) {
        match self.map.sync() {
            Ok(()) => self.check_synced(),
            Err(Error::Write { offset, .. }) => {
                assert!(self.suspects.contains(&(offset / PAGE)), "page {} can be written", offset / PAGE);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn apply(&mut self, operation: Operation) {
        let end = |first: u64, pages: u64| (first + pages).min(PAGES);
        match operation {
            Operation::Faults(page, faults) => {
                self.device.set_faults(page, faults);
                if faults & WRITES != 0 {
                    self.suspects.insert(page);
                }
            }
            Operation::NoFaults => {
                self.device.set_all_faults(0);
                // An attempt that began before may fail yet.
                let _ = self.map.sync();
                self.suspects.clear();
                self.map.sync().unwrap();
                self.check_synced();
            }
            Operation::Write(page, value) => match self.map.write_at(at(page), &u64::from(value).to_le_bytes()) {
                Ok(()) => self.words[page as usize] = u64::from(value),
                Err(error) => {
                    assert!(matches!(error, Error::Read { .. }) && self.unreadable(page..page + 1), "{error}");
                }
            },
            Operation::Read(first, pages) => {
                let pages = first..end(first, pages);
                match read(&self.map, at(pages.start)..at(pages.end)) {
                    Ok(bytes) => {
                        for (page, bytes) in pages.zip(bytes.chunks(PAGE as usize)) {
                            assert_eq!(bytes[..8], self.words[page as usize].to_le_bytes(), "page {page}");
                            assert!(bytes[8..].iter().all(|byte| *byte == 0), "page {page}");
                        }
                    }
                    Err(error) => assert!(matches!(error, Error::Read { .. }) && self.unreadable(pages), "{error}"),
                }
            }
            Operation::Pin(first, pages, write) => {
                let pages = first..end(first, pages);
                let access = if write { Access::ReadWrite } else { Access::ReadOnly };
                match self.map.pin(at(pages.start)..at(pages.end), access) {
                    Ok(pin) => {
                        for page in pages {
                            assert_eq!(load(&self.map, at(page)), self.words[page as usize], "page {page}");
                        }
                        drop(pin);
                    }
                    Err(error) => assert!(matches!(error, Error::Read { .. }) && self.unreadable(pages), "{error}"),
                }
            }
            Operation::DontNeed(first, pages) => {
                let pages = first..end(first, pages);
                match self.map.advise(at(pages.start)..at(pages.end), Advice::DontNeed) {
                    Ok(()) => pages.for_each(|page| {
                        assert_eq!(self.device.word(at(page)), self.words[page as usize], "page {page} is given up");
                    }),
                    Err(error) => {
                        assert!(matches!(error, Error::Write { .. }) && !self.suspects.is_empty(), "{error}");
                    }
                }
            }
            Operation::Stream(first) => {
                for page in (BAD_PAGES..PAGES).cycle().skip(first as usize).take(700) {
                    assert_eq!(load(&self.map, at(page)), self.words[page as usize], "page {page}");
                }
            }
            Operation::Sync => self.sync(),
            Operation::Flush(page) => {
                if let Err(error) = self.map.flush(at(page)..at(page + 1)) {
                    assert!(matches!(error, Error::Write { .. }) && !self.suspects.is_empty(), "{error}");
                } else {
                    assert_eq!(self.device.word(at(page)), self.words[page as usize], "page {page} after a flush");
                }
            }
            Operation::SlowWrites(slow) => {
                self.device.slow_writes(Duration::from_micros(if slow { 200 } else { 0 }));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(24, 64), max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn errors_come_where_faults_are_and_bytes_are_never_wrong(
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let cache = tiny_cache();
        let device = Device::of_pages(PAGES);
        let map = open(&cache, &device);
        let mut modelled = Modelled { device, map, words: vec![0; PAGES as usize], suspects: BTreeSet::new() };
        for operation in operations {
            modelled.apply(operation);
        }
        modelled.apply(Operation::NoFaults);
        modelled.map.close().unwrap();
        check_empty(&cache);
    }
}
