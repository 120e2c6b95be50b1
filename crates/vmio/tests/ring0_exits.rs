//! The ring 0 engine: hits, misses, evictions and write-backs leave the machine only where another thread takes part.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use vmio::backing::{Backing, DaxBacking, FileBacking, MemoryBacking};
use vmio::ring0::{self, is_at_ring_0};
use vmio::{Access, Advice, Cache, FrameHint, Mapping, MappingOptions};

use crate::ring0::inside;
use crate::support::ring0::{cache, cache_with};
use crate::support::{PAGE, at, load, store, watchdog};

const CACHE_PAGES: u64 = 256;
const FILE_PAGES: u64 = 4 * CACHE_PAGES;

/// One at a time: exits are counted for all threads.
static TURN: Mutex<()> = Mutex::new(());

/// Loads from all pages of a file, stores to some of them, and loads from these again.
fn pass(map: &Mapping, round: u64) {
    for page in 0..FILE_PAGES {
        let held = load(map, at(page));
        if page % 8 == 0 {
            assert_eq!(held, round, "page {page}");
            store(map, at(page), round + 1);
            assert_eq!(load(map, at(page)), round + 1);
        }
    }
}

/// Runs passes in the machine, and counts what left it.
fn count_exits(backing: Arc<dyn Backing>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(cache) = cache(CACHE_PAGES) else { return };
    // A worker that is awake may take part in a write, for which one of the two then wakes the other.
    count_exits_of(&cache, backing, (1, 20));
}

/// No more exits than so many for so many faults.
fn count_exits_of(cache: &Cache, backing: Arc<dyn Backing>, most_per_fault: (u64, u64)) {
    const ROUNDS: u64 = 6;
    let map = Mapping::open(cache, backing, MappingOptions::new()).unwrap();
    // A fault for each page.
    map.advise(0..map.len(), Advice::Random).unwrap();
    let (before, after, at_ring_0) = inside(|| {
        // Whatever the host has to map, it has mapped after these.
        (0..2).for_each(|round| pass(&map, round));
        let before = (ring0::counts().unwrap(), cache.stats());
        (2..2 + ROUNDS).for_each(|round| pass(&map, round));
        (before, (ring0::counts().unwrap(), cache.stats()), is_at_ring_0())
    });
    let (exits, faults) = (after.0.exits - before.0.exits, after.0.faults - before.0.faults);
    let clean = after.1.evicted_clean - before.1.evicted_clean;
    let dirty = after.1.evicted_dirty - before.1.evicted_dirty;
    let calls = after.0.system_calls - before.0.system_calls;
    println!(
        "{faults} faults, {clean} clean pages and {dirty} dirty ones evicted, {exits} exits, {calls} system calls"
    );
    assert!(faults >= ROUNDS * (FILE_PAGES - CACHE_PAGES), "{faults} faults");
    assert!(clean > 0 && dirty > 0 && after.1.written_bytes > before.1.written_bytes);
    if at_ring_0 {
        assert!(exits * most_per_fault.1 <= faults * most_per_fault.0, "{exits} exits");
    } else {
        assert!(exits >= faults, "{exits} exits");
    }
    map.sync().unwrap();
}

#[test]
fn misses_evictions_and_write_backs_to_memory_need_hardly_an_exit() {
    let _watchdog = watchdog("misses_evictions_and_write_backs_to_memory_need_hardly_an_exit");
    count_exits(Arc::new(MemoryBacking::new(FILE_PAGES * PAGE).unwrap()));
}

#[test]
fn misses_evictions_and_write_backs_to_persistent_memory_need_hardly_an_exit() {
    let _watchdog = watchdog("misses_evictions_and_write_backs_to_persistent_memory_need_hardly_an_exit");
    let Some(folder) = std::env::var_os("VMIO_TEST_DAX").map(PathBuf::from) else {
        return test_depth::skipped("VMIO_TEST_DAX names no folder on persistent memory");
    };
    let scratch = tempfile::tempdir_in(folder).unwrap();
    let path = scratch.path().join("file");
    std::fs::write(&path, vec![0; (FILE_PAGES * PAGE) as usize]).unwrap();
    count_exits(Arc::new(DaxBacking::open(&path, Access::ReadWrite).unwrap()));
}

/// A thread of the kernel submits reads and writes. The device has zeros.
#[test]
fn misses_evictions_and_write_backs_to_a_block_device_need_few_exits() {
    let _watchdog = watchdog("misses_evictions_and_write_backs_to_a_block_device_need_few_exits");
    let Some(device) = std::env::var_os("VMIO_TEST_BLOCK_DEVICE") else {
        return test_depth::skipped("VMIO_TEST_BLOCK_DEVICE names no fast device that may be overwritten");
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(cache) = cache_with(CACHE_PAGES, |cache| cache.poll_submissions(true)) else { return };
    let device = FileBacking::open(device, Access::ReadWrite).unwrap();
    // By system calls each fault has one at least. A busy host keeps the kernel's thread waiting, so that a thread sleeps until the end of its request.
    count_exits_of(&cache, Arc::new(cache.submit_for(device)), (1, 3));
}

/// As msync(2), madvise(2), mprotect(2), mremap(2) and ftruncate(2) are of a mapped file.
#[test]
fn syncs_advice_and_changes_of_rights_and_length_need_no_exit() {
    const PAGES: u64 = 64;
    let _watchdog = watchdog("syncs_advice_and_changes_of_rights_and_length_need_no_exit");
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(cache) = cache(CACHE_PAGES) else { return };
    let backing = Arc::new(MemoryBacking::new(FILE_PAGES * PAGE).unwrap());
    let options = MappingOptions::new().frames(FrameHint::SharedAddresses).reserve(2 * FILE_PAGES * PAGE);
    let map = Mapping::open(&cache, backing, options).unwrap();
    let view = map.view().unwrap();
    let store_all = || (0..PAGES).for_each(|page| store(&map, at(page), 7));
    // With the last page of a span its tables go, whose memory is given back to the host: so one page more stays.
    let load_all = || (0..=PAGES).for_each(|page| _ = load(&map, at(page)));
    let advise = |advice| map.advise(0..PAGES * PAGE, advice).unwrap();
    inside(|| {
        load_all();
        let is_at_ring_0 = is_at_ring_0();
        let check = |name: &str, operation: &dyn Fn()| {
            let exits = || {
                let before = ring0::counts().unwrap();
                operation();
                ring0::counts().unwrap().exits - before.exits
            };
            // At first what was never touched comes into memory; and a worker that happens to be awake may have to be told.
            let least = (0..8).map(|_| exits()).min().unwrap();
            assert!(!is_at_ring_0 || least == 0, "{name}: {least} exits");
        };
        check("a sync of nothing", &|| map.sync().unwrap());
        check("a sync", &|| {
            store_all();
            map.sync().unwrap();
        });
        check("a flush", &|| {
            store_all();
            map.flush(0..PAGES * PAGE).unwrap();
        });
        check("pages that are not wanted", &|| {
            load_all();
            advise(Advice::DontNeed);
            assert!(!map.is_resident(0));
        });
        check("pages that are wanted", &|| {
            advise(Advice::DontNeed);
            advise(Advice::WillNeed);
            load_all();
        });
        check("advice", &|| {
            advise(Advice::Sequential { window_bytes: 1 << 16 });
            load_all();
            advise(Advice::Random);
        });
        check("rights", &|| {
            view.allow_stores(false).unwrap();
            view.allow_stores(true).unwrap();
        });
        let shorter = FILE_PAGES - PAGES;
        load(&map, at(shorter - 1));
        check("a length", &|| {
            store(&map, at(shorter), 7);
            map.set_len(shorter * PAGE).unwrap();
            map.set_len(FILE_PAGES * PAGE).unwrap();
            assert_eq!(load(&map, at(shorter)), 0);
        });
    });
}
