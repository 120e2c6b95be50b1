//! What an older kernel lacks is done without: the other path is really taken, and loses nothing.

use vmio::probe::{KernelFeature, probe, probe_without};
use vmio::{Access, Advice, Cache, Engine, Error, FrameHint, LockMemory, Mapping, MappingOptions, Stats};

use crate::support::device::Device;
use crate::support::{Random, SPAN, at, cache_of, check_empty, has_own_page_tables, is_root, load, store};

/// Four times as many pages as the cache has.
const SPANS: u64 = 64;
const PAGES: u64 = SPANS * SPAN;

/// What a cache of a quarter of the pages has done after random loads, and stores by every `store_each`th, of pages all
/// over the mapping; all of them are verified.
fn churn(cache: &Cache, store_each: u64) -> Stats {
    let device = Device::of_pages(PAGES);
    (0..PAGES).for_each(|page| device.set_word(at(page), page + 1));
    let map = Mapping::open(cache, device.backing(), MappingOptions::new()).unwrap();
    map.advise(0..map.len(), Advice::Random).unwrap();
    let mut random = Random(7);
    let mut stored = vec![0; PAGES as usize];
    for count in 1..=3 * PAGES {
        let page = random.below(PAGES);
        assert_eq!((load(&map, at(page)), load(&map, at(page) + 8)), (page + 1, stored[page as usize]), "page {page}");
        if count % store_each == 0 {
            stored[page as usize] = count;
            store(&map, at(page) + 8, count);
        }
        assert!(cache.stats().resident_pages <= PAGES / 4);
    }
    let stats = cache.stats();
    map.close().unwrap();
    check_empty(cache);
    (0..PAGES)
        .for_each(|page| assert_eq!(device.word(at(page) + 8), stored[page as usize], "page {page} on the device"));
    stats
}

fn evicted(stats: &Stats) -> u64 {
    stats.evicted_clean + stats.evicted_dirty
}

fn without_batched_unmap() -> Cache {
    cache_of(PAGES / 4).without(KernelFeature::BatchedUnmap).frames(FrameHint::ReadMostly).build().unwrap()
}

#[test]
fn without_batched_unmap_clean_spans_go_as_a_whole() {
    // A quarter of the pages is resident, and at random: with a shootdown for each run of neighbours it would be one
    // for 4 pages in 3. Where the evictors are late, threads that miss give up less at a time.
    let good = |stats: &Stats| evicted(stats) > PAGES && stats.shootdowns_evict * 64 <= evicted(stats);
    test_depth::one_of(3, || churn(&without_batched_unmap(), u64::MAX), good);
}

#[test]
fn without_batched_unmap_dirty_spans_are_written_and_go_as_a_whole() {
    // What is stored to while its span is written splits the run; still it is far from a page each.
    let good = |stats: &Stats| {
        stats.evicted_dirty > PAGES / 4 && (stats.shootdowns_evict + stats.shootdowns_write_back) * 24 <= evicted(stats)
    };
    test_depth::one_of(3, || churn(&without_batched_unmap(), 2), good);
}

#[test]
fn a_range_that_is_given_up_goes_at_once_without_batched_unmap() {
    let cache = cache_of(PAGES).without(KernelFeature::BatchedUnmap).frames(FrameHint::ReadMostly).build().unwrap();
    let device = Device::of_pages(PAGES);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    map.advise(0..map.len(), Advice::Random).unwrap();
    for advice in [Advice::DontNeed, Advice::Free] {
        (0..PAGES).step_by(3).for_each(|page| store(&map, at(page), page));
        let before = cache.stats();
        map.advise(0..map.len(), advice).unwrap();
        let after = cache.stats();
        assert_eq!(after.resident_pages, 0, "{advice:?}");
        // One for a span's pages; and one for its page tables, one for the page of words that it shares.
        assert!(after.shootdowns_evict - before.shootdowns_evict <= 3 * SPANS, "{advice:?}: {after:?}");
    }
}

#[test]
fn without_tracked_stores_mixed_frames_are_anonymous_ones() {
    if has_own_page_tables("stores that the kernel tracks") {
        return;
    }
    for feature in [KernelFeature::WpAsync, KernelFeature::PagemapScan, KernelFeature::ShmemWp] {
        let cache = cache_of(PAGES).without(feature).frames(FrameHint::Mixed).build().unwrap();
        let device = Device::of_pages(100);
        let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
        for page in 0..100 {
            assert_eq!(load(&map, at(page)), 0);
            store(&map, at(page), page);
        }
        assert_eq!(cache.stats().write_protect_faults, 100, "{feature}");
        map.sync().unwrap();
        assert_eq!(device.word(at(99)), 99);
    }
}

#[test]
fn without_moved_pages_scans_come_in_by_small_pages() {
    for hint in [FrameHint::Stream, FrameHint::Dynamic] {
        let cache = cache_of(PAGES).engine(Engine::Sigbus).without(KernelFeature::MovePages).build().unwrap();
        let device = Device::of_pages(PAGES / 8);
        (0..PAGES / 8).for_each(|page| device.set_word(at(page), page + 1));
        let options = MappingOptions::new().access(Access::ReadOnly).frames(hint);
        let map = Mapping::open(&cache, device.backing(), options).unwrap();
        (0..PAGES / 8).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
        let stats = cache.stats();
        assert_eq!((stats.moved_spans, stats.read_bytes), (0, PAGES / 8 * vmio::PAGE_BYTES as u64), "{stats:?}");
    }
}

#[test]
fn a_cache_is_not_locked_where_locked_pages_cannot_be_evicted() {
    if !is_root("locking memory") {
        return;
    }
    let options = || cache_of(PAGES).lock_memory(LockMemory::Require);
    let refused = options().without(KernelFeature::UnmapLocked).build().unwrap_err();
    assert!(matches!(refused, Error::BadOption { option: "lock_memory", .. }), "{refused}");
    assert!(refused.to_string().contains("5.18"), "{refused}");
    if probe().kernel.iter().any(|(feature, probe)| *feature == KernelFeature::UnmapLocked && probe.is_yes()) {
        options().build().unwrap();
    }
}

#[test]
fn a_declined_feature_is_reported_as_missing() {
    for declined in KernelFeature::ALL {
        let (with, without) = (probe().kernel, probe_without(&[declined]).kernel);
        for ((feature, there), (same, left)) in with.into_iter().zip(without) {
            assert_eq!(feature, same);
            assert_eq!(left.is_yes(), there.is_yes() && feature != declined, "{feature} without {declined}");
        }
    }
}

/// Where KVM is missing, or emulates ring 0, the cache says so, and no other engine takes its place.
#[test]
fn without_ring_0_its_engine_is_refused() {
    match Cache::builder().capacity(16 << 20).engine(Engine::Ring0).build() {
        Ok(_) => test_depth::skipped("ring 0 runs on this machine"),
        Err(Error::NoRing0 { reason }) => {
            assert!(reason.contains("kvm") || reason.contains("ring 0"), "{reason}")
        }
        Err(other) => panic!("{other}"),
    }
}
