//! What a sync acknowledges is on the device, whatever evicts, stores, pins or syncs beside it; and it writes nothing
//! that became dirty after it began.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::device::Device;
use crate::support::{SPAN, at, kernel_notes_stores, load, roomy_cache, store, tiny_cache, watchdog};
use vmio::{Access, Advice, Mapping, MappingOptions};

fn open(cache: &vmio::Cache, device: &std::sync::Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new()).unwrap()
}

#[test]
fn writes_everything_that_was_stored_before_and_flushes() {
    let cache = roomy_cache();
    let device = Device::of_pages(3 * SPAN);
    let map = open(&cache, &device);
    let pages = [0, 1, 2, 100, SPAN - 1, SPAN, 2 * SPAN + 7, 3 * SPAN - 1];
    for round in 1..=5 {
        pages.iter().for_each(|page| store(&map, at(*page), round));
        map.sync().unwrap();
        pages.iter().for_each(|page| assert_eq!(device.word(at(*page)), round, "page {page}"));
        assert_eq!(cache.stats().dirty_pages, 0);
        assert_eq!(device.flushes(), round);
    }
}

#[test]
fn a_flush_of_a_range_leaves_the_rest_to_the_next_sync() {
    let cache = roomy_cache();
    let device = Device::of_pages(4 * SPAN);
    let map = open(&cache, &device);
    for round in 1..=4 {
        (0..4).for_each(|span| store(&map, at(span * SPAN + 3), round));
        map.flush(at(SPAN)..at(SPAN) + 4 * crate::support::PAGE).unwrap();
        assert_eq!(device.word(at(SPAN + 3)), round);
        assert_eq!(device.word(at(3)), round - 1);
        assert_eq!(device.word(at(2 * SPAN + 3)), round - 1);
        store(&map, at(SPAN + 3) + 8, round);
        map.sync().unwrap();
        (0..4).for_each(|span| assert_eq!(device.word(at(span * SPAN + 3)), round, "span {span}"));
        assert_eq!(device.word(at(SPAN + 3) + 8), round);
    }
}

/// `sync_begin` ends the epoch in the call itself: a store that follows its return is not part of the sync.
#[test]
fn a_page_that_becomes_dirty_after_sync_begin_is_not_written_by_it() {
    let cache = roomy_cache();
    let device = Device::of_pages(2 * SPAN);
    let map = open(&cache, &device);
    for round in 1..=20 {
        store(&map, at(0), round);
        let begun = map.sync_begin().unwrap();
        let late = SPAN + round;
        store(&map, at(late), round);
        begun.wait().unwrap();
        assert_eq!(device.word(at(0)), round);
        assert!(
            kernel_notes_stores() || device.writes_of(late) == 0,
            "round {round}: page {late} was stored to after sync_begin had returned"
        );
        map.sync().unwrap();
        assert_eq!(device.word(at(late)), round);
    }
}

/// The same while the sync is writing for sure.
#[test]
fn a_page_that_becomes_dirty_during_the_writes_of_a_sync_waits_for_the_next_one() {
    let cache = roomy_cache();
    let device = Device::of_pages(4 * SPAN);
    device.slow_writes(Duration::from_millis(2));
    let map = open(&cache, &device);
    for round in 1..=5 {
        // Every other page: one write each.
        (0..2 * SPAN).step_by(2).for_each(|page| store(&map, at(page), round));
        let writes = device.writes();
        let begun = map.sync_begin().unwrap();
        while device.writes() == writes {
            thread::yield_now();
        }
        let late = 3 * SPAN + round;
        store(&map, at(late), round);
        // Also a page that is part of the sync: the sync writes what it copied, the store belongs to the next one.
        begun.wait().unwrap();
        assert!(kernel_notes_stores() || device.writes_of(late) == 0);
        (0..2 * SPAN).step_by(2).for_each(|page| assert_eq!(device.word(at(page)), round));
    }
    map.sync().unwrap();
    (1..=5).for_each(|round| assert_eq!(device.word(at(3 * SPAN + round)), round));
}

/// The versions of a test whose syncs wait for a thread at idle priority: `most` of them, but no more after a minute. Other programs
/// on its core may leave that thread next to nothing.
fn versions(most: u64) -> impl Iterator<Item = u64> {
    let began = Instant::now();
    (1..=most).take_while(move |version| *version <= LEAST_VERSIONS || began.elapsed() < Duration::from_secs(60))
}

/// Even of a thread that is starved a test asks that many syncs.
const LEAST_VERSIONS: u64 = 50;

/// An evictor that has taken a dirty page must have written it before the sync flushes. Here it runs at idle priority
/// on the same core, so the sync comes while it collects, copies or writes.
#[test]
fn waits_for_the_writes_of_a_concurrent_eviction() {
    let _watchdog = watchdog("waits_for_the_writes_of_a_concurrent_eviction");
    const PAGES: u64 = 200;
    let cache = roomy_cache();
    let device = Device::of_pages(PAGES);
    device.slow_writes(Duration::from_micros(300));
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on_one_core(true);
            while !done.load(Ordering::Relaxed) {
                map.advise(0..map.len(), Advice::DontNeed).unwrap();
            }
        });
        scope.spawn(|| {
            run_on_one_core(false);
            let mut lost = Vec::new();
            for version in versions(1000) {
                (0..PAGES).for_each(|page| store(&map, at(page), version));
                thread::sleep(Duration::from_micros(10 + version % 97));
                map.sync().unwrap();
                if (0..PAGES).any(|page| device.word(at(page)) != version) {
                    lost.push(version);
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(lost.is_empty(), "{} syncs returned before all pages were on the device", lost.len());
        });
    });
}

/// The same with the cache's own evictors.
#[test]
fn waits_for_the_writes_of_the_evictors() {
    let _watchdog = watchdog("waits_for_the_writes_of_the_evictors");
    let cache = tiny_cache();
    let (device, churned) = (Device::of_pages(400), Device::of_pages(4096));
    device.slow_writes(Duration::from_micros(300));
    let (map, churn) = (open(&cache, &device), open(&cache, &churned));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = crate::support::Random(1);
            while !done.load(Ordering::Relaxed) {
                load(&churn, at(random.below(4096)));
            }
        });
        for version in 1..=150 {
            (0..400).for_each(|page| store(&map, at(page), version));
            map.sync().unwrap();
            let late: Vec<u64> = (0..400).filter(|page| device.word(at(*page)) != version).collect();
            done.store(!late.is_empty() || version == 150, Ordering::Relaxed);
            assert!(late.is_empty(), "sync {version} returned before pages {late:?} were on the device");
        }
    });
}

/// A sync beside another thread's `write_at` to the same page: the page is pinned for writing now and then.
#[test]
fn acknowledges_a_write_beside_other_writes_to_its_page() {
    let _watchdog = watchdog("acknowledges_a_write_beside_other_writes_to_its_page");
    let cache = roomy_cache();
    let device = Device::of_pages(4);
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u64;
            while !done.load(Ordering::Relaxed) {
                value += 1;
                map.write_at(8, &value.to_le_bytes()).unwrap();
            }
        });
        let mut lost = Vec::new();
        for version in 1..=3000_u64 {
            map.write_at(0, &version.to_le_bytes()).unwrap();
            map.sync().unwrap();
            if device.word(0) != version {
                lost.push(version);
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(lost.is_empty(), "{} of 3000 syncs did not write the page, the first {}", lost.len(), lost[0]);
    });
}

#[test]
fn every_sync_writes_a_page_that_stays_pinned_for_writing() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    let pin = map.pin(0..crate::support::PAGE, Access::ReadWrite).unwrap();
    for version in 1..=6 {
        store(&map, at(0), version);
        store(&map, at(5), version);
        map.sync().unwrap();
        assert_eq!(device.word(at(5)), version);
        assert_eq!(device.word(at(0)), version, "sync {version} did not write the pinned page");
    }
    drop(pin);
    store(&map, at(0), 100);
    map.sync().unwrap();
    assert_eq!(device.word(at(0)), 100);
}

/// The page is on its way to the device for an eviction; then it is stored to again, with a plain store or through a pin
/// for writing. The sync waits for the first write and writes the page once more.
#[test]
fn writes_a_page_again_that_was_stored_to_while_its_write_was_in_flight() {
    let _watchdog = watchdog("writes_a_page_again_that_was_stored_to_while_its_write_was_in_flight");
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    device.slow_writes(Duration::from_millis(20));
    let map = open(&cache, &device);
    for (version, pinned) in (1..=12).map(|round| (2 * round, round % 2 == 0)) {
        store(&map, at(3), version);
        let begun = device.writes_begun();
        thread::scope(|scope| {
            scope.spawn(|| map.advise(0..map.len(), Advice::DontNeed).unwrap());
            while device.writes_begun() == begun {
                thread::yield_now();
            }
            let pin = pinned.then(|| map.pin(at(3)..at(4), Access::ReadWrite).unwrap());
            store(&map, at(3), version + 1);
            map.sync().unwrap();
            assert_eq!(device.word(at(3)), version + 1, "pinned: {pinned}");
            drop(pin);
        });
    }
}

/// A pin may begin and end at any point of the sync's look at its page.
#[test]
fn acknowledges_a_store_beside_pins_that_come_and_go() {
    let _watchdog = watchdog("acknowledges_a_store_beside_pins_that_come_and_go");
    let cache = roomy_cache();
    let device = Device::of_pages(4);
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(map.pin(at(1)..at(2), Access::ReadWrite).unwrap());
            }
        });
        let mut lost = Vec::new();
        for version in 1..=5000 {
            store(&map, at(1), version);
            map.sync().unwrap();
            if device.word(at(1)) != version {
                lost.push(version);
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(lost.is_empty(), "{} of 5000 syncs did not write the page, the first {}", lost.len(), lost[0]);
    });
}

/// Another thread's store to a page counts from the moment it can be made, even if the thread that took the page's
/// fault has not returned from it: that one runs at idle priority on the same core, so it is interrupted anywhere.
#[test]
fn acknowledges_a_store_beside_an_unfinished_fault_of_the_same_page() {
    let _watchdog = watchdog("acknowledges_a_store_beside_an_unfinished_fault_of_the_same_page");
    const PAGES: u64 = 4 * SPAN;
    let cache = roomy_cache();
    let device = Device::of_pages(PAGES);
    let map = open(&cache, &device);
    let (done, current) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on_one_core(true);
            let mut random = crate::support::Random(3);
            let mut value = 0;
            while !done.load(Ordering::Relaxed) {
                let page = random.below(PAGES);
                current.store(page, Ordering::SeqCst);
                value += 1;
                store(&map, at(page), value);
            }
        });
        scope.spawn(|| {
            run_on_one_core(false);
            let mut lost = Vec::new();
            for version in versions(4000) {
                thread::sleep(Duration::from_micros(40 + version % 23));
                let page = current.load(Ordering::SeqCst);
                store(&map, at(page) + 8, version);
                map.sync().unwrap();
                if device.word(at(page) + 8) != version {
                    lost.push(version);
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(lost.is_empty(), "{} syncs did not write a store before them", lost.len());
        });
    });
}

/// Puts the calling thread on the first core that the process may use, at idle priority or as it is.
fn run_on_one_core(idle: bool) {
    // SAFETY: zeroed sets and parameters are valid; both calls concern the calling thread only.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed);
        let first = (0..libc::CPU_SETSIZE as usize).find(|core| libc::CPU_ISSET(*core, &allowed)).unwrap();
        let mut only_there: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut only_there);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const only_there);
        if idle {
            let parameters: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
        }
    }
}

#[test]
fn acknowledges_what_other_threads_had_stored_before_it_began() {
    let _watchdog = watchdog("acknowledges_what_other_threads_had_stored_before_it_began");
    const PAGES: u64 = 1000;
    let cache = tiny_cache();
    let device = Device::of_pages(PAGES);
    let map = open(&cache, &device);
    let done = AtomicBool::new(false);
    let stored: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..3 {
            let (map, done, stored) = (&map, &done, &stored);
            scope.spawn(move || {
                let mut random = crate::support::Random(thread);
                while !done.load(Ordering::Relaxed) {
                    // Each page has one writer, so its word only grows.
                    let page = random.below(PAGES / 3) * 3 + thread;
                    let next = stored[page as usize].load(Ordering::SeqCst) + 1;
                    store(map, at(page), next);
                    stored[page as usize].store(next, Ordering::SeqCst);
                }
            });
        }
        let mut lost = Vec::new();
        for round in 0..200 {
            let before: Vec<u64> = stored.iter().map(|value| value.load(Ordering::SeqCst)).collect();
            map.sync().unwrap();
            for (page, before) in (0..).zip(before) {
                if device.word(at(page)) < before {
                    lost.push((round, page));
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(lost.is_empty(), "{} stores missing after a sync: (round, page) {:?}", lost.len(), &lost[..1]);
    });
    map.sync().unwrap();
    for (page, value) in (0..).zip(&stored) {
        assert_eq!(device.word(at(page)), value.load(Ordering::SeqCst), "page {page}");
    }
}

#[test]
fn two_syncs_at_once_each_keep_their_promise() {
    let _watchdog = watchdog("two_syncs_at_once_each_keep_their_promise");
    let cache = tiny_cache();
    let device = Device::of_pages(800);
    let map = open(&cache, &device);
    thread::scope(|scope| {
        for slot in 0..4 {
            let (map, device) = (&map, &device);
            scope.spawn(move || {
                let mut random = crate::support::Random(slot);
                for version in 1..=400 {
                    let pages: Vec<u64> = (0..5).map(|_| random.below(800)).collect();
                    pages.iter().for_each(|page| store(map, at(*page) + 8 * slot, version));
                    match version % 3 {
                        0 => map.sync_begin().unwrap().wait().unwrap(),
                        1 => map.sync().unwrap(),
                        _ => pages.iter().for_each(|page| map.flush(at(*page)..at(*page) + 1).unwrap()),
                    }
                    for page in pages {
                        assert_eq!(device.word(at(page) + 8 * slot), version, "slot {slot}, page {page}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_dropped_handle_leaves_the_sync_to_itself() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    store(&map, at(1), 5);
    drop(map.sync_begin().unwrap());
    map.sync().unwrap();
    assert_eq!(device.word(at(1)), 5);
    map.close().unwrap();
}

#[test]
fn a_mere_drop_syncs() {
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    store(&map, at(7), 9);
    drop(map);
    assert_eq!(device.word(at(7)), 9);
    assert_eq!(cache.stats().drop_failures, 0);
    crate::support::check_empty(&cache);
}

/// "Who writes to the file past the mapping afterwards will see that through it": no older write of the mapping's may land after it.
#[test]
fn dont_need_returns_when_no_older_write_is_under_way() {
    let _watchdog = watchdog("dont_need_returns_when_no_older_write_is_under_way");
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let map = open(&cache, &device);
    for round in 1..=3 {
        let (stored, past_it) = (10 * round, 10 * round + 1);
        // Also a page that was stored to again since its write has begun.
        for is_stored_again in [false, true] {
            store(&map, at(7), stored);
            device.slow_writes(Duration::from_millis(200));
            let begun = device.writes_begun();
            thread::scope(|scope| {
                let syncing = scope.spawn(|| map.sync().unwrap());
                while device.writes_begun() == begun {
                    thread::yield_now();
                }
                if is_stored_again {
                    store(&map, at(7) + 8, past_it);
                }
                map.advise(0..map.len(), Advice::DontNeed).unwrap();
                assert!(!map.is_resident(at(7)), "it is in memory");
                device.slow_writes(Duration::ZERO);
                if is_stored_again {
                    assert_eq!(device.word(at(7) + 8), past_it, "what was stored before the call is not written");
                }
                device.set_word(at(7), past_it);
                syncing.join().unwrap();
            });
            map.sync().unwrap();
            assert_eq!((device.word(at(7)), load(&map, at(7))), (past_it, past_it), "what was written past it is lost");
        }
    }
}

/// A page that somebody has pinned stays in memory, and what was stored to it is written all the same.
#[test]
fn dont_need_writes_what_is_pinned_for_loads() {
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let map = open(&cache, &device);
    store(&map, at(3), 5);
    let pin = map.pin(at(3)..at(4), Access::ReadOnly).unwrap();
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert!(map.is_resident(at(3)));
    assert!(kernel_notes_stores() || device.word(at(3)) == 5, "it is not on the device");
    drop(pin);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert!(!map.is_resident(at(3)));
    assert_eq!(device.word(at(3)), 5);
}
