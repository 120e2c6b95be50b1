//! Many threads on a small cache: all make progress, none sees a wrong word, a missed page is read once.

use std::sync::Barrier;
use std::thread;

use vmio::{Advice, Mapping, MappingOptions};

use crate::support::device::Device;
use crate::support::{
    PAGE, Random, at, check_empty, load, load_and_store_as, minimal_cache, read, roomy_cache, store, tiny_cache,
    watchdog,
};

const THREADS: u64 = 64;

#[test]
fn sixty_four_threads_share_the_smallest_cache() {
    let _watchdog = watchdog("sixty_four_threads_share_the_smallest_cache");
    const PAGES: u64 = 2048;
    let cache = minimal_cache();
    let device = Device::of_pages(PAGES);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, cache) = (&map, &cache);
            scope.spawn(move || {
                let is_within_bounds = || assert!(cache.stats().resident_pages <= 256);
                let stored = load_and_store_as(thread, map, PAGES, 600, is_within_bounds);
                for (page, stored) in (0..).zip(stored) {
                    if stored > 0 {
                        assert_eq!(load(map, at(page) + 8 * thread), stored, "page {page} at the end");
                    }
                }
            });
        }
    });
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn threads_that_miss_the_same_page_read_it_once() {
    let _watchdog = watchdog("threads_that_miss_the_same_page_read_it_once");
    const ROUNDS: u64 = 100;
    let cache = roomy_cache();
    let device = Device::of_pages(ROUNDS);
    (0..ROUNDS).for_each(|page| device.set_word(at(page), page + 1));
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for thread in 0..16 {
            let (map, barrier) = (&map, &barrier);
            scope.spawn(move || {
                for page in 0..ROUNDS {
                    barrier.wait();
                    if (thread + page) % 4 == 0 {
                        store(map, at(page) + 8 + 8 * thread, page);
                    }
                    assert_eq!(load(map, at(page)), page + 1);
                }
            });
        }
    });
    (0..ROUNDS).for_each(|page| assert_eq!(device.reads_of(page), 1, "page {page}"));
    for page in 0..ROUNDS {
        for thread in (0..16).filter(|thread| (thread + page) % 4 == 0) {
            assert_eq!(load(&map, at(page) + 8 + 8 * thread), page);
        }
    }
}

#[test]
fn threads_that_store_to_the_same_pages_lose_nothing() {
    let _watchdog = watchdog("threads_that_store_to_the_same_pages_lose_nothing");
    let cache = tiny_cache();
    let (device, churned) = (Device::of_pages(4), Device::of_pages(2000));
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    let churn = Mapping::open(&cache, churned.backing(), MappingOptions::new()).unwrap();
    thread::scope(|scope| {
        for thread in 0..8 {
            let (map, churn) = (&map, &churn);
            scope.spawn(move || {
                let mut random = Random(thread);
                for count in 0..2000 {
                    for page in 0..4 {
                        assert_eq!(load(map, at(page) + 8 * thread), count);
                        store(map, at(page) + 8 * thread, count + 1);
                    }
                    match random.below(40) {
                        0 => map.advise(0..map.len(), Advice::DontNeed).unwrap(),
                        1 => map.flush(at(1)..at(2)).unwrap(),
                        _ => store(churn, at(random.below(2000)), 1),
                    }
                }
            });
        }
    });
    map.close().unwrap();
    for (page, thread) in (0..4).flat_map(|page| (0..8).map(move |thread| (page, thread))) {
        assert_eq!(device.word(at(page) + 8 * thread), 2000);
    }
}

#[test]
fn a_thousand_threads_come_and_go() {
    let _watchdog = watchdog("a_thousand_threads_come_and_go");
    const PAGES: u64 = 1000;
    let cache = tiny_cache();
    let device = Device::of_pages(PAGES);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    for wave in 0..20 {
        thread::scope(|scope| {
            for thread in 0..50 {
                let map = &map;
                scope.spawn(move || {
                    let mut random = Random(wave * 50 + thread);
                    for _ in 0..20 {
                        let page = random.below(PAGES);
                        let slot = at(page) + 8 * thread;
                        store(map, slot, wave + 1);
                        assert_eq!(load(map, slot), wave + 1);
                        assert_eq!(read(map, slot..slot + 8).unwrap(), (wave + 1).to_le_bytes());
                    }
                });
            }
        });
    }
    let stats = cache.stats();
    assert_eq!(stats.pinned_pages, 0);
    assert!(stats.resident_pages * PAGE <= cache.capacity_bytes());
    map.close().unwrap();
    check_empty(&cache);
}

/// Its workers hear that a cache ends, also one that has hardly begun.
#[test]
fn caches_come_and_go() {
    let _watchdog = watchdog("caches_come_and_go");
    let device = Device::of_pages(300);
    let caches = test_depth::pick(500, 1500);
    for count in 1..=caches {
        let cache = crate::support::cache_of(256).workers(1 + count % 4).build().unwrap();
        if count % 10 == 0 {
            let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
            (0..300).for_each(|page| store(&map, at(page), count as u64));
        }
    }
    assert_eq!(device.word(at(299)), caches as u64);
}

/// With all buffers for reads in use, threads wait for one: none is left behind.
#[test]
fn more_threads_than_read_buffers_wait_for_slow_reads() {
    let _watchdog = watchdog("more_threads_than_read_buffers_wait_for_slow_reads");
    const SLEEPERS: u64 = 400;
    let cache = roomy_cache();
    let device = Device::of_pages(SLEEPERS);
    device.slow_reads(std::time::Duration::from_millis(20));
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    map.advise(0..map.len(), Advice::Random).unwrap();
    thread::scope(|scope| {
        for page in 0..SLEEPERS {
            let map = &map;
            scope.spawn(move || assert_eq!(load(map, at(page)), 0));
        }
    });
    assert_eq!(cache.stats().load_misses, SLEEPERS);
}
