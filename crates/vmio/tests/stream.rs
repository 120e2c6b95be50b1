//! Scans of read-only mappings by whole spans.

use std::sync::Arc;
use std::thread;

use vmio::{Access, Advice, Cache, Engine, Error, FrameHint, Mapping, MappingOptions, Stats};

use crate::support::child::isolated;
use crate::support::device::{Device, READ_EIO};
use crate::support::{SPAN, at, check_empty, load, read, store, watchdog};

fn options() -> MappingOptions {
    MappingOptions::new().access(Access::ReadOnly).frames(FrameHint::Stream)
}

/// Huge pages come with the SIGBUS engine only.
fn cache_of(pages: u64) -> Cache {
    crate::support::cache_of(pages).engine(Engine::Sigbus).build().unwrap()
}

fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), options()).unwrap()
}

fn numbered(pages: u64) -> Arc<Device> {
    let device = Device::of_pages(pages);
    (0..pages).for_each(|page| device.set_word(at(page) + 8, page + 1));
    device
}

/// A scan of much more than the cache holds finds every page, and few of them by a miss.
#[test]
fn a_scan_finds_every_page_and_seldom_misses() {
    let _watchdog = watchdog("a_scan_finds_every_page_and_seldom_misses");
    // Where a worker and the scan get into each other's way, a span comes in by small pages.
    test_depth::one_of(5, stats_of_three_scans, |stats| stats.load_misses <= 3 * (64 + 100) && stats.moved_spans >= 64);
}

fn stats_of_three_scans() -> Stats {
    let cache = cache_of(16 * SPAN);
    let device = numbered(64 * SPAN + 100);
    let map = open(&cache, &device);
    for _ in 0..3 {
        (0..64 * SPAN + 100).for_each(|page| assert_eq!(load(&map, at(page) + 8), page + 1));
        crate::support::check_budget(&cache, &[&map]);
    }
    let stats = cache.stats();
    drop(map);
    check_empty(&cache);
    stats
}

/// Several threads that jump about in the same spans.
#[test]
fn threads_that_jump_about_see_what_is_there() {
    let _watchdog = watchdog("threads_that_jump_about_see_what_is_there");
    let cache = cache_of(8 * SPAN);
    let device = numbered(32 * SPAN);
    let map = open(&cache, &device);
    thread::scope(|scope| {
        for seed in 0..4 {
            let map = &map;
            scope.spawn(move || {
                let mut random = crate::support::Random(seed);
                for _ in 0..2_000 {
                    let page = random.below(32 * SPAN);
                    assert_eq!(load(map, at(page) + 8), page + 1);
                }
            });
        }
    });
    drop(map);
    check_empty(&cache);
}

/// One bad page does not spoil the rest of its span.
#[test]
fn the_neighbours_of_an_unreadable_page_can_be_had() {
    let cache = cache_of(8 * SPAN);
    let device = numbered(2 * SPAN);
    device.set_faults(77, READ_EIO);
    let map = open(&cache, &device);
    assert!((0..SPAN).filter(|page| *page != 77).all(|page| load(&map, at(page) + 8) == page + 1));
    assert!(matches!(read(&map, at(77)..at(78)), Err(Error::Read { .. })));
}

/// A cache with less room than a span takes pages one by one.
#[test]
fn a_small_cache_scans_too() {
    let cache = cache_of(256);
    let device = numbered(4 * SPAN);
    let map = open(&cache, &device);
    (0..4 * SPAN).for_each(|page| assert_eq!(load(&map, at(page) + 8), page + 1));
}

#[test]
fn a_store_is_a_signal() {
    isolated("stream::a_store_is_a_signal", || {
        let cache = cache_of(8 * SPAN);
        let device = numbered(2 * SPAN);
        let map = open(&cache, &device);
        assert_eq!(load(&map, at(3) + 8), 4);
        store(&map, at(3) + 8, 9);
    })
    .dies_of(libc::SIGBUS);
}

#[test]
fn a_mapping_that_can_be_stored_to_is_refused() {
    let device = Device::of_pages(SPAN);
    let options = MappingOptions::new().frames(FrameHint::Stream);
    let refused = Mapping::open(&cache_of(2 * SPAN), device.backing(), options);
    assert!(matches!(&refused, Err(Error::BadOption { option: "frames", .. })), "{refused:?}");
}

/// Once the cache is full, a span comes into the memory of one that goes, and other mappings get their pages back.
#[test]
fn huge_pages_are_recycled_and_given_up() {
    let _watchdog = watchdog("huge_pages_are_recycled_and_given_up");
    let cache = cache_of(16 * SPAN);
    let (device, other) = (numbered(64 * SPAN), numbered(12 * SPAN));
    let map = open(&cache, &device);
    let rest = Mapping::open(&cache, other.backing(), MappingOptions::new()).unwrap();
    for round in 0..4 {
        (0..64 * SPAN).for_each(|page| assert_eq!(load(&map, at(page) + 8), page + 1));
        crate::support::check_budget(&cache, &[&map, &rest]);
        (0..12 * SPAN).for_each(|page| {
            store(&rest, at(page) + 16, round);
            assert_eq!(load(&rest, at(page) + 8), page + 1);
        });
        crate::support::check_budget(&cache, &[&map, &rest]);
    }
    let stats = cache.stats();
    assert!(stats.recycled_spans > stats.moved_spans / 4, "{stats:?}");
    drop(map);
    rest.sync().unwrap();
    (0..12 * SPAN).for_each(|page| assert_eq!(other.word(at(page) + 16), 3));
    drop(rest);
    check_empty(&cache);
}

/// A huge page of which a part was given up, or is pinned, is not recycled.
#[test]
fn what_is_left_of_a_huge_page_goes_by_the_page() {
    let _watchdog = watchdog("what_is_left_of_a_huge_page_goes_by_the_page");
    let cache = cache_of(16 * SPAN);
    let device = numbered(64 * SPAN);
    let map = open(&cache, &device);
    for round in 0..3 {
        for span in 0..64 {
            let first = span * SPAN;
            assert_eq!(load(&map, at(first) + 8), first + 1);
            match span % 3 {
                0 => map.advise(at(first + 3)..at(first + 9), Advice::DontNeed).unwrap(),
                1 => {
                    let pin = map.pin(at(first + 5)..at(first + 6), Access::ReadOnly).unwrap();
                    (0..12).for_each(|step| {
                        let page = (first + (round + step) * SPAN) % (64 * SPAN);
                        assert_eq!(load(&map, at(page) + 8), page + 1);
                    });
                    drop(pin);
                }
                _ => {}
            }
            (first..first + SPAN).for_each(|page| assert_eq!(load(&map, at(page) + 8), page + 1));
        }
        crate::support::check_budget(&cache, &[&map]);
    }
    drop(map);
    check_empty(&cache);
}
