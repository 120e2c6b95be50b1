//! What default mappings read ahead of: scans going up or down, and nothing else; counted in reads of the device.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use vmio::{Advice, Cache, Mapping, MappingOptions};

use support::device::Device;
use support::{PAGE, SPAN, at, check_budget, check_empty, is_managed, load, minimal_cache, roomy_cache, store};

const PAGES: u64 = 4 * SPAN + 5;

fn numbered() -> Arc<Device> {
    let device = Device::of_pages(PAGES);
    (0..PAGES).for_each(|page| device.set_word(at(page), page + 1));
    device
}

/// Reads of the device, and bytes read, while `pages` are loaded through a default mapping of a cache that holds all.
fn reads_of(pages: impl IntoIterator<Item = u64>, prepare: impl FnOnce(&Mapping)) -> (u64, u64) {
    let cache = roomy_cache();
    let map = Mapping::open(&cache, numbered().backing(), MappingOptions::new()).unwrap();
    prepare(&map);
    pages.into_iter().for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    let read = read_so_far(&cache);
    map.close().unwrap();
    check_empty(&cache);
    read
}

fn read_so_far(cache: &Cache) -> (u64, u64) {
    let stats = cache.stats();
    (stats.reads, stats.read_bytes)
}

#[test]
fn a_scan_going_up_makes_few_reads_and_none_beyond_the_end() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    let (reads, bytes) = reads_of(0..PAGES, |_| {});
    assert!(reads <= PAGES / 16, "{reads} reads of {PAGES} pages");
    assert_eq!(bytes, PAGES * PAGE, "each page is read once");
}

#[test]
fn a_scan_going_down_makes_few_reads_too() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    let (reads, bytes) = reads_of((0..PAGES).rev(), |_| {});
    assert!(reads <= PAGES / 16, "{reads} reads of {PAGES} pages");
    assert_eq!(bytes, PAGES * PAGE, "each page is read once");
    // To and fro: only what has been read ahead is in memory.
    let (_, bytes) = reads_of((SPAN..SPAN + 20).chain((SPAN - 20..SPAN).rev()), |_| {});
    assert!(bytes <= 100 * PAGE, "{bytes} bytes");
}

#[test]
fn strides_read_what_they_touch() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    assert_eq!(reads_of((0..PAGES).rev().step_by(2), |_| {}), (PAGES.div_ceil(2), PAGES.div_ceil(2) * PAGE));
    assert_eq!(reads_of((0..PAGES).step_by(3), |_| {}), (PAGES.div_ceil(3), PAGES.div_ceil(3) * PAGE));
}

#[test]
fn random_loads_read_what_they_touch() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    let mut pages: Vec<u64> = (0..PAGES).collect();
    // In an order that has no order: by a mixing function of their numbers.
    pages.sort_by_key(|page| {
        (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    });
    assert_eq!(reads_of(pages, |_| {}), (PAGES, PAGES * PAGE));
}

#[test]
fn scans_of_two_threads_do_not_disturb_each_other() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    let cache = roomy_cache();
    let map = Mapping::open(&cache, numbered().backing(), MappingOptions::new()).unwrap();
    let scan = |pages: std::ops::Range<u64>| pages.for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    std::thread::scope(|scope| {
        scope.spawn(|| scan(0..2 * SPAN));
        scope.spawn(|| scan(2 * SPAN..PAGES));
    });
    let (reads, bytes) = read_so_far(&cache);
    assert!(reads <= PAGES / 16, "{reads} reads of {PAGES} pages");
    assert_eq!(bytes, PAGES * PAGE);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn advice_goes_before_what_is_found_out() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    let random = |map: &Mapping| map.advise(0..map.len(), Advice::Random).unwrap();
    assert_eq!(reads_of(0..PAGES, random), (PAGES, PAGES * PAGE));
    let sequential = |map: &Mapping| map.advise(0..map.len(), Advice::Sequential { window_bytes: 0 }).unwrap();
    assert_eq!(reads_of(0..PAGES, sequential).0, PAGES.div_ceil(32));
    let first_span = |map: &Mapping| map.advise(0..at(SPAN), Advice::Random).unwrap();
    let (reads, _) = reads_of(0..PAGES, first_span);
    assert!((SPAN..SPAN + PAGES / 16).contains(&reads), "{reads} reads");
    let normal_again = |map: &Mapping| {
        map.advise(0..map.len(), Advice::Random).unwrap();
        map.advise(0..at(SPAN), Advice::Random).unwrap();
        map.advise(0..map.len(), Advice::Normal).unwrap();
    };
    assert!(reads_of(0..PAGES, normal_again).0 <= PAGES / 16);
}

#[test]
fn stores_make_nothing_dirty_but_what_they_store_to() {
    if is_managed("which pages are dirty") {
        return;
    }
    let cache = roomy_cache();
    let device = numbered();
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    (0..100).for_each(|page| store(&map, at(page) + 8, page));
    let stats = cache.stats();
    assert_eq!((stats.dirty_pages, stats.read_ahead_pages), (100, 0));
    // Pages that loads have read ahead are as clean as those that they asked for.
    (SPAN..2 * SPAN).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    map.sync().unwrap();
    assert_eq!(cache.stats().written_bytes, 100 * PAGE);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_scan_of_more_than_the_cache_holds_keeps_to_the_budget() {
    if is_managed("which pages come along with a miss") {
        return;
    }
    let cache = minimal_cache();
    let map = Mapping::open(&cache, numbered().backing(), MappingOptions::new()).unwrap();
    for _ in 0..2 {
        for page in 0..PAGES {
            assert_eq!(load(&map, at(page)), page + 1);
        }
        check_budget(&cache, &[&map]);
    }
    map.close().unwrap();
    check_empty(&cache);
}
