//! Frames whose stores the kernel notes, and the eviction queue of inactive pages.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmio::{Access, Advice, Cache, Error, EvictionPolicy, FrameHint, Mapping, MappingOptions, OnReadError, Stats};

use crate::support::denial::{PAGEMAP_SCAN, deny_ioctls};
use crate::support::device::{Device, WRITE_EIO};
use crate::support::{
    PAGE, Random, SPAN, at, cache_of, kernel_can_note_stores, load, roomy_cache, store, tiny_cache, watchdog,
};

fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new().frames(FrameHint::Mixed)).unwrap()
}

/// Touches pages of another part of the mapping until some of the first ones have been evicted.
fn push_out(map: &Mapping, pages: std::ops::Range<u64>) {
    pages.for_each(|page| assert_eq!(load(map, at(page)), 0));
}

#[test]
fn the_first_store_to_a_loaded_page_is_no_fault_of_ours_and_is_synced() {
    if !kernel_can_note_stores() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let map = open(&cache, &device);
    for round in 1..=3 {
        (0..SPAN).for_each(|page| assert_eq!(load(&map, at(page)), round - 1));
        (0..SPAN).for_each(|page| store(&map, at(page), round));
        map.sync().unwrap();
        (0..SPAN).for_each(|page| assert_eq!(device.word(at(page)), round));
    }
    let stats = cache.stats();
    assert_eq!((stats.store_misses, stats.write_protect_faults, stats.shootdowns_store), (0, 0, 0), "{stats:?}");
}

/// What was not stored to is not written: neither by a sync nor by an eviction.
#[test]
fn clean_pages_are_not_written() {
    let cache = cache_of(256).build().unwrap();
    let device = Device::of_pages(4 * SPAN);
    let map = open(&cache, &device);
    push_out(&map, 0..4 * SPAN);
    store(&map, at(7), 1);
    push_out(&map, 8..4 * SPAN);
    map.sync().unwrap();
    map.sync().unwrap();
    let written: Vec<u64> = (0..4 * SPAN).filter(|page| device.writes_of(*page) > 0).collect();
    assert_eq!(written, [7]);
    assert_eq!(device.writes_of(7), 1);
}

/// Pages that are in use all the time are reactivated from the eviction queue: no matter how much streams by, they are
/// read from the device far less often than they leave sight.
#[test]
fn a_touch_reactivates_a_page_that_waits_to_be_dropped() {
    if !kernel_can_note_stores() {
        return;
    }
    // How many faults there are depends on how far the evictors run ahead.
    test_depth::one_of(4, reactivated, |(reads, stats)| stats.minor_faults > 1000 && reads * 4 < stats.minor_faults);
}

/// The reads of 64 pages in use, and the counts of the cache.
fn reactivated() -> (u64, Stats) {
    // The default seldom deactivates a span in which nothing is new.
    let cache = cache_of(512).policy(EvictionPolicy::KeepRefaulted).build().unwrap();
    let device = Device::of_pages(16 * SPAN);
    let map = open(&cache, &device);
    let mut random = Random(1);
    for _ in 0..60_000 {
        load(&map, at(random.below(64)));
        load(&map, at(SPAN + random.below(15 * SPAN)));
    }
    let reads = (0..64).map(|page| u64::from(device.reads_of(page))).sum();
    (reads, cache.stats())
}

/// A page that was dropped comes from the device again: a hole in the memory file is not a page of zeros.
#[test]
fn a_dropped_page_is_read_again() {
    let cache = roomy_cache();
    let device = Device::of_pages(2 * SPAN);
    let map = open(&cache, &device);
    for round in 1..=3 {
        (0..2 * SPAN).step_by(3).for_each(|page| store(&map, at(page), round));
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        assert_eq!(map.residency(0..map.len()).resident_pages(), 0);
        (0..2 * SPAN).step_by(3).for_each(|page| assert_eq!(device.word(at(page)), round));
        (0..2 * SPAN).for_each(|page| device.set_word(at(page) + 8, page ^ round));
        (0..2 * SPAN).for_each(|page| assert_eq!(load(&map, at(page) + 8), page ^ round));
    }
}

/// The kernel gives the page tables of a range of 2 MiB back that it unmaps, if nothing in them is protected,
/// and its notes with them.
#[test]
fn a_span_whose_pages_were_all_stored_to_is_not_taken_for_clean() {
    let cache = roomy_cache();
    let device = Device::of_pages(4 * SPAN);
    let map = open(&cache, &device);
    for (round, step) in [(1, 1), (2, 511), (3, 1)] {
        let pages = || (SPAN..2 * SPAN).step_by(step);
        pages().for_each(|page| assert_eq!(load(&map, at(page)), if round == 1 { 0 } else { round - 1 }));
        pages().for_each(|page| store(&map, at(page), round));
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        pages().for_each(|page| assert_eq!(device.word(at(page)), round, "page {page}"));
        (SPAN..2 * SPAN).for_each(|page| device.set_word(at(page), round));
    }
}

/// Where the kernel cannot be asked, every page has to be taken for stored to; not so one that nobody can store to.
#[test]
fn a_page_of_a_read_only_mapping_is_never_taken_for_stored_to() {
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let options = MappingOptions::new().frames(FrameHint::Mixed).access(Access::ReadOnly);
    let map = Mapping::open(&cache, device.backing(), options).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            deny_ioctls(&[PAGEMAP_SCAN]);
            for _ in 0..2 {
                (0..SPAN).for_each(|page| assert_eq!(load(&map, at(page)), 0));
                map.sync().unwrap();
                map.advise(0..map.len(), Advice::DontNeed).unwrap();
                assert_eq!((cache.stats().dirty_pages, cache.stats().resident_pages), (0, 0));
            }
        });
    });
    assert_eq!((0..SPAN).map(|page| u64::from(device.writes_of(page))).sum::<u64>(), 0);
}

/// Dropping must not lose a store that comes at any moment, nor may a load see an older one.
#[test]
fn a_store_that_races_with_dont_need_is_not_lost() {
    let _watchdog = watchdog("a_store_that_races_with_dont_need_is_not_lost");
    const PAGES: u64 = 64;
    let cache = roomy_cache();
    let device = Device::of_pages(PAGES);
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    let mut counts = [0_u64; PAGES as usize];
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                map.advise(0..map.len(), Advice::DontNeed).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                map.sync().unwrap();
            }
        });
        let mut random = Random(5);
        for _ in 0..200_000 {
            let page = random.below(PAGES);
            let count = &mut counts[page as usize];
            assert_eq!(load(&map, at(page)), *count, "page {page} went back in time");
            *count += 1;
            store(&map, at(page), *count);
        }
        done.store(true, Ordering::Relaxed);
    });
    map.sync().unwrap();
    (0..PAGES).for_each(|page| assert_eq!(device.word(at(page)), counts[page as usize], "page {page}"));
}

/// The kernel goes to a pinned page on behalf of a system call, where a fault would be an error: it stays mapped.
#[test]
fn a_pinned_page_stays_mapped_while_its_neighbours_go() {
    let cache = tiny_cache();
    let device = Device::of_pages(8 * SPAN);
    let map = open(&cache, &device);
    let zeros = File::open("/dev/zero").unwrap();
    let pins: Vec<_> =
        (0..8).map(|span| map.pin(at(span * SPAN + 9)..at(span * SPAN + 10), Access::ReadWrite).unwrap()).collect();
    for round in 0..8 {
        push_out(&map, 0..8 * SPAN);
        for pin in &pins {
            let target = pin.as_mut_ptr().unwrap();
            // SAFETY: the pinned page is ours to write, and as long as the count.
            let read = unsafe { libc::read(zeros.as_raw_fd(), target.cast(), PAGE as usize) };
            assert_eq!(read, PAGE as isize, "round {round}: {}", std::io::Error::last_os_error());
        }
    }
}

/// A write that fails leaves the page dirty though it is inactive, and the next sync returns the failure.
#[test]
fn an_inactive_page_that_cannot_be_written_is_kept() {
    let cache = tiny_cache();
    let device = Device::of_pages(8 * SPAN);
    let map = open(&cache, &device);
    store(&map, at(5), 55);
    device.set_faults(5, WRITE_EIO);
    push_out(&map, SPAN..8 * SPAN);
    push_out(&map, SPAN..8 * SPAN);
    assert!(cache.stats().write_errors > 0, "{:?}", cache.stats());
    assert!(matches!(map.sync(), Err(Error::Write { offset, .. }) if offset == at(5)));
    assert_eq!(load(&map, at(5)), 55);
    device.set_faults(5, 0);
    map.sync().unwrap();
    assert_eq!(device.word(at(5)), 55);
}

#[test]
fn poison_and_frames_whose_stores_the_kernel_notes_are_refused_together() {
    let device = Device::of_pages(1);
    let options = MappingOptions::new().frames(FrameHint::Mixed).on_read_error(OnReadError::Poison([1; 8]));
    let refused = Mapping::open(&roomy_cache(), device.backing(), options);
    assert!(matches!(&refused, Err(Error::BadOption { option: "frames", .. })), "{refused:?}");
}
