//! Sparse mappings: what is kept of spans and pages that are not in memory any more is within the budget, and goes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Error, FrameHint, Mapping, MappingOptions};

use crate::support::child::isolated;
use crate::support::device::Device;
use crate::support::views;
use crate::support::{
    PAGE, Random, SPAN, at, cache_of, check_empty, frames, load, minimal_cache, store, tiny_cache, watchdog,
};

const GIB: u64 = 1 << 30;
const SPAN_BYTES: u64 = SPAN * PAGE;

/// Memory of this process and its page tables, in bytes; of memory files all of it, mapped or not.
fn memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let frames: u64 = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|fd| fd.unwrap().path())
        .filter(|fd| fs::read_link(fd).is_ok_and(|file| file.to_string_lossy().starts_with("/memfd:vmio")))
        .map(|fd| fs::metadata(fd).unwrap().blocks() * 512)
        .sum();
    line("RssAnon:") + line("RssFile:") + line("VmPTE:") + frames
}

/// A sparse file of that length, and its mapping.
fn sparse_file(cache: &Cache, len: u64, hint: FrameHint) -> (tempfile::NamedTempFile, Mapping) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = FileBacking::create(file.path(), len).unwrap();
    let map = Mapping::open(cache, backing, MappingOptions::new().frames(hint)).unwrap();
    (file, map)
}

/// Touches one page in each 2 MiB of a sparse file, at the mapping and then at this many views of it, and looks at the memory
/// on the way.
fn sweep(test: &str, hint: FrameHint, stores: bool, views: usize) {
    let output = isolated(test, || {
        const CAPACITY: u64 = 64 << 20;
        // The page tables of page tables are not counted: 4 KiB for each GiB, at each address.
        let len = 64 * GIB / (1 + views as u64);
        let spans = len / SPAN_BYTES;
        let offset = |span: u64| span * SPAN_BYTES + (span * 7 % SPAN) * PAGE;
        // What the first mapping of a process costs once.
        let warm = Cache::builder().capacity(CAPACITY).build().unwrap();
        load(&sparse_file(&warm, GIB, hint).1, 0);
        drop(warm);
        let before = memory_bytes();
        let cache = Cache::builder().capacity(CAPACITY).build().unwrap();
        let (_file, map) = sparse_file(&cache, len, hint);
        let views: Vec<_> = (0..views).map(|_| map.view().unwrap()).collect();
        let mut most = 0;
        for span in 0..spans {
            match stores {
                true => store(&map, offset(span), span + 1),
                false => assert_eq!(load(&map, offset(span)), 0),
            }
            for view in &views {
                // SAFETY: within the view, which lives; nobody stores at the same time.
                let seen = unsafe { view.as_ptr().add(offset(span) as usize).cast::<u64>().read_volatile() };
                assert_eq!(seen, if stores { span + 1 } else { 0 });
            }
            if span % 512 == 511 {
                most = most.max(memory_bytes() - before);
            }
        }
        let stats = cache.stats();
        println!("{most} bytes at most, {} of tables: {stats:?}", stats.table_pages * PAGE);
        assert!(most <= CAPACITY / 100 * 102, "{most} bytes for a cache of {CAPACITY}: {stats:?}");
        // Three pages of the budget for each that is in memory, and one for each view: a fifth is little, and less would
        // be waste.
        let little = stats.capacity_pages / (5 + 2 * views.len() as u64);
        assert!(stats.resident_pages > little, "{stats:?}");
        if stores {
            (0..spans).step_by(61).for_each(|span| assert_eq!(load(&map, offset(span)), span + 1));
        }
        drop(views);
        map.close().unwrap();
        check_empty(&cache);
    });
    println!("{}", output.succeeds());
}

#[test]
fn a_sparse_sweep_of_loads_keeps_to_the_budget() {
    sweep("sparse::a_sparse_sweep_of_loads_keeps_to_the_budget", FrameHint::ReadMostly, false, 0);
}

#[test]
fn a_sparse_sweep_of_stores_keeps_to_the_budget() {
    sweep("sparse::a_sparse_sweep_of_stores_keeps_to_the_budget", FrameHint::ReadMostly, true, 0);
}

#[test]
fn a_sparse_sweep_of_loads_of_memfd_frames_keeps_to_the_budget() {
    sweep("sparse::a_sparse_sweep_of_loads_of_memfd_frames_keeps_to_the_budget", FrameHint::Mixed, false, 0);
}

#[test]
fn a_sparse_sweep_of_stores_to_memfd_frames_keeps_to_the_budget() {
    sweep("sparse::a_sparse_sweep_of_stores_to_memfd_frames_keeps_to_the_budget", FrameHint::Mixed, true, 0);
}

#[test]
fn a_sparse_sweep_at_several_addresses_keeps_to_the_budget() {
    if views::available() {
        sweep("sparse::a_sparse_sweep_at_several_addresses_keeps_to_the_budget", FrameHint::SharedAddresses, true, 3);
    }
}

#[test]
fn a_file_of_eight_tebibytes_costs_what_is_touched() {
    isolated("sparse::a_file_of_eight_tebibytes_costs_what_is_touched", || {
        const LEN: u64 = 8 << 40;
        let cache = tiny_cache();
        let before = memory_bytes();
        let (_file, map) = sparse_file(&cache, LEN, frames());
        assert!(memory_bytes() < before + (1 << 20), "{before} bytes before, {} after", memory_bytes());
        let offset = |number: u64| Random(number).below(LEN / PAGE) * PAGE;
        (0..1000).for_each(|number| store(&map, offset(number), number + 1));
        (0..1000).for_each(|number| assert_eq!(load(&map, offset(number)), number + 1));
        map.advise(0..LEN, Advice::DontNeed).unwrap();
        assert_eq!((cache.stats().resident_pages, cache.stats().table_pages), (0, 0));
        (0..1000).for_each(|number| assert_eq!(load(&map, offset(number)), number + 1));
        map.close().unwrap();
        check_empty(&cache);
    })
    .succeeds();
}

#[test]
fn threads_that_end_leave_nothing_behind() {
    isolated("sparse::threads_that_end_leave_nothing_behind", || {
        const PAGES: u64 = 4000;
        let cache = cache_of(1024).build().unwrap();
        let (_file, map) = sparse_file(&cache, PAGES * SPAN_BYTES / 8, frames());
        let wave = |wave: u64| {
            // All at once: else a later wave may have more threads at a time than those before, and memory for them.
            let all_are_there = Barrier::new(200);
            thread::scope(|scope| {
                for thread in 0..200 {
                    let (map, all_are_there) = (&map, &all_are_there);
                    let touch = move || {
                        // What a thread needs for its first touch, all have at once, too.
                        load(map, 0);
                        all_are_there.wait();
                        let mut random = Random(wave * 200 + thread);
                        for _ in 0..10 {
                            let slot = random.below(PAGES) * SPAN_BYTES / 8 + 8 * thread;
                            store(map, slot, wave + 1);
                            assert_eq!(load(map, slot), wave + 1);
                        }
                    };
                    std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, touch).unwrap();
                }
            });
        };
        let count = |folder: &str| fs::read_dir(folder).unwrap().count();
        // Once guest code has run, KVM has a thread of its own in the process.
        load(&map, 0);
        let tasks = count("/proc/self/task");
        let now = || {
            // A thread that has been joined may take a moment to leave the kernel.
            for _ in 0..3000 {
                if count("/proc/self/task") > tasks {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            assert_eq!(count("/proc/self/task"), tasks, "threads are left");
            (memory_bytes(), count("/proc/self/fd"))
        };
        let (first, end) = test_depth::pick((4, 9), (10, 60));
        (0..first).for_each(wave);
        let before = now();
        // 10,000 threads, or 1,000: a page lost for each would show.
        (first..end).for_each(wave);
        let after = now();
        println!("{before:?} before, {after:?} after");
        assert!(after.1 <= before.1, "{before:?} before, {after:?} after");
        assert!(after.0 < before.0 + (2 << 20), "{before:?} before, {after:?} after");
        map.close().unwrap();
        check_empty(&cache);
    })
    .succeeds();
}

/// All at once, so that pages come in while their span's memory is given back, and go while it is needed.
#[test]
fn threads_on_sparse_pages_lose_nothing() {
    let _watchdog = watchdog("threads_on_sparse_pages_lose_nothing");
    const SPANS: u64 = 300;
    const THREADS: u64 = 8;
    let cache = minimal_cache();
    let (_file, map) = sparse_file(&cache, SPANS * SPAN_BYTES, frames());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let map = &map;
            scope.spawn(move || {
                let slot = |span: u64| span * SPAN_BYTES + (span % SPAN) * PAGE + 8 * thread;
                let mut stored = vec![0; SPANS as usize];
                let mut random = Random(thread);
                for step in 0..4000 {
                    let span = random.below(SPANS);
                    assert_eq!(load(map, slot(span)), stored[span as usize], "span {span}");
                    if random.below(2) == 0 {
                        stored[span as usize] = step + 1;
                        store(map, slot(span), step + 1);
                    }
                    if random.below(50) == 0 {
                        let first = span.saturating_sub(random.below(8));
                        map.advise(first * SPAN_BYTES..(span + 1) * SPAN_BYTES, Advice::DontNeed).unwrap();
                    }
                }
                (0..SPANS).for_each(|span| assert_eq!(load(map, slot(span)), stored[span as usize]));
            });
        }
    });
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn what_is_given_up_takes_its_tables_along() {
    isolated("sparse::what_is_given_up_takes_its_tables_along", || {
        const SPANS: u64 = 1000;
        let cache = cache_of(16 * 1024).build().unwrap();
        let (_file, map) = sparse_file(&cache, SPANS * SPAN_BYTES, frames());
        let touch = |spans: u64| (0..spans).for_each(|span| store(&map, span * SPAN_BYTES + at(3), span + 1));
        touch(1);
        let before = memory_bytes();
        let check = |what: &str| {
            assert_eq!((cache.stats().resident_pages, cache.stats().table_pages), (0, 0), "{what}");
            let after = memory_bytes();
            // The span records stay, and the first write allocates a merge buffer of 2 MiB.
            assert!(after < before + (3 << 20), "{what}: {before} bytes before, {after} after");
        };
        touch(SPANS);
        assert_eq!(cache.stats().table_pages, 2 * SPANS);
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        check("dont-need");
        touch(SPANS);
        map.advise(0..map.len(), Advice::Free).unwrap();
        assert_eq!(cache.stats().table_pages, 0);
        touch(SPANS);
        map.set_len(PAGE).unwrap();
        check("set_len");
    })
    .succeeds();
}

/// Without its word, a page of a fresh mapping that has been written since looks as if it had never been touched.
#[test]
fn what_was_written_to_a_fresh_mapping_is_not_taken_for_garbage() {
    let cache = tiny_cache();
    let device = Device::of_pages(8 * SPAN);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    map.advise(0..map.len(), Advice::Fresh).unwrap();
    store(&map, at(SPAN), 7);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert_eq!(cache.stats().table_pages, 0);
    assert_eq!(load(&map, at(SPAN)), 7);
    // Elsewhere, and once it is said again, nothing is read.
    let reads = cache.stats().reads;
    store(&map, at(5 * SPAN), 1);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    map.advise(at(SPAN)..at(2 * SPAN), Advice::Fresh).unwrap();
    store(&map, at(SPAN + 1), 1);
    assert_eq!(cache.stats().reads, reads);
}

#[test]
fn a_page_that_was_freed_is_not_read_again() {
    let cache = tiny_cache();
    let device = Device::of_pages(4 * SPAN);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    store(&map, at(5), 7);
    let reads = cache.stats().reads;
    map.advise(at(5)..at(6), Advice::Free).unwrap();
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    store(&map, at(5) + 8, 8);
    assert_eq!(cache.stats().reads, reads, "the mark was lost with the word");
}

#[test]
fn pins_of_sparse_pages_leave_room_for_everybody_else() {
    let _watchdog = watchdog("pins_of_sparse_pages_leave_room_for_everybody_else");
    const SPANS: u64 = 300;
    let cache = tiny_cache();
    let (_file, map) = sparse_file(&cache, SPANS * SPAN_BYTES, frames());
    let page = |span: u64| span * SPAN_BYTES..span * SPAN_BYTES + PAGE;
    // Three quarters of 640 pages, three each.
    let pins: Vec<_> = (0..160).map(|span| map.pin(page(span), Access::ReadOnly).unwrap()).collect();
    assert!(matches!(map.pin(page(160), Access::ReadOnly), Err(Error::TooManyPins { limit_pages: 480, .. })));
    (0..SPANS).for_each(|span| store(&map, span * SPAN_BYTES, span + 1));
    (0..SPANS).for_each(|span| assert_eq!(load(&map, span * SPAN_BYTES), span + 1));
    drop(pins);
    map.close().unwrap();
    check_empty(&cache);
}
