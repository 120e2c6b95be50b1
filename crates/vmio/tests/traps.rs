//! The ways in which a cache of anonymous, write-protected pages can lose a store, each tried on purpose.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Mapping, MappingOptions};

use crate::support::device::Device;
use crate::support::{
    PAGE, Random, SPAN, at, cache_of, kernel_notes_stores, load, roomy_cache, store, tiny_cache, watchdog,
};

fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new()).unwrap()
}

/// Each thread counts in its own word of random pages; every load must find what the thread stored last.
fn count_in_pages(map: &Mapping, pages: u64, threads: u64, rounds: u64) -> Vec<Vec<u64>> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut counts = vec![0_u64; pages as usize];
                    let mut random = Random(thread);
                    for _ in 0..rounds {
                        let page = random.below(pages);
                        let count = &mut counts[page as usize];
                        assert_eq!(load(map, at(page) + 8 * thread), *count, "page {page} went back in time");
                        *count += 1;
                        store(map, at(page) + 8 * thread, *count);
                    }
                    counts
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check_counts(counts: &[Vec<u64>], word: impl Fn(u64) -> u64) {
    for (thread, counts) in (0..).zip(counts) {
        for (page, count) in (0..).zip(counts) {
            assert_eq!(word(at(page) + 8 * thread), *count, "thread {thread}, page {page}");
        }
    }
}

/// A store between the write-back of a page and its unmapping must not be dropped with it.
#[test]
fn a_store_that_races_with_eviction_is_not_lost() {
    let _watchdog = watchdog("a_store_that_races_with_eviction_is_not_lost");
    let cache = tiny_cache();
    let device = Device::of_pages(1200);
    let map = open(&cache, &device);
    let counts = count_in_pages(&map, 1200, 4, 12_000);
    check_counts(&counts, |offset| load(&map, offset));
    map.sync().unwrap();
    check_counts(&counts, |offset| device.word(offset));
    let stats = cache.stats();
    assert!(stats.evicted_clean + stats.evicted_dirty > 1000, "{stats:?}");
}

/// While a copy of a page is on its way to the device, the page is stored to, written again, evicted and read back.
#[test]
fn a_write_in_flight_is_neither_overtaken_nor_read_round() {
    let _watchdog = watchdog("a_write_in_flight_is_neither_overtaken_nor_read_round");
    let cache = cache_of(256).workers(4).build().unwrap();
    let device = Device::of_pages(400);
    device.slow_writes(Duration::from_micros(400));
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(99);
            while !done.load(Ordering::Relaxed) {
                match random.below(3) {
                    0 => map.sync().unwrap(),
                    1 => map.advise(0..map.len(), Advice::DontNeed).unwrap(),
                    _ => {
                        let page = random.below(400);
                        map.flush(at(page)..at(page + 1)).unwrap();
                    }
                }
            }
        });
        let counts = count_in_pages(&map, 400, 6, 3000);
        done.store(true, Ordering::Relaxed);
        counts
    });
    check_counts(&counts, |offset| load(&map, offset));
    map.close().unwrap();
    check_counts(&counts, |offset| device.word(offset));
}

/// Write-back protects whole runs of a span: a store to a dirty page in between traps, and must not trap for ever.
#[test]
fn a_store_to_a_dirty_page_that_was_protected_goes_on() {
    let _watchdog = watchdog("a_store_to_a_dirty_page_that_was_protected_goes_on");
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    device.slow_writes(Duration::from_micros(100));
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                map.sync().unwrap();
            }
        });
        let counts = count_in_pages(&map, SPAN, 2, 30_000);
        done.store(true, Ordering::Relaxed);
        check_counts(&counts, |offset| load(&map, offset));
        map.sync().unwrap();
        check_counts(&counts, |offset| device.word(offset));
    });
}

/// A page of zeros that a load brought in is protected like any other: its first store is noticed.
#[test]
fn the_first_store_to_a_page_of_zeros_is_noticed() {
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = FileBacking::create(file.path(), 100 * PAGE).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    assert!((0..100).all(|page| load(&map, at(page)) == 0));
    assert_eq!(cache.stats().dirty_pages, 0);
    (0..100).for_each(|page| store(&map, at(page), page + 1));
    let noticed = if kernel_notes_stores() { 0 } else { 100 };
    assert_eq!((cache.stats().dirty_pages, cache.stats().write_protect_faults), (noticed, noticed));
    map.sync().unwrap();
    let words = std::fs::read(file.path()).unwrap();
    for (page, bytes) in (1_u64..).zip(words.chunks(PAGE as usize)) {
        assert_eq!(bytes[..8], page.to_le_bytes());
    }
    // The same for zeros that were not read at all.
    map.advise(0..map.len(), Advice::Free).unwrap();
    assert!((0..100).all(|page| load(&map, at(page)) == 0));
    (0..100).for_each(|page| store(&map, at(page), page + 2));
    map.close().unwrap();
    let words = std::fs::read(file.path()).unwrap();
    for (page, bytes) in (2_u64..).zip(words.chunks(PAGE as usize)) {
        assert_eq!(bytes[..8], page.to_le_bytes());
    }
}

/// Giving pages up must not take their neighbours along, also those that come in meanwhile.
#[test]
fn eviction_drops_exactly_its_victims() {
    let _watchdog = watchdog("eviction_drops_exactly_its_victims");
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let map = open(&cache, &device);
    (0..SPAN).step_by(2).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Odd pages come in one by one, with stores.
            for page in (1..SPAN).step_by(2) {
                store(&map, at(page), page);
                thread::yield_now();
            }
        });
        for round in 0..20 {
            for page in (0..SPAN).step_by(2) {
                map.advise(at(page)..at(page + 1), Advice::DontNeed).unwrap();
                assert!(!map.is_resident(at(page)));
                store(&map, at(page) + 8, round);
            }
        }
    });
    assert!((1..SPAN).step_by(2).all(|page| map.is_resident(at(page)) && load(&map, at(page)) == page));
    assert!((1..SPAN).step_by(2).all(|page| device.reads_of(page) == 1), "an odd page was dropped");
    map.advise(at(100)..at(200), Advice::DontNeed).unwrap();
    assert!((0..SPAN).all(|page| map.is_resident(at(page)) != (100..200).contains(&page)));
}

/// No write-protection stops the kernel from writing: a pinned page stays dirty and writable while syncs come by.
#[test]
fn system_calls_write_to_pages_pinned_for_writing_while_syncs_run() {
    let _watchdog = watchdog("system_calls_write_to_pages_pinned_for_writing_while_syncs_run");
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    let (reader, mut writer) = std::io::pipe().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                map.sync().unwrap();
            }
        });
        scope.spawn(|| {
            let mut value = 0;
            while !done.load(Ordering::Relaxed) {
                value += 1;
                // Neighbours on both sides, so that the protected runs reach across the pinned pages.
                (0..40).chain(60..SPAN).step_by(5).for_each(|page| store(&map, at(page), value));
            }
        });
        for round in 1..=200_u64 {
            let pin = map.pin(at(45)..at(49), Access::ReadWrite).unwrap();
            for _ in 0..10 {
                writer.write_all(&[round as u8; 4 * PAGE as usize]).unwrap();
                let mut filled = 0;
                while filled < pin.len() {
                    let target = pin.as_mut_ptr().unwrap();
                    // SAFETY: the rest of the pinned range, which no other thread accesses.
                    let got = unsafe { libc::read(reader.as_raw_fd(), target.add(filled).cast(), pin.len() - filled) };
                    assert!(got > 0, "read(2) into a pinned range: {}", std::io::Error::last_os_error());
                    filled += got as usize;
                }
            }
            drop(pin);
            let expected = u64::from_le_bytes([round as u8; 8]);
            assert_eq!(load(&map, at(45)), expected);
            assert_eq!(load(&map, at(49) - 8), expected);
        }
        done.store(true, Ordering::Relaxed);
    });
    map.sync().unwrap();
    let expected = u64::from_le_bytes([200; 8]);
    (45..49).for_each(|page| assert_eq!(device.word(at(page)), expected, "page {page}"));
}

#[test]
fn a_page_pinned_for_writing_stays_dirty_until_it_is_unpinned() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    let pin = map.pin(at(2)..at(3), Access::ReadWrite).unwrap();
    for _ in 0..4 {
        map.flush(at(2)..at(3)).unwrap();
        map.advise(at(2)..at(3), Advice::DontNeed).unwrap();
        assert_eq!(cache.stats().dirty_pages, 1);
        assert!(map.is_resident(at(2)));
    }
    drop(pin);
    map.flush(at(2)..at(3)).unwrap();
    assert_eq!(cache.stats().dirty_pages, 0);
}

/// A system call that reads from memory pinned for reading works beside evictions.
#[test]
fn system_calls_read_from_pages_pinned_for_reading_beside_evictions() {
    let cache = tiny_cache();
    let device = Device::of_pages(2000);
    (0..2000).for_each(|page| device.set_word(at(page), page));
    let map = open(&cache, &device);
    let mut out = tempfile::tempfile().unwrap();
    for first in (0..1900).step_by(100) {
        let pin = map.pin(at(first)..at(first + 50), Access::ReadOnly).unwrap();
        (0..2000).step_by(3).for_each(|page| assert_eq!(load(&map, at(page)), page));
        // SAFETY: the pinned range, to which nobody stores.
        let bytes = unsafe { std::slice::from_raw_parts(pin.as_ptr(), pin.len()) };
        out.write_all(bytes).unwrap();
    }
}

/// A load that waits for a page in Evicting or Loading, and a store in Protecting, all wait on the same word: each is
/// woken.
#[test]
fn waiters_of_all_kinds_on_one_page_are_woken() {
    let _watchdog = watchdog("waiters_of_all_kinds_on_one_page_are_woken");
    let cache = roomy_cache();
    let device = Device::of_pages(2);
    device.slow_reads(Duration::from_micros(50));
    let map = open(&cache, &device);
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..6 {
            let (map, turns) = (&map, &turns);
            scope.spawn(move || {
                while turns.fetch_add(1, Ordering::Relaxed) < 20_000 {
                    match thread {
                        0 | 1 => store(map, at(1) + 8 * thread, 1),
                        2 => map.advise(0..map.len(), Advice::DontNeed).unwrap(),
                        3 => map.flush(at(1)..at(2)).unwrap(),
                        4 => drop(map.pin(at(1)..at(2), Access::ReadWrite).unwrap()),
                        _ => assert_eq!(load(map, at(1) + 64), 0),
                    }
                }
            });
        }
    });
    map.close().unwrap();
    crate::support::check_empty(&cache);
}
