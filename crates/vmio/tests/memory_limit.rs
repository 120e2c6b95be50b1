//! A process whose memory is limited to little more than its cache lives and works: the cache keeps to its budget.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use vmio::backing::FileBacking;
use vmio::{Engine, Mapping, MappingOptions};

use crate::support::child::{command, is_child};
use crate::support::memory_group::MemoryGroup;
use crate::support::{PAGE, Random, at, builder, engine, is_managed, is_root, load, store, watchdog};

const NAME: &str = "memory_limit::a_process_with_little_more_memory_than_its_cache_lives";
const GROUP: &str = "VMIO_TEST_CGROUP";
const CACHE_BYTES: u64 = 48 << 20;
/// For the program itself, its threads and the kernel's own needs.
const REST_BYTES: u64 = 12 << 20;

/// The same, and KVM's own tables. Where ring 0 is emulated they have 10 bytes for each page of a gigabyte that is in use.
fn rest_bytes() -> u64 {
    let is_ring_3 = engine() == Engine::Ring0 && std::env::var("VMIO_RING0_LEVEL").is_ok();
    REST_BYTES + if is_ring_3 { 24 << 20 } else { 0 }
}

/// Where to lower a limit while processes are at it, in either version of cgroups.
const LOWERED: [&str; 2] = ["memory.limit_in_bytes", "memory.high"];

/// What a group is limited to at present.
fn limit_of(group: &Path) -> u64 {
    let limits = LOWERED.iter().filter_map(|file| fs::read_to_string(group.join(file)).ok());
    limits.map(|limit| limit.trim().parse().unwrap_or(u64::MAX)).min().unwrap()
}

fn work() {
    let cache = builder().capacity(CACHE_BYTES).build().unwrap();
    let pages = 3 * CACHE_BYTES / PAGE;
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = FileBacking::create(file.path(), pages * PAGE).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let map = &map;
            scope.spawn(move || {
                let mut stored = vec![0_u64; pages as usize];
                let mut random = Random(thread);
                for _ in 0..12_000 {
                    let page = random.below(pages);
                    assert_eq!(load(map, at(page) + 8 * thread), stored[page as usize]);
                    if random.below(2) == 0 {
                        stored[page as usize] += 1;
                        store(map, at(page) + 8 * thread, stored[page as usize]);
                    }
                }
                map.sync().unwrap();
            });
        }
    });
    map.close().unwrap();
}

#[test]
fn a_process_with_little_more_memory_than_its_cache_lives() {
    if is_child(NAME) {
        fs::write(Path::new(&std::env::var(GROUP).unwrap()).join("cgroup.procs"), "0").unwrap();
        work();
        return;
    }
    if !is_root("a memory cgroup") {
        return;
    }
    let Some(group) = MemoryGroup::new(NAME, CACHE_BYTES + rest_bytes()) else {
        return test_depth::skipped("no memory cgroup can be made here");
    };
    let output = command(NAME).env(GROUP, &group.0).output().unwrap();
    let peak = ["memory.max_usage_in_bytes", "memory.peak"]
        .iter()
        .find_map(|file| fs::read_to_string(group.0.join(file)).ok());
    println!("peak of {} bytes, limit {}", peak.unwrap_or_default().trim(), CACHE_BYTES + rest_bytes());
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

const SHRINKING: &str = "memory_limit::a_cache_follows_a_limit_that_is_lowered";
const LIMIT: u64 = 96 << 20;
const LOWERED_LIMIT: u64 = 48 << 20;

/// Loads and stores until the limit is lowered and the cache has followed.
fn follow_the_limit(group: &Path) {
    let _watchdog = watchdog(SHRINKING);
    const PAGES: u64 = (128 << 20) / PAGE;
    let cache = builder().capacity_auto(8 << 20..=128 << 20).build().unwrap();
    let first = cache.capacity_bytes();
    assert!(first < LIMIT, "{first}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = FileBacking::create(file.path(), PAGES * PAGE).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    let mut stored = vec![0_u64; PAGES as usize];
    let mut random = Random(1);
    while limit_of(group) > LOWERED_LIMIT || cache.capacity_bytes() >= LOWERED_LIMIT {
        for _ in 0..1000 {
            let page = random.below(PAGES);
            assert_eq!(load(&map, at(page)), stored[page as usize]);
            stored[page as usize] += 1;
            store(&map, at(page), stored[page as usize]);
        }
    }
    (0..).zip(stored).for_each(|(page, stored)| assert_eq!(load(&map, at(page)), stored));
    println!("capacity from {first} to {} bytes", cache.capacity_bytes());
    map.close().unwrap();
}

#[test]
fn a_cache_follows_a_limit_that_is_lowered() {
    if is_child(SHRINKING) {
        let group = PathBuf::from(std::env::var(GROUP).unwrap());
        fs::write(group.join("cgroup.procs"), "0").unwrap();
        return follow_the_limit(&group);
    }
    if is_managed("a capacity that is less than what the cgroup leaves") || !is_root("a memory cgroup") {
        return;
    }
    let Some(group) = MemoryGroup::new(SHRINKING, LIMIT) else {
        return test_depth::skipped("no memory cgroup can be made here");
    };
    let mut child =
        command(SHRINKING).env(GROUP, &group.0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut limit = LIMIT;
    while limit > LOWERED_LIMIT && child.try_wait().unwrap().is_none() {
        // Step by step, and no faster than the cache looks (each 100 ms), though it may not be full yet: version 1 kills who
        // wants a page when there is none.
        if usage_of(&group.0) + (4 << 20) <= limit && lower(&group.0, limit - (2 << 20)) {
            limit -= 2 << 20;
            thread::sleep(Duration::from_millis(200));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Whether the limit could be lowered; version 1 refuses what it cannot reclaim at once.
fn lower(group: &Path, limit: u64) -> bool {
    let file = LOWERED.iter().map(|file| group.join(file)).find(|file| file.exists()).unwrap();
    fs::write(file, limit.to_string()).is_ok()
}

fn usage_of(group: &Path) -> u64 {
    let usage = ["memory.usage_in_bytes", "memory.current"].iter();
    usage
        .filter_map(|file| fs::read_to_string(group.join(file)).ok())
        .find_map(|usage| usage.trim().parse().ok())
        .unwrap()
}
