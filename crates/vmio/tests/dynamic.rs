//! Mappings whose scans come in by huge pages, and everything else by small ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use vmio::{
    Access, Advice, Cache, Engine, Error, FrameHint, Mapping, MappingOptions, OnReadError, PageVerifier, Stats,
};

use crate::support::child::isolated;
use crate::support::device::{Device, READ_EIO};
use crate::support::{PAGE, Random, SPAN, at, check_budget, check_empty, load, read, store, watchdog};

fn options() -> MappingOptions {
    MappingOptions::new().access(Access::ReadOnly).frames(FrameHint::Dynamic)
}

/// Huge pages come with the SIGBUS engine only.
fn cache_of(spans: u64) -> Cache {
    crate::support::cache_of(spans * SPAN).engine(Engine::Sigbus).build().unwrap()
}

fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), options()).unwrap()
}

fn numbered(pages: u64) -> Arc<Device> {
    let device = Device::of_pages(pages);
    (0..pages).for_each(|page| device.set_word(at(page) + 8, page + 1));
    device
}

fn check(map: &Mapping, pages: impl IntoIterator<Item = u64>) {
    pages.into_iter().for_each(|page| assert_eq!(load(map, at(page) + 8), page + 1));
}

/// Bytes of the first pages of a mapping that lie in huge pages, as the kernel says.
fn huge_bytes(map: &Mapping) -> u64 {
    let start = map.as_ptr() as usize;
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
    let line = lines.find(|line| line.starts_with("AnonHugePages:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn random_loads_read_what_they_touch() {
    let cache = cache_of(64);
    let device = numbered(32 * SPAN);
    let map = open(&cache, &device);
    let mut pages: Vec<u64> = (0..32 * SPAN).collect();
    pages.sort_by_cached_key(|page| Random(*page).next());
    pages.truncate(4_000);
    check(&map, pages);
    let stats = cache.stats();
    assert_eq!((stats.moved_spans, stats.read_bytes), (0, 4_000 * PAGE), "{stats:?}");
    assert_eq!(huge_bytes(&map), 0);
}

#[test]
fn a_scan_comes_in_by_huge_pages() {
    let _watchdog = watchdog("a_scan_comes_in_by_huge_pages");
    // Where a worker and the scan get into each other's way, a span comes in by small pages.
    let read = (32 * SPAN + 100) * PAGE;
    test_depth::one_of(5, stats_of_a_scan, |(stats, huge)| {
        stats.moved_spans >= 24
            && stats.load_misses < 10 * 32
            && (read..=read + 8 * SPAN * PAGE).contains(&stats.read_bytes)
            && (*huge >= 16 * SPAN * PAGE || !has_free_huge_pages())
    });
}

/// Whether the machine has memory left that is not in pieces: else the kernel need not give huge pages.
fn has_free_huge_pages() -> bool {
    let zones = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
    // The counts of free blocks of 1, 2, 4 and so many pages: as many as a scan takes, of 512 pages or more.
    let free = zones
        .lines()
        .flat_map(|zone| zone.split_whitespace().skip(4 + 9))
        .filter_map(|count| count.parse::<u64>().ok());
    let has_them = free.sum::<u64>() >= 64;
    if !has_them {
        test_depth::skipped("huge pages: the machine has next to none left");
    }
    has_them
}

/// Also the bytes in huge pages.
fn stats_of_a_scan() -> (Stats, u64) {
    let cache = cache_of(64);
    let device = numbered(32 * SPAN + 100);
    let map = open(&cache, &device);
    check(&map, 0..32 * SPAN + 100);
    let outcome = (cache.stats(), huge_bytes(&map));
    check_budget(&cache, &[&map]);
    drop(map);
    check_empty(&cache);
    outcome
}

/// It begins anywhere, and ends before the workers have read much beyond it.
#[test]
fn a_short_scan_reads_no_more_than_it_has_gone_through() {
    let _watchdog = watchdog("a_short_scan_reads_no_more_than_it_has_gone_through");
    for (first, end) in [(300, 2 * SPAN), (0, SPAN), (100, 4 * SPAN + 7)] {
        let cache = cache_of(64);
        let device = numbered(32 * SPAN);
        let map = open(&cache, &device);
        check(&map, first..end);
        drop(map); // And waits for the workers.
        let (read, wanted) = (cache.stats().read_bytes, (end - first) * PAGE);
        // As much again ahead of it, and up to half of a span twice where a worker comes to it after the scan.
        let most = 5 * wanted / 2 + 2 * SPAN * PAGE;
        assert!((wanted..=most).contains(&read), "{read} bytes for {wanted}");
    }
}

/// What the cache has counted once its workers have read what they were asked for.
fn settled(cache: &Cache) -> Stats {
    loop {
        let before = cache.stats();
        thread::sleep(Duration::from_millis(200));
        if cache.stats().read_bytes == before.read_bytes {
            return before;
        }
    }
}

/// Where small pages are when a scan arrives, they become part of the huge one, but for those that are pinned.
#[test]
fn a_scan_takes_over_what_random_loads_have_brought() {
    let _watchdog = watchdog("a_scan_takes_over_what_random_loads_have_brought");
    test_depth::one_of(5, spans_taken_over, |moved| *moved >= 20);
}

fn spans_taken_over() -> u64 {
    let cache = cache_of(64);
    let device = numbered(32 * SPAN);
    let map = open(&cache, &device);
    for span in 1..32 {
        check(&map, (0..10).map(|step| span * SPAN + (step * 37 + span) % SPAN));
    }
    let pin = map.pin(at(20 * SPAN + 77)..at(20 * SPAN + 78), Access::ReadOnly).unwrap();
    // More than half of this one is there.
    check(&map, (10 * SPAN..11 * SPAN).step_by(3).chain((10 * SPAN..11 * SPAN).step_by(3).map(|page| page + 1)));
    let before = cache.stats();
    assert_eq!(before.moved_spans, 0, "{before:?}");
    check(&map, 0..32 * SPAN);
    let stats = cache.stats();
    assert_eq!(stats.resident_pages, 32 * SPAN, "{stats:?}");
    assert_eq!(stats.free_pages, stats.capacity_pages - stats.resident_pages - stats.table_pages, "{stats:?}");
    check_budget(&cache, &[&map]);
    drop(pin);
    drop(map);
    check_empty(&cache);
    stats.moved_spans
}

/// Scans and random loads of one mapping, of more than the cache holds.
#[test]
fn scans_and_random_loads_share_a_mapping() {
    let _watchdog = watchdog("scans_and_random_loads_share_a_mapping");
    let cache = cache_of(16);
    let device = numbered(64 * SPAN + 9);
    let map = open(&cache, &device);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (map, is_over) = (&map, &is_over);
        let scans: Vec<_> = (0..2)
            .map(|thread| scope.spawn(move || (0..3).for_each(|_| check(map, thread * 20 * SPAN..64 * SPAN + 9))))
            .collect();
        for seed in 0..2 {
            scope.spawn(move || {
                let mut random = Random(seed);
                while !is_over.load(Ordering::Relaxed) {
                    check(map, [random.below(64 * SPAN + 9)]);
                    let page = random.below(64 * SPAN);
                    if random.below(64) == 0 {
                        let pin = map.pin(at(page)..at(page + 1), Access::ReadOnly).unwrap();
                        check(map, [page]);
                        drop(pin);
                    }
                    if random.below(64) == 0 {
                        map.advise(at(page)..at((page + 9).min(64 * SPAN)), Advice::DontNeed).unwrap();
                    }
                }
            });
        }
        let ended: Vec<_> = scans.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    check_budget(&cache, &[&map]);
    let stats = cache.stats();
    assert!(stats.moved_spans >= 32, "{stats:?}");
    drop(map);
    check_empty(&cache);
}

/// Huge pages go as a whole, and what was in them comes back by small pages if it is touched at random.
#[test]
fn after_a_scan_random_loads_are_small_again() {
    let _watchdog = watchdog("after_a_scan_random_loads_are_small_again");
    let cache = cache_of(16);
    let device = numbered(64 * SPAN);
    let map = open(&cache, &device);
    check(&map, 0..64 * SPAN);
    let scanned = settled(&cache);
    assert!(scanned.recycled_spans > 0, "{scanned:?}");
    let mut random = Random(3);
    check(&map, (0..20_000).map(|_| random.below(64 * SPAN)));
    let stats = cache.stats();
    let (misses, read) = (stats.load_misses - scanned.load_misses, stats.read_bytes - scanned.read_bytes);
    // Sequences by chance.
    assert!(read <= misses * PAGE + 10 * SPAN * PAGE, "{read} bytes for {misses} misses");
    check_budget(&cache, &[&map]);
    drop(map);
    check_empty(&cache);
}

#[test]
fn advice_says_what_comes_in_whole() {
    let _watchdog = watchdog("advice_says_what_comes_in_whole");
    let cache = cache_of(64);
    let device = numbered(32 * SPAN);
    let map = open(&cache, &device);
    map.advise(0..at(16 * SPAN), Advice::Random).unwrap();
    check(&map, 0..16 * SPAN);
    let stats = cache.stats();
    assert_eq!((stats.moved_spans, stats.load_misses), (0, 16 * SPAN), "{stats:?}");
    map.advise(at(16 * SPAN)..map.len(), Advice::Sequential { window_bytes: 0 }).unwrap();
    check(&map, [20 * SPAN + 9]);
    assert!(cache.stats().moved_spans >= 1, "the first miss knows");
    check(&map, 16 * SPAN..32 * SPAN);
    drop(map);
    // What was coming in behind the last page has come now, or will not.
    let stats = cache.stats();
    assert!(stats.moved_spans >= 8, "{stats:?}");
    // A window of less is what it says.
    let map = open(&cache, &device);
    map.advise(0..map.len(), Advice::Sequential { window_bytes: 64 << 10 }).unwrap();
    check(&map, 0..32 * SPAN);
    assert_eq!(cache.stats().moved_spans, stats.moved_spans);
}

/// One page that cannot be read, or does not verify, is the only one that fails.
#[test]
fn a_bad_page_fails_alone() {
    struct Numbers;
    impl PageVerifier for Numbers {
        fn verify(&self, offset: u64, page: &[u8]) -> bool {
            page[8..16] == (offset / PAGE + 1).to_ne_bytes()
        }
        fn seal(&self, _offset: u64, _page: &mut [u8]) {}
    }
    let bad = [4 * SPAN, 6 * SPAN + 77, 8 * SPAN - 1];
    let device = numbered(16 * SPAN);
    device.set_faults(bad[0], READ_EIO);
    device.set_faults(bad[1], READ_EIO);
    device.set_word(at(bad[2]) + 8, 0);
    let cache = cache_of(32);
    let map = Mapping::open(&cache, device.backing(), options().verifier(Numbers)).unwrap();
    check(&map, (0..16 * SPAN).filter(|page| !bad.contains(page)));
    assert!(matches!(read(&map, at(bad[0])..at(bad[0] + 1)), Err(Error::Read { .. })));
    assert!(matches!(read(&map, at(bad[1])..at(bad[1] + 1)), Err(Error::Read { .. })));
    assert!(matches!(read(&map, at(bad[2])..at(bad[2] + 1)), Err(Error::Corrupt { .. })));
    assert!(cache.stats().moved_spans > 0);
    drop(map);
    check_empty(&cache);
}

/// A page of poison stays what it is when a scan comes by.
#[test]
fn poison_is_not_taken_over() {
    let device = numbered(8 * SPAN);
    device.set_faults(4 * SPAN + 5, READ_EIO);
    let cache = cache_of(16);
    let poison = OnReadError::Poison(*b"\xEE\0\0\0\0\0\0\0");
    let map = Mapping::open(&cache, device.backing(), options().on_read_error(poison)).unwrap();
    assert_eq!(load(&map, at(4 * SPAN + 5) + 8), 0xEE);
    check(&map, (0..8 * SPAN).filter(|page| *page != 4 * SPAN + 5));
    assert_eq!(load(&map, at(4 * SPAN + 5) + 8), 0xEE);
    assert!(cache.stats().moved_spans > 0);
}

#[test]
fn a_small_cache_scans_by_small_pages() {
    let cache = cache_of(7);
    let device = numbered(32 * SPAN);
    let map = open(&cache, &device);
    check(&map, 0..32 * SPAN);
    assert_eq!(cache.stats().moved_spans, 0);
}

#[test]
fn a_cache_that_has_shrunk_scans_by_small_pages() {
    let _watchdog = watchdog("a_cache_that_has_shrunk_scans_by_small_pages");
    let cache = cache_of(64);
    let device = numbered(32 * SPAN);
    let map = open(&cache, &device);
    cache.resize(crate::support::capacity_of(7 * SPAN)).unwrap();
    check(&map, 0..32 * SPAN);
    assert_eq!(cache.stats().moved_spans, 0);
    cache.resize(crate::support::capacity_of(64 * SPAN)).unwrap();
    check(&map, 0..32 * SPAN);
    assert!(cache.stats().moved_spans > 0, "{:?}", cache.stats());
}

#[test]
fn a_mapping_that_can_be_stored_to_has_small_pages() {
    let cache = cache_of(64);
    let device = numbered(16 * SPAN);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new().frames(FrameHint::Dynamic)).unwrap();
    check(&map, 0..16 * SPAN);
    (0..16 * SPAN).step_by(100).for_each(|page| store(&map, at(page) + 16, page));
    map.sync().unwrap();
    (0..16 * SPAN).step_by(100).for_each(|page| assert_eq!(device.word(at(page) + 16), page));
    assert_eq!(cache.stats().moved_spans, 0);
}

#[test]
fn a_store_to_a_read_only_mapping_is_a_signal() {
    isolated("dynamic::a_store_to_a_read_only_mapping_is_a_signal", || {
        let cache = cache_of(64);
        let device = numbered(16 * SPAN);
        let map = open(&cache, &device);
        check(&map, 0..16 * SPAN);
        store(&map, at(9 * SPAN) + 8, 9);
    })
    .dies_of(libc::SIGBUS);
}
