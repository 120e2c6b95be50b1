//! The ring 0 engine: hits, misses, evictions and write-backs leave the machine only where another thread takes part.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use vmio::backing::{Backing, DaxBacking, MemoryBacking};
use vmio::ring0::{self, is_at_ring_0};
use vmio::{Access, Advice, Mapping, MappingOptions};

use crate::ring0::inside;
use crate::support::ring0::cache;
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
    const ROUNDS: u64 = 6;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(cache) = cache(CACHE_PAGES) else { return };
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
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
        // A worker that is awake may take part in a write, for which one of the two then wakes the other.
        assert!(exits * 20 <= faults, "{exits} exits");
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
