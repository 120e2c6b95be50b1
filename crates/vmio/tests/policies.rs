//! What eviction policies keep, told by the misses of the same accesses.

use std::error::Error;

use test_depth::one_of;
use vmio::backing::NullBacking;
use vmio::{Access, Advice, Cache, EvictionPolicy, FrameHint, Mapping, MappingOptions, Reuse};

const PAGE: u64 = 4096;
/// A cache of 8 MiB for pages, 2048 of them.
const CAPACITY: u64 = 13 << 20;
/// Half of what fits.
const HOT_PAGES: u64 = 1000;
const PAGES: u64 = 16 * 1024;
/// On a busy machine the evictors are put aside at any time, and then give up other pages than they should.
const TRIES: usize = 4;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A mapping without a device behind it.
fn mapping(policy: EvictionPolicy, frames: FrameHint) -> Outcome<(Cache, Mapping)> {
    let cache = Cache::builder().capacity(CAPACITY).policy(policy).build()?;
    let options = MappingOptions::new().access(Access::ReadOnly).frames(frames);
    let map = Mapping::open(&cache, NullBacking::new(PAGES * PAGE), options)?;
    map.advise(0..PAGES * PAGE, Advice::Random)?;
    Ok((cache, map))
}

fn touch(map: &Mapping, page: u64) -> vmio::Result<()> {
    map.ensure(page * PAGE..page * PAGE + 1)
}

/// The misses of a hot set that is touched in turn with a scan of all other pages.
fn misses_beside_a_scan(policy: EvictionPolicy, frames: FrameHint) -> Outcome<u64> {
    let (cache, map) = mapping(policy, frames)?;
    let mut random = 1_u64;
    for step in 0..6 * (PAGES - HOT_PAGES) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        touch(&map, (random >> 33) % HOT_PAGES)?;
        touch(&map, HOT_PAGES + step % (PAGES - HOT_PAGES))?;
    }
    Ok(cache.stats().load_misses)
}

#[test]
fn a_scan_passes_through_the_small_queue_of_s3_fifo() {
    let scanned = 6 * (PAGES - HOT_PAGES);
    for frames in [FrameHint::ReadMostly, FrameHint::Mixed] {
        let hot = |policy| misses_beside_a_scan(policy, frames).unwrap() - scanned;
        let fifo_and_s3_fifo = || (hot(EvictionPolicy::Fifo), hot(EvictionPolicy::S3Fifo));
        // Each hot page has to be missed twice at least before it is known for one.
        one_of(TRIES, fifo_and_s3_fifo, |(fifo, s3_fifo)| *s3_fifo < 6 * HOT_PAGES && *fifo > 4 * s3_fifo);
    }
}

/// Else what had been hot would hold the cache for good.
#[test]
fn s3_fifo_lets_a_hot_set_go_that_is_wanted_no_more() {
    // Of these misses, 10 for each page of a hot set are of pages seen once.
    one_of(TRIES, || misses_after_another_hot_set().unwrap(), |misses| *misses < 10 * HOT_PAGES * 5 / 4);
}

fn misses_after_another_hot_set() -> Outcome<u64> {
    let (cache, map) = mapping(EvictionPolicy::Auto, FrameHint::ReadMostly)?;
    let rounds_of = |first: u64, rounds: u64| -> Outcome<u64> {
        let before = cache.stats().load_misses;
        for round in 0..rounds {
            (first..first + HOT_PAGES).try_for_each(|page| touch(&map, page))?;
            // As many pages that nobody wants again.
            let other = 4 * HOT_PAGES + round * HOT_PAGES % (PAGES - 5 * HOT_PAGES);
            (other..other + HOT_PAGES).try_for_each(|page| touch(&map, page))?;
        }
        Ok(cache.stats().load_misses - before)
    };
    rounds_of(0, 20)?;
    rounds_of(2 * HOT_PAGES, 20)?;
    rounds_of(2 * HOT_PAGES, 10)
}

/// An index that is wanted in turn with this many other pages that no policy can tell that it will be.
fn misses_of_a_rare_index(reuse: Reuse) -> Outcome<u64> {
    const ROUNDS: u64 = 12;
    let (cache, map) = mapping(EvictionPolicy::Auto, FrameHint::ReadMostly)?;
    let span = 512 * PAGE;
    map.advise(0..HOT_PAGES.next_multiple_of(512) * PAGE, Advice::Reuse(reuse))?;
    let others = HOT_PAGES.next_multiple_of(512)..PAGES;
    assert!((others.start * PAGE).is_multiple_of(span) && others.end - others.start > 8 * HOT_PAGES);
    for round in 0..ROUNDS {
        (0..HOT_PAGES).try_for_each(|page| touch(&map, page))?;
        let first = others.start + round % 3 * 4 * HOT_PAGES;
        (first..first + 4 * HOT_PAGES).try_for_each(|page| touch(&map, page))?;
    }
    Ok(cache.stats().load_misses - ROUNDS * 4 * HOT_PAGES)
}

#[test]
fn pages_that_are_said_to_be_wanted_often_stay() {
    let unknown_and_often = || [Reuse::Unknown, Reuse::Often].map(|reuse| misses_of_a_rare_index(reuse).unwrap());
    one_of(TRIES, unknown_and_often, |[unknown, often]| *unknown > 7 * HOT_PAGES && *often < 3 * HOT_PAGES);
}

/// Each page of a scan is wanted a second time when it has just gone, and then never again.
fn misses_beside_a_scan_that_looks_back(reuse: Reuse) -> Outcome<u64> {
    const BACK: u64 = 500;
    let (cache, map) = mapping(EvictionPolicy::Auto, FrameHint::ReadMostly)?;
    let scanned = 2 * 1024..PAGES;
    map.advise(scanned.start * PAGE..scanned.end * PAGE, Advice::Reuse(reuse))?;
    let mut random = 1_u64;
    for page in scanned.start + BACK..scanned.end {
        for wanted in [page, page - BACK] {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            touch(&map, (random >> 33) % (HOT_PAGES * 3 / 2))?;
            touch(&map, wanted)?;
        }
    }
    Ok(cache.stats().load_misses - 2 * (scanned.end - scanned.start - BACK))
}

#[test]
fn pages_that_are_said_to_be_wanted_once_take_nothing_from_others() {
    let misses = |reuse| misses_beside_a_scan_that_looks_back(reuse).unwrap();
    one_of(TRIES, || [Reuse::Unknown, Reuse::Once].map(misses), |[unknown, once]| once * 2 < *unknown);
}

/// Pages that were missed of a range that is to be kept, after more than fits of pages that are to go first.
fn misses_of_what_is_kept(frames: FrameHint) -> Outcome<u64> {
    const KEPT: u64 = 512;
    let (cache, map) = mapping(EvictionPolicy::S3Fifo, frames)?;
    map.advise(0..KEPT * PAGE, Advice::Priority(0))?;
    map.advise(KEPT * PAGE..PAGES * PAGE, Advice::Priority(255))?;
    map.advise(KEPT * PAGE..PAGES * PAGE, Advice::Reuse(Reuse::Often))?;
    // Nothing but proven pages, then the new ones, then more proven ones than fit.
    (KEPT..6 * KEPT).try_for_each(|page| touch(&map, page))?;
    (0..KEPT).try_for_each(|page| touch(&map, page))?;
    (6 * KEPT..20 * KEPT).try_for_each(|page| touch(&map, page))?;
    let before = cache.stats().load_misses;
    (0..KEPT).try_for_each(|page| touch(&map, page))?;
    Ok(cache.stats().load_misses - before)
}

/// Whatever queues there are: a range that is to be kept stays while there is a page that is to go first. Where an evictor is put aside
/// that holds all spans of the higher priority, another one takes the range: on a busy machine that happens, but not each time.
#[test]
fn proven_pages_that_go_first_go_before_new_ones_that_are_to_be_kept() {
    for frames in [FrameHint::ReadMostly, FrameHint::Mixed] {
        one_of(TRIES, || misses_of_what_is_kept(frames).unwrap(), |missed| *missed == 0);
    }
}
