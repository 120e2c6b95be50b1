//! A cache that grows and shrinks under threads that use it: no store is lost, and the capacity is kept.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmio::backing::FileBacking;
use vmio::{Access, Cache, Error, Mapping, MappingOptions};

use crate::support::device::{Device, WRITE_EIO};
use crate::support::{PAGE, Random, at, cache_of, capacity_of, check_empty, is_managed, load, store, watchdog};

/// The capacity is met, and the counts are in order.
fn check_capacity(cache: &Cache, pages: u64) {
    let stats = cache.stats();
    assert_eq!((stats.capacity_pages, cache.capacity_bytes()), (pages, pages * PAGE));
    assert!(stats.resident_pages + stats.table_pages <= pages || is_managed(""), "{stats:?}");
}

/// Four threads load and store at random places of a file for as long as `resize` runs.
fn under_load(cache: &Cache, resize: impl FnOnce()) {
    const PAGES: u64 = 4096;
    const THREADS: u64 = 4;
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = FileBacking::create(file.path(), PAGES * PAGE).unwrap();
    let map = Mapping::open(cache, backing, MappingOptions::new()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, done) = (&map, &done);
            scope.spawn(move || {
                let mut stored = vec![0_u64; PAGES as usize];
                let mut random = Random(thread);
                while !done.load(Ordering::Relaxed) {
                    let page = random.below(PAGES);
                    assert_eq!(load(map, at(page) + 8 * thread), stored[page as usize], "page {page}");
                    if random.below(3) == 0 {
                        stored[page as usize] += 1;
                        store(map, at(page) + 8 * thread, stored[page as usize]);
                    }
                }
                for (page, stored) in (0..).zip(stored) {
                    assert_eq!(load(map, at(page) + 8 * thread), stored, "page {page} at the end");
                }
            });
        }
        // The threads end also if this panics.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(resize));
        done.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
    map.close().unwrap();
}

#[test]
fn threads_go_on_while_the_cache_goes_up_and_down() {
    let _watchdog = watchdog("threads_go_on_while_the_cache_goes_up_and_down");
    const LARGEST: u64 = 3500;
    let cache = cache_of(LARGEST).build().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let stats = cache.stats();
                assert!(stats.resident_pages + stats.table_pages <= LARGEST || is_managed(""), "{stats:?}");
            }
        });
        let mut random = Random(7);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            under_load(&cache, || {
                for _ in 0..60 {
                    let pages = if random.below(4) == 0 { 256 } else { 256 + random.below(LARGEST - 255) };
                    cache.resize(capacity_of(pages)).unwrap();
                    check_capacity(&cache, pages);
                }
            })
        }));
        done.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
    if !is_managed("") {
        check_empty(&cache);
    }
}

#[test]
fn what_is_dirty_is_written_when_an_idle_cache_shrinks() {
    if is_managed("the exact number of resident pages") {
        return;
    }
    let cache = cache_of(4096).dirty_ratio(1.0).build().unwrap();
    let device = Device::of_pages(3000);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    (0..3000).for_each(|page| store(&map, at(page), page + 1));
    assert_eq!(cache.stats().resident_pages, 3000);
    cache.resize(capacity_of(311)).unwrap();
    check_capacity(&cache, 311);
    let snapshots = vmio::telemetry::Reader::open(std::process::id()).unwrap().snapshots().unwrap();
    assert!(snapshots.iter().any(|cache| cache.stats.capacity_pages == 311), "others see the new capacity");
    let written = (0..3000_u64).filter(|page| device.word(at(*page)) == page + 1).count();
    assert!(written >= 2700, "{written} pages are on the device");
    (0..3000).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    check_capacity(&cache, 311);
    cache.resize(capacity_of(4096)).unwrap();
    (0..3000).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert_eq!(cache.stats().resident_pages, 3000);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_read_only_mapping_shrinks_and_comes_back() {
    const PAGES: u64 = 2000;
    let file = tempfile::NamedTempFile::new().unwrap();
    let contents: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE as usize]).collect();
    std::fs::write(file.path(), contents).unwrap();
    let cache = cache_of(2048).build().unwrap();
    let backing = FileBacking::open(file.path(), Access::ReadOnly).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    let check = || (0..PAGES).for_each(|page| assert_eq!(load(&map, at(page)), u64::from_ne_bytes([page as u8; 8])));
    for pages in [2048, 256, 1000, 300, 4000] {
        check();
        cache.resize(capacity_of(pages)).unwrap();
        check_capacity(&cache, pages);
        check();
    }
}

#[test]
fn pins_keep_a_cache_from_shrinking_below_what_they_need() {
    if is_managed("a pin of hundreds of pages, which `ulimit -l` may forbid") {
        return;
    }
    let cache = cache_of(2048).build().unwrap();
    let device = Device::of_pages(2000);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    (0..2000).for_each(|page| store(&map, at(page), page));
    let pin = map.pin(at(0)..at(600), Access::ReadWrite).unwrap();
    let error = cache.resize(capacity_of(700)).unwrap_err();
    assert!(matches!(error, Error::NotShrunk { wanted_bytes, .. } if wanted_bytes == 700 * PAGE), "{error}");
    assert!(error.to_string().contains("pins"), "{error}");
    check_capacity(&cache, 2048);
    cache.resize(capacity_of(900)).unwrap();
    check_capacity(&cache, 900);
    // The limit of pins is that of the new capacity.
    assert!(matches!(map.pin(at(1000)..at(1400), Access::ReadOnly), Err(Error::TooManyPins { limit_pages: 675, .. })));
    assert_eq!(map.residency(at(0)..at(600)).resident_pages(), 600);
    drop(pin);
    cache.resize(capacity_of(300)).unwrap();
    check_capacity(&cache, 300);
    (0..2000).for_each(|page| assert_eq!(load(&map, at(page)), page));
}

#[test]
fn what_pins_forbid_evicts_nothing() {
    if is_managed("a pin of hundreds of pages, which `ulimit -l` may forbid") {
        return;
    }
    let cache = cache_of(8192).build().unwrap();
    let device = Device::of_pages(6000);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    (0..6000).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    let _pin = map.pin(at(0)..at(600), Access::ReadOnly).unwrap();
    let error = cache.resize(capacity_of(700)).unwrap_err();
    assert!(error.to_string().contains("pins"), "{error}");
    check_capacity(&cache, 8192);
    assert_eq!(map.residency(0..map.len()).resident_pages(), 6000);
}

#[test]
fn a_cache_whose_pages_cannot_be_written_keeps_its_capacity_and_works() {
    if is_managed("backings that fail") {
        return;
    }
    let cache = cache_of(2048).dirty_ratio(1.0).build().unwrap();
    let (device, other) = (Device::of_pages(1000), Device::of_pages(1000));
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    let clean = Mapping::open(&cache, other.backing(), MappingOptions::new()).unwrap();
    (0..1000).for_each(|page| store(&map, at(page), page));
    device.set_all_faults(WRITE_EIO);
    let error = cache.resize(capacity_of(500)).unwrap_err();
    assert!(error.to_string().contains("cannot be written"), "{error}");
    check_capacity(&cache, 2048);
    (0..1000).for_each(|page| assert_eq!((load(&map, at(page)), load(&clean, at(page))), (page, 0)));
    device.set_all_faults(0);
    cache.resize(capacity_of(500)).unwrap();
    check_capacity(&cache, 500);
    (0..1000).for_each(|page| assert_eq!(load(&map, at(page)), page));
}

#[test]
fn impossible_capacities_are_refused() {
    let cache = cache_of(300).build().unwrap();
    for bytes in [0, 1 << 20, capacity_of(256) - 1, u64::MAX] {
        let error = cache.resize(bytes).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: "capacity", .. }), "{bytes}: {error}");
    }
    check_capacity(&cache, 300);
}
