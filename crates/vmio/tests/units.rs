//! Units of 16 and 64 KiB: read by one request, kept and given up together.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use vmio::{Advice, Cache, Error, Mapping, MappingOptions, OnReadError, PageVerifier, Unit};

use crate::support::device::{Device, READ_EIO, WRITE_EIO};
use crate::support::{
    Random, at, check_budget, check_empty, is_managed, kernel_notes_stores, load, read, roomy_cache, store, tiny_cache,
    watchdog,
};

const LARGE: [Unit; 2] = [Unit::Kib16, Unit::Kib64];

fn open(cache: &Cache, device: &Arc<Device>, unit: Unit) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new().unit(unit)).unwrap()
}

fn pages_of(unit: Unit) -> u64 {
    (unit.bytes() / vmio::PAGE_BYTES) as u64
}

fn resident(map: &Mapping, pages: Range<u64>) -> u64 {
    map.residency(at(pages.start)..at(pages.end)).resident_pages()
}

fn numbered(pages: u64) -> Arc<Device> {
    let device = Device::of_pages(pages);
    (0..pages).for_each(|page| device.set_word(at(page), page + 1));
    device
}

#[test]
fn a_miss_brings_the_whole_unit_by_one_read() {
    if is_managed("how much a miss reads") {
        return;
    }
    for unit in LARGE {
        let pages = pages_of(unit);
        let cache = roomy_cache();
        let map = open(&cache, &numbered(4 * pages), unit);
        assert_eq!(load(&map, at(2 * pages - 2)), 2 * pages - 1);
        let stats = cache.stats();
        assert_eq!((stats.load_misses, stats.reads, stats.read_bytes), (1, 1, unit.bytes() as u64), "{unit:?}");
        assert_eq!(resident(&map, pages..2 * pages), pages);
        assert_eq!(resident(&map, 0..4 * pages), pages);
        (pages..2 * pages).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
        assert_eq!(cache.stats().load_misses, 1);
    }
}

#[test]
fn only_the_page_that_was_stored_to_is_written() {
    if is_managed("how much a miss reads") {
        return;
    }
    for unit in LARGE {
        let pages = pages_of(unit);
        let cache = roomy_cache();
        let device = numbered(4 * pages);
        let map = open(&cache, &device, unit);
        store(&map, at(pages + 1), 77);
        assert_eq!(resident(&map, pages..2 * pages), pages);
        map.sync().unwrap();
        let written: Vec<u64> = (0..4 * pages).filter(|page| device.writes_of(*page) > 0).collect();
        assert_eq!(written, [pages + 1], "{unit:?}");
        assert_eq!(device.word(at(pages + 1)), 77);
        // Its neighbours are stored to as any page that was read.
        store(&map, at(pages + 2), 78);
        map.sync().unwrap();
        assert_eq!(device.word(at(pages + 2)), 78);
    }
}

/// A cache under pressure holds whole units: those that were read, and no crumbs of others.
#[test]
fn a_unit_goes_as_a_whole() {
    if is_managed("what is kept together") {
        return;
    }
    let _watchdog = watchdog("a_unit_goes_as_a_whole");
    for (unit, stores) in [(Unit::Kib16, false), (Unit::Kib64, false), (Unit::Kib16, true), (Unit::Kib64, true)] {
        // A miss may come in the middle of its unit's eviction, the more often the longer others have the processors. A page
        // that is stored to while it is being written stays behind its unit; and so does one that is touched while its unit
        // is inactive.
        let share = if stores || kernel_notes_stores() { 2 } else { 4 };
        let mut found = Vec::new();
        let holds_whole_units = (0..10).any(|_| {
            let (split, present) = split_and_present(unit, stores);
            found.push((split, present));
            split <= 1 + present / share
        });
        assert!(holds_whole_units, "split units of {unit:?}, and all that were there, stores: {stores}: {found:?}");
    }
}

/// How many units are split, and how many there are, after many misses of a small cache.
fn split_and_present(unit: Unit, stores: bool) -> (u64, u64) {
    let (pages, units) = (pages_of(unit), 3_000 / pages_of(unit));
    let cache = tiny_cache();
    let device = numbered(units * pages);
    let map = open(&cache, &device, unit);
    let mut random = Random(7);
    for _ in 0..4_000 {
        let page = random.below(units * pages);
        if stores && random.below(4) == 0 {
            store(&map, at(page) + 8, page);
        }
        assert_eq!(load(&map, at(page)), page + 1);
    }
    check_budget(&cache, &[&map]);
    let split = (0..units).filter(|unit| ![0, pages].contains(&resident(&map, unit * pages..(unit + 1) * pages)));
    let (split, present) = (split.count() as u64, resident(&map, 0..units * pages) / pages);
    drop(map);
    check_empty(&cache);
    (split, present)
}

#[test]
fn the_last_unit_ends_with_the_file() {
    if is_managed("backings that are no files") {
        return;
    }
    for unit in LARGE {
        let cache = roomy_cache();
        let device = Device::new(at(17) + 100);
        (0..=17).for_each(|page| device.set_word(at(page), page + 1));
        let map = open(&cache, &device, unit);
        assert_eq!(load(&map, at(17)), 18);
        assert_eq!(load(&map, at(17) + 104), 0, "behind the end there are zeros");
        store(&map, at(16), 5);
        map.sync().unwrap();
        assert_eq!((device.word(at(16)), device.contents().len() as u64), (5, at(17) + 100));
    }
}

#[test]
fn a_neighbour_that_cannot_be_read_does_no_harm() {
    if is_managed("errors of single pages") {
        return;
    }
    for unit in LARGE {
        let cache = roomy_cache();
        let device = numbered(64);
        device.set_faults(17, READ_EIO);
        let map = open(&cache, &device, unit);
        assert_eq!(load(&map, at(18)), 19);
        assert_eq!(resident(&map, 16..32), 1);
        assert!(matches!(read(&map, at(17)..at(18)), Err(Error::Read { .. })));
        device.set_faults(17, 0);
        assert_eq!(load(&map, at(17)), 18);
        assert_eq!(resident(&map, 16..20), 3, "16 came along; 18, which was there, was the limit");
    }
}

/// A page is good if its first word is its number.
struct Numbers;

impl PageVerifier for Numbers {
    fn verify(&self, offset: u64, page: &[u8]) -> bool {
        page[..8] == (offset / at(1) + 1).to_le_bytes()
    }

    fn seal(&self, _offset: u64, _page: &mut [u8]) {}
}

#[test]
fn a_corrupt_neighbour_is_found_when_it_is_wanted() {
    if is_managed("verifiers") {
        return;
    }
    for unit in LARGE {
        let cache = roomy_cache();
        let device = numbered(64);
        device.set_word(at(17), 1000);
        let options = MappingOptions::new().unit(unit).verifier(Numbers);
        let map = Mapping::open(&cache, device.backing(), options).unwrap();
        assert_eq!(load(&map, at(18)), 19);
        let residency = map.residency(at(16)..at(20));
        assert_eq!(residency.resident_pages(), 2, "those behind it came along, those before it did not");
        assert!(matches!(read(&map, at(17)..at(18)), Err(Error::Corrupt { offset, .. }) if offset == at(17)));
        assert_eq!(load(&map, at(16)), 17);
    }
}

#[test]
fn only_the_unreadable_page_is_poisoned() {
    if is_managed("poison") {
        return;
    }
    let cache = roomy_cache();
    let device = numbered(64);
    device.set_faults(20, READ_EIO);
    let options = MappingOptions::new().unit(Unit::Kib64).on_read_error(OnReadError::Poison(*b"poisoned"));
    let map = Mapping::open(&cache, device.backing(), options).unwrap();
    assert_eq!(load(&map, at(20)), u64::from_le_bytes(*b"poisoned"));
    (16..32).filter(|page| *page != 20).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
}

/// Pages that hold garbage on the device are not read because a neighbour is.
#[test]
fn fresh_neighbours_stay_fresh() {
    if is_managed("fresh ranges") {
        return;
    }
    let cache = roomy_cache();
    let device = numbered(64);
    let map = open(&cache, &device, Unit::Kib64);
    map.advise(at(20)..at(24), Advice::Fresh).unwrap();
    assert_eq!(load(&map, at(17)), 18);
    assert_eq!(load(&map, at(26)), 27);
    assert_eq!((20..24).map(|page| device.reads_of(page)).sum::<u32>(), 0);
    assert_eq!(load(&map, at(22)), 0);
    store(&map, at(23), 5);
    map.sync().unwrap();
    assert_eq!(device.word(at(23)), 5);
}

#[test]
fn a_stream_reads_ahead_of_its_unit() {
    if is_managed("how much a miss reads") {
        return;
    }
    let cache = roomy_cache();
    let device = numbered(256);
    let map = open(&cache, &device, Unit::Kib16);
    map.advise(0..at(256), Advice::Sequential { window_bytes: 0 }).unwrap();
    (0..256).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert!(cache.stats().reads <= 256 / 32 + 1, "{:?}", cache.stats());
    (0..256).for_each(|page| store(&map, at(page), page));
    map.sync().unwrap();
    (0..256).for_each(|page| assert_eq!(device.word(at(page)), page));
}

/// Where all memory but a few pages is full of what cannot be written, single pages have to do.
#[test]
fn a_full_cache_falls_back_to_pages() {
    if is_managed("budgets by the page") {
        return;
    }
    let _watchdog = watchdog("a_full_cache_falls_back_to_pages");
    let cache = tiny_cache();
    let stuck = Device::of_pages(1024);
    stuck.set_all_faults(WRITE_EIO);
    let full = open(&cache, &stuck, Unit::Kib4);
    let mut pages = 0;
    while cache.stats().free_pages > 8 {
        store(&full, at(pages), 1);
        pages += 1;
    }
    let device = numbered(64);
    let map = open(&cache, &device, Unit::Kib64);
    assert_eq!(load(&map, at(20)), 21);
    assert_eq!(resident(&map, 0..64), 1);
    stuck.set_all_faults(0);
}

/// Threads that load and store in the same units, over a cache much smaller than what they touch.
#[test]
fn threads_share_units() {
    if is_managed("backings that are no files") {
        return;
    }
    let _watchdog = watchdog("threads_share_units");
    for unit in LARGE {
        let cache = tiny_cache();
        let device = numbered(2_048);
        let map = open(&cache, &device, unit);
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let map = &map;
                scope.spawn(move || {
                    let mut random = Random(thread + 1);
                    let mut last = vec![0; 2_048];
                    for round in 1..4_000_u64 {
                        let page = random.below(2_048);
                        let mine = at(page) + 64 * (thread + 1);
                        assert_eq!(load(map, mine), last[page as usize], "page {page}, thread {thread}");
                        if round % 3 == 0 {
                            store(map, mine, round);
                            last[page as usize] = round;
                        }
                        assert_eq!(load(map, at(page)), page + 1);
                    }
                });
            }
        });
        check_budget(&cache, &[&map]);
        map.sync().unwrap();
        (0..2_048).for_each(|page| assert_eq!(device.word(at(page)), page + 1));
        drop(map);
        check_empty(&cache);
    }
}

/// What is brought in by a call, now or in the background, is whole units as well.
#[test]
fn calls_bring_whole_units() {
    if is_managed("how much a miss reads") {
        return;
    }
    for unit in LARGE {
        let pages = pages_of(unit);
        let cache = roomy_cache();
        let map = open(&cache, &numbered(8 * pages), unit);
        map.ensure(at(pages + 1)..at(pages + 2)).unwrap();
        assert_eq!(resident(&map, 0..8 * pages), pages);
        let wanted = at(3 * pages + 1)..at(4 * pages + 1);
        futures::executor::block_on(map.fetch([wanted])).unwrap();
        assert_eq!((resident(&map, 3 * pages..5 * pages), resident(&map, 0..8 * pages)), (2 * pages, 3 * pages));
        (0..8 * pages).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    }
}
