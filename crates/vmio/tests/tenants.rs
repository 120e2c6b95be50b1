//! Mappings with a floor or a ceiling in one cache: what others do does not push one below its floor, and none takes more
//! than its ceiling while it can help it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use proptest::prelude::*;
use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Engine, Error, FrameHint, Mapping, MappingOptions, UnsupportedBy};

use crate::support::device::{Device, WRITE_EIO};
use crate::support::{PAGE, SPAN, at, cache_of, check_empty, is_managed, load, load_and_store_as, store, watchdog};

/// The tables of a span that has just emptied go whatever the floor, since they hold nothing.
const TABLES: u64 = 2;

fn open(cache: &Cache, device: &Arc<Device>, options: MappingOptions) -> Mapping {
    Mapping::open(cache, device.backing(), options).unwrap()
}

fn floor(pages: u64) -> MappingOptions {
    MappingOptions::new().floor(pages * PAGE)
}

fn ceiling(pages: u64) -> MappingOptions {
    MappingOptions::new().ceiling(pages * PAGE)
}

/// What floors and ceilings bound.
fn held(map: &Mapping) -> u64 {
    let usage = map.usage();
    usage.resident_pages + usage.table_pages
}

/// What is left of a mapping that was all in memory when others have been scanned, and the least that was left meanwhile.
fn after_a_scan(options: MappingOptions, stores: bool) -> (u64, u64) {
    const KEPT: u64 = 2 * SPAN + 100;
    const SCANNED: u64 = 8192;
    let cache = cache_of(2048).build().unwrap();
    let (device, other) = (Device::of_pages(KEPT), Device::of_pages(SCANNED));
    let map = open(&cache, &device, options);
    let scanned = open(&cache, &other, MappingOptions::new());
    (0..KEPT)
        .for_each(|page| if stores { store(&map, at(page), page + 1) } else { assert_eq!(load(&map, at(page)), 0) });
    assert!(held(&map) >= KEPT, "{:?}", map.usage());
    let mut least = held(&map);
    for page in (0..SCANNED).chain(0..SCANNED) {
        if stores && page % 3 == 0 {
            store(&scanned, at(page), page + 7);
        } else {
            load(&scanned, at(page));
        }
        least = least.min(held(&map));
    }
    let left = held(&map);
    if stores {
        (0..KEPT).for_each(|page| assert_eq!(load(&map, at(page)), page + 1, "page {page}"));
        (0..SCANNED).step_by(3).for_each(|page| assert_eq!(load(&scanned, at(page)), page + 7, "page {page}"));
    }
    for map in [map, scanned] {
        map.close().unwrap();
    }
    check_empty(&cache);
    (least, left)
}

#[test]
fn a_scan_through_one_mapping_leaves_the_other_its_floor() {
    let _watchdog = watchdog("a_scan_through_one_mapping_leaves_the_other_its_floor");
    if is_managed("floors") {
        return;
    }
    for stores in [false, true] {
        let (least, left) = after_a_scan(floor(1000), stores);
        assert!(least >= 1000 - 3 * TABLES, "{least} pages of 1000 at some time, stores: {stores}");
        assert!(left <= 1100, "what is above the floor goes: {left} pages are left");
        let (_, left) = after_a_scan(MappingOptions::new(), stores);
        assert!(left < 500, "without a floor {left} pages are left, stores: {stores}");
    }
}

/// Threads load and store all over a file, of which a part may be in memory, while most of the cache is free.
fn a_ceiling_holds(options: MappingOptions, most: u64, least: u64) {
    const PAGES: u64 = 4096;
    const THREADS: u64 = 4;
    let cache = cache_of(8192).build().unwrap();
    let device = Device::of_pages(PAGES);
    let map = open(&cache, &device, options);
    let (running, highest) = (AtomicU64::new(THREADS), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, running) = (&map, &running);
            scope.spawn(move || {
                load_and_store_as(thread, map, PAGES, 20_000, || {});
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            while running.load(Ordering::SeqCst) > 0 && !thread::panicking() {
                highest.fetch_max(held(&map), Ordering::SeqCst);
                thread::yield_now();
            }
        });
    });
    // The thread that looks may have had no core.
    let now = held(&map);
    let highest = highest.into_inner().max(now);
    assert!(highest <= most, "{highest} pages at some time, {most} are allowed");
    assert!(now >= least, "{now} pages where {most} are allowed");
    assert!(cache.stats().free_pages >= 8192 - highest, "{:?}", cache.stats());
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_ceiling_holds_while_memory_is_free_elsewhere() {
    let _watchdog = watchdog("a_ceiling_holds_while_memory_is_free_elsewhere");
    if is_managed("ceilings") {
        return;
    }
    // Each of the threads may bring along its page and the tables of a span; what a ceiling evicts at a time is a sixteenth.
    a_ceiling_holds(ceiling(600), 600 + 4 * 3, 500);
    a_ceiling_holds(ceiling(256), 256 + 4 * 3, 200);
    a_ceiling_holds(ceiling(600).floor(600 * PAGE), 600 + 4 * 3, 500);
    // With the rest of its unit.
    a_ceiling_holds(ceiling(600).unit(vmio::Unit::Kib16), 600 + 4 * 6, 450);
}

/// A thread that waits for its turn to evict has not found that nothing can go.
#[test]
fn a_ceiling_holds_while_evictions_take_long() {
    let _watchdog = watchdog("a_ceiling_holds_while_evictions_take_long");
    if is_managed("ceilings") {
        return;
    }
    const CEILING: u64 = 256;
    const THREADS: u64 = 8;
    let cache = cache_of(4096).build().unwrap();
    let device = Device::of_pages(2 * SPAN);
    device.slow_writes(Duration::from_millis(20));
    let map = open(&cache, &device, ceiling(CEILING));
    let highest = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (map, highest) = (&map, &highest);
            scope.spawn(move || {
                for page in (thread..SPAN).step_by(THREADS as usize) {
                    // No neighbours, which a write would take along.
                    store(map, at(2 * page), 1);
                    highest.fetch_max(held(map), Ordering::SeqCst);
                }
            });
        }
    });
    // All pages lie in two spans, whose tables may come in over the ceiling.
    let highest = highest.into_inner();
    assert!(highest <= CEILING + THREADS, "{highest} pages at some time");
    device.slow_writes(Duration::ZERO);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn read_ahead_fetches_and_advice_stay_below_the_ceiling() {
    let _watchdog = watchdog("read_ahead_fetches_and_advice_stay_below_the_ceiling");
    if is_managed("ceilings") {
        return;
    }
    const PAGES: u64 = 2048;
    let cache = cache_of(4096).build().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let contents: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE as usize]).collect();
    std::fs::write(file.path(), contents).unwrap();
    let backing = FileBacking::open(file.path(), Access::ReadOnly).unwrap();
    let map = Mapping::open(&cache, backing, ceiling(300)).unwrap();
    let check = |what: &str| assert!(held(&map) <= 300 + 3, "{what}: {:?}", map.usage());
    for page in 0..PAGES {
        assert_eq!(load(&map, at(page)), u64::from_ne_bytes([page as u8; 8]));
        check("read-ahead");
    }
    map.advise(0..map.len(), Advice::WillNeed).unwrap();
    check("advice");
    map.ensure(0..at(1000)).unwrap();
    check("ensure");
    map.prefetch(Some(0..map.len())).unwrap();
    for _ in 0..2 {
        futures::executor::block_on(map.fetch(Some(0..map.len()))).unwrap();
        check("fetch");
    }
    let refused = map.pin(at(0)..at(230), Access::ReadOnly);
    assert!(matches!(refused, Err(Error::TooManyPins { limit_pages: 225, .. })));
    let pin = map.pin(at(500)..at(700), Access::ReadOnly).unwrap();
    (0..PAGES).for_each(|page| assert_eq!(load(&map, at(page)), u64::from_ne_bytes([page as u8; 8])));
    check("with a pin");
    assert!(matches!(map.pin(at(0)..at(100), Access::ReadOnly), Err(Error::TooManyPins { .. })));
    drop(pin);
    drop(map.pin(at(0)..at(200), Access::ReadOnly).unwrap());
}

#[test]
fn a_stream_at_its_ceiling_makes_room_for_its_own_huge_pages() {
    let _watchdog = watchdog("a_stream_at_its_ceiling_makes_room_for_its_own_huge_pages");
    if is_managed("ceilings") {
        return;
    }
    const PAGES: u64 = 16 * 1024;
    const CEILING: u64 = 4096;
    let file = tempfile::NamedTempFile::new().unwrap();
    let contents: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE as usize]).collect();
    std::fs::write(file.path(), contents).unwrap();
    for hint in [FrameHint::Stream, FrameHint::Dynamic] {
        for (ceiling_pages, whole_spans) in [(CEILING, true), (CEILING - 1, false)] {
            let cache = cache_of(PAGES).build().unwrap();
            let backing = FileBacking::open(file.path(), Access::ReadOnly).unwrap();
            let map = Mapping::open(&cache, backing, ceiling(ceiling_pages).frames(hint)).unwrap();
            for page in (0..PAGES).chain(0..PAGES) {
                assert_eq!(load(&map, at(page)), u64::from_ne_bytes([page as u8; 8]));
                // Two workers and this thread may each bring in a span that had room when they looked.
                assert!(held(&map) <= ceiling_pages + 3 * (SPAN + TABLES), "{hint:?}: {:?}", map.usage());
            }
            let stats = cache.stats();
            assert!(whole_spans || stats.moved_spans == 0, "{stats:?}");
            assert!(stats.moved_spans == 0 || stats.recycled_spans > 0, "{stats:?}");
            assert!(stats.free_pages >= PAGES - CEILING - 3 * (SPAN + TABLES), "{stats:?}");
            map.close().unwrap();
            check_empty(&cache);
        }
    }
}

#[test]
fn floors_that_leave_too_little_are_refused_with_their_sum() {
    if is_managed("floors") {
        return;
    }
    let cache = cache_of(2048).build().unwrap();
    let devices: Vec<_> = (0..3).map(|_| Device::of_pages(10)).collect();
    // The smallest cache, 32 pages, and a thirty-second.
    let limit = 2048 - 256 - 32 - 64;
    let first = open(&cache, &devices[0], floor(1000));
    let second = || Mapping::open(&cache, devices[1].backing(), floor(limit - 1000 + 1));
    let refused = |error: &Error| {
        assert!(
            matches!(error, Error::FloorsTooHigh { floor_bytes, others_bytes, limit_bytes }
                if (*floor_bytes, *others_bytes, *limit_bytes) == ((limit - 999) * PAGE, 1000 * PAGE, limit * PAGE)),
            "{error}"
        );
    };
    refused(&second().unwrap_err());
    let third = open(&cache, &devices[2], floor(limit - 1000));
    let error = cache.resize((5 << 20) + 2047 * PAGE - 32 * PAGE).unwrap_err();
    assert!(matches!(error, Error::NotShrunk { .. }) && error.to_string().contains("floors"), "{error}");
    assert_eq!(cache.stats().capacity_pages, 2048);
    third.close().unwrap();
    // Those of closed mappings count no more, nor those that were refused.
    refused(&second().unwrap_err());
    first.close().unwrap();
    second().unwrap().close().unwrap();
    cache.resize((5 << 20) + 256 * PAGE).unwrap();
    check_empty(&cache);
}

#[test]
fn bounds_that_make_no_sense_are_refused() {
    let cache = cache_of(2048).build().unwrap();
    if is_managed("floors and ceilings") {
        return;
    }
    let device = Device::of_pages(10);
    for options in [ceiling(255), ceiling(0), ceiling(500).floor(501 * PAGE)] {
        let error = Mapping::open(&cache, device.backing(), options).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: "ceiling", .. }), "{error}");
    }
    let error = Mapping::open(&cache, device.backing(), MappingOptions::new().floor(u64::MAX)).unwrap_err();
    assert!(matches!(error, Error::BadOption { option: "floor", .. }), "{error}");
    assert!(open(&cache, &device, MappingOptions::new().ceiling(u64::MAX)).close().is_ok());
}

#[test]
fn the_managed_engine_refuses_them() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(10 * PAGE).unwrap();
    let cache = cache_of(2048).engine(Engine::Managed).build().unwrap();
    for options in [floor(1), ceiling(1000)] {
        let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
        let error = Mapping::open(&cache, backing, options).unwrap_err();
        assert!(
            matches!(error, Error::Unsupported { by: UnsupportedBy::ManagedEngine, .. })
                && error.to_string().contains("ceiling"),
            "{error}"
        );
    }
}

#[test]
fn a_shrinking_cache_leaves_floors_alone() {
    let _watchdog = watchdog("a_shrinking_cache_leaves_floors_alone");
    if is_managed("floors") {
        return;
    }
    let cache = cache_of(4096).build().unwrap();
    let (device, other) = (Device::of_pages(1024), Device::of_pages(2500));
    let map = open(&cache, &device, floor(1000));
    let others = open(&cache, &other, MappingOptions::new());
    (0..1024).for_each(|page| store(&map, at(page), page));
    (0..2500).for_each(|page| store(&others, at(page), page));
    cache.resize((5 << 20) + 1400 * PAGE).unwrap();
    assert!(held(&map) >= 1000 - 2 * TABLES && held(&others) <= 400, "{:?} {:?}", map.usage(), others.usage());
    (0..1024).for_each(|page| assert_eq!(load(&map, at(page)), page));
    (0..2500).for_each(|page| assert_eq!(load(&others, at(page)), page));
    assert!(held(&map) >= 1000 - 2 * TABLES, "{:?}", map.usage());
}

/// A bound never makes an access fail: what cannot be written takes the place of what can go.
#[test]
fn bounds_give_way_to_pages_that_cannot_be_written() {
    let _watchdog = watchdog("bounds_give_way_to_pages_that_cannot_be_written");
    if is_managed("backings that fail") {
        return;
    }
    let cache = cache_of(1024).dirty_ratio(1.0).build().unwrap();
    let (device, broken) = (Device::of_pages(700), Device::of_pages(800));
    let map = open(&cache, &device, floor(600));
    let stuck = open(&cache, &broken, ceiling(256));
    (0..700).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    broken.set_all_faults(WRITE_EIO);
    (0..700).for_each(|page| store(&stuck, at(page), page + 1));
    assert!(held(&stuck) >= 700 && held(&map) < 600, "{:?} {:?}", stuck.usage(), map.usage());
    (0..700).for_each(|page| assert_eq!(load(&stuck, at(page)), page + 1));
    broken.set_all_faults(0);
    (700..720).for_each(|page| store(&stuck, at(page), page + 1));
    assert!(held(&stuck) <= 256 + 3, "the ceiling holds again: {:?}", stuck.usage());
    (0..720).for_each(|page| assert_eq!(load(&stuck, at(page)), page + 1));
    (0..700).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    assert!(held(&map) >= 600, "the floor is filled again: {:?}", map.usage());
}

/// Bounds in pages, or none.
fn bounds() -> impl Strategy<Value = (u64, Option<u64>)> {
    prop_oneof![
        Just((0, None)),
        (0..400_u64).prop_map(|floor| (floor, None)),
        (256..900_u64).prop_map(|ceiling| (0, Some(ceiling))),
        (0..300_u64, 300..900_u64).prop_map(|(floor, ceiling)| (floor, Some(ceiling))),
    ]
}

/// Stretches of three files are loaded and stored to by turns. Whatever the bounds, nothing is lost, no mapping is above its
/// ceiling, and none that others push falls below its floor.
fn run(all: [(u64, Option<u64>); 3], operations: Vec<(usize, u64, u64, bool)>) {
    const PAGES: u64 = 1200;
    let cache = cache_of(1600).build().unwrap();
    let maps: Vec<_> = all
        .iter()
        .map(|(low, high)| {
            let options = high.map_or(floor(*low), |high| ceiling(high).floor(low * PAGE));
            open(&cache, &Device::of_pages(PAGES), options)
        })
        .collect();
    let mut stored = vec![vec![0_u64; PAGES as usize]; maps.len()];
    for (number, (which, first, count, stores)) in (1..).zip(operations) {
        let before: Vec<u64> = maps.iter().map(held).collect();
        for page in first..(first + count).min(PAGES) {
            let value = &mut stored[which][page as usize];
            if stores {
                *value = number;
                store(&maps[which], at(page), number);
            } else {
                assert_eq!(load(&maps[which], at(page)), *value, "page {page} of mapping {which}");
            }
        }
        for (other, map) in maps.iter().enumerate() {
            let (low, high) = all[other];
            assert!(held(map) <= high.unwrap_or(u64::MAX).saturating_add(3), "{:?} of mapping {other}", map.usage());
            let kept = before[other].min(low).saturating_sub(3 * TABLES);
            assert!(other == which || held(map) >= kept, "{:?} of mapping {other}, {kept} before", map.usage());
        }
    }
    for (map, stored) in maps.iter().zip(&stored) {
        (0..PAGES).for_each(|page| assert_eq!(load(map, at(page)), stored[page as usize], "page {page} at the end"));
    }
    maps.into_iter().for_each(|map| map.close().unwrap());
    check_empty(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(8, 24), max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn mappings_with_bounds_keep_them_and_lose_nothing(
        all in [bounds(), bounds(), bounds()],
        operations in prop::collection::vec((0..3_usize, 0..1200_u64, 1..800_u64, any::<bool>()), 1..40),
    ) {
        if !is_managed("") {
            run(all, operations);
        }
    }
}

/// Where pins and page tables hold all that a mapping may have, its fetches come in over the ceiling in the end, as its
/// faults do, and those of others do not wait for that.
#[test]
fn a_fetch_at_a_ceiling_that_nothing_can_leave_ends() {
    if is_managed("a ceiling") {
        return;
    }
    let _watchdog = watchdog("a_fetch_at_a_ceiling_that_nothing_can_leave_ends");
    const SPANS: u64 = 128;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache_of(4096).build().unwrap();
    let open_file = |name: &str, options: MappingOptions| {
        let file = FileBacking::create(dir.path().join(name), SPANS * SPAN * PAGE).unwrap();
        Mapping::open(&cache, file, options).unwrap()
    };
    let (map, other) = (open_file("bounded", ceiling(256)), open_file("free", MappingOptions::new()));
    let pin = |span: u64| map.pin(at(span * SPAN)..at(span * SPAN + 1), Access::ReadOnly).unwrap();
    let pins: Vec<_> = (0..SPANS).step_by(2).map(pin).collect();
    // Each keeps the page tables of two spans.
    (1..SPANS).step_by(2).for_each(|span| assert_eq!(load(&map, at(span * SPAN)), 0));
    assert!(held(&map) > 256, "{:?}", map.usage());
    let bounded = map.fetch((7..8).map(|page| at(page)..at(page + 1)));
    let free = other.fetch((0..64).map(|page| at(page * 3)..at(page * 3 + 1)));
    block_on(free).unwrap();
    block_on(bounded).unwrap();
    drop(pins);
}
