//! What default mappings read ahead of: scans going up or down, and nothing else; counted in reads of the device.

use std::sync::{Arc, Barrier};

use vmio::backing::FileBacking;
use vmio::probe::KernelFeature;
use vmio::{Access, Advice, Cache, FrameHint, Mapping, MappingOptions};

use crate::support::device::Device;
use crate::support::{
    PAGE, SPAN, at, cache_of, check_budget, check_empty, frames, has_io_uring, is_managed, load, minimal_cache,
    roomy_cache, store,
};

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
    // Where the kernel notes stores, what comes in behind them is clean.
    if frames() == FrameHint::ReadMostly {
        let stats = cache.stats();
        assert_eq!((stats.dirty_pages, stats.read_ahead_pages), (100, 0));
    }
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

/// Long enough that chance is no stride.
const MATRIX_PAGES: u64 = 64 * SPAN;

/// Pages of zeros in a file, whose reads the kernel can do by itself. None where it does not let us.
fn file_and_rings() -> Option<tempfile::NamedTempFile> {
    if is_managed("which pages come along with a miss") {
        return None;
    }
    if frames() == FrameHint::SharedAddresses || !has_io_uring() {
        test_depth::skipped("no io_uring, or a page may be seen at several addresses");
        return None;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MATRIX_PAGES * PAGE).unwrap();
    Some(file)
}

fn open(cache: &Cache, file: &tempfile::NamedTempFile) -> Mapping {
    let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
    Mapping::open(cache, backing, MappingOptions::new()).unwrap()
}

#[test]
fn strides_are_read_ahead_of_up_and_down() {
    let Some(file) = file_and_rings() else { return };
    // Every fourth page, every 64 KiB, columns of 1 and 5 MiB.
    for stride in [4, 16, 256, 1280] {
        let steps = (MATRIX_PAGES / stride).min(2000);
        for down in [false, true] {
            let cache = roomy_cache();
            let map = open(&cache, &file);
            let page = |step| if down { MATRIX_PAGES - 1 - step * stride } else { 3 + step * stride };
            (0..steps)
                .take_while(|step| page(*step) < MATRIX_PAGES)
                .for_each(|step| assert_eq!(load(&map, at(page(step))), 0));
            // A load goes on as soon as its page is there; what else its miss brings in is counted when it is through.
            map.close().unwrap();
            let stats = cache.stats();
            assert!(
                stats.load_misses <= 9 + steps / 32 + 1,
                "{} misses of {steps}, stride {stride}",
                stats.load_misses
            );
            assert!(
                stats.read_bytes <= (steps + 31) * PAGE,
                "{} bytes of {steps} pages, stride {stride}",
                stats.read_bytes
            );
            assert_eq!(stats.read_ahead_pages, stats.read_bytes / PAGE - stats.load_misses);
            check_empty(&cache);
        }
    }
}

#[test]
fn without_io_uring_strides_read_what_they_touch() {
    let Some(file) = file_and_rings() else { return };
    let cache = cache_of(16384).without(KernelFeature::IoUring).build().unwrap();
    let map = open(&cache, &file);
    (0..500).for_each(|step| assert_eq!(load(&map, at(step * 16)), 0));
    assert_eq!(read_so_far(&cache), (500, 500 * PAGE));
}

#[test]
fn columns_and_rows_of_one_thread_are_told_apart() {
    let Some(file) = file_and_rings() else { return };
    let cache = roomy_cache();
    let map = open(&cache, &file);
    // A row of pages, and a column beside it that crosses spans.
    for step in 0..400 {
        assert_eq!(load(&map, at(step)), 0);
        assert_eq!(load(&map, at(SPAN + step * 60)), 0);
    }
    let stats = cache.stats();
    assert!(stats.load_misses <= 60, "{} misses", stats.load_misses);
    assert!(stats.read_bytes <= (800 + 2 * 64) * PAGE, "{} bytes", stats.read_bytes);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn threads_that_take_turns_have_a_stride_each() {
    let Some(file) = file_and_rings() else { return };
    const STEPS: u64 = 400;
    let cache = roomy_cache();
    let map = open(&cache, &file);
    let turn = Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (map, turn) = (&map, &turn);
            // Within each other's spans, and never at each other's pages.
            scope.spawn(move || {
                for step in 0..STEPS {
                    turn.wait();
                    assert_eq!(load(map, at(step * 32 + thread * 7)), 0);
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.load_misses <= 2 * (9 + STEPS / 32 + 1), "{} misses", stats.load_misses);
    assert!(stats.read_bytes <= (2 * STEPS + 2 * 32) * PAGE, "{} bytes", stats.read_bytes);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn random_loads_of_a_file_bring_nothing_else() {
    let Some(file) = file_and_rings() else { return };
    let cache = roomy_cache();
    let map = open(&cache, &file);
    let mut pages: Vec<u64> = (0..4000)
        .map(|number: u64| {
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        })
        .map(|mixed| mixed % MATRIX_PAGES)
        .collect();
    pages.iter().for_each(|page| assert_eq!(load(&map, at(*page)), 0));
    pages.sort_unstable();
    pages.dedup();
    let read = pages.len() as u64;
    assert_eq!(read_so_far(&cache), (read, read * PAGE));
}

#[test]
fn advice_goes_before_strides() {
    let Some(file) = file_and_rings() else { return };
    let cache = roomy_cache();
    let map = open(&cache, &file);
    map.advise(0..map.len(), Advice::Random).unwrap();
    (0..300).for_each(|step| assert_eq!(load(&map, at(step * 16)), 0));
    assert_eq!(read_so_far(&cache), (300, 300 * PAGE));
    // Stores would make dirty what is only guessed.
    map.advise(0..map.len(), Advice::Normal).unwrap();
    (0..300).for_each(|step| store(&map, at(step * 16 + 1), 7));
    let stats = cache.stats();
    assert_eq!((stats.read_ahead_pages, stats.dirty_pages), (0, 300));
}

#[test]
fn a_stride_through_more_than_the_cache_holds_keeps_to_the_budget() {
    let Some(file) = file_and_rings() else { return };
    let cache = minimal_cache();
    let map = open(&cache, &file);
    for start in 0..4 {
        for page in (start..MATRIX_PAGES).step_by(16) {
            assert_eq!(load(&map, at(page)), 0);
        }
        check_budget(&cache, &[&map]);
    }
    map.close().unwrap();
    check_empty(&cache);
}
