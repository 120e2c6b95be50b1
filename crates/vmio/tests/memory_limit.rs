//! A process whose memory is limited to little more than its cache lives and works: the cache keeps to its budget.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use vmio::backing::FileBacking;
use vmio::{Mapping, MappingOptions};

use support::child::{command, is_child};
use support::{PAGE, Random, at, builder, is_root, load, store};

const NAME: &str = "a_process_with_little_more_memory_than_its_cache_lives";
const GROUP: &str = "VMIO_TEST_CGROUP";
const CACHE_BYTES: u64 = 48 << 20;
/// For the program itself, its threads and the kernel's own needs.
const REST_BYTES: u64 = 12 << 20;

/// A memory cgroup; removed when dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(limit: u64) -> Option<Self> {
        let name = format!("vmio-test-{}", std::process::id());
        Self::at(Path::new("/sys/fs/cgroup/memory").join(&name), "memory.limit_in_bytes", limit)
            .or_else(|| Self::at(Path::new("/sys/fs/cgroup").join(&name), "memory.max", limit))
    }

    fn at(path: PathBuf, limit_file: &str, limit: u64) -> Option<Self> {
        if !path.parent()?.join("cgroup.procs").exists() {
            return None;
        }
        fs::create_dir(&path).ok()?;
        let group = MemoryGroup(path);
        // Dropped, and so removed, if it has no memory controller.
        fs::write(group.0.join(limit_file), limit.to_string()).ok()?;
        let _ = fs::write(group.0.join("memory.swap.max"), "0");
        Some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its processes have been waited for, but the kernel may take a moment to forget them.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }
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
    let Some(group) = MemoryGroup::new(CACHE_BYTES + REST_BYTES) else {
        return println!("skipped: no memory cgroup can be made here");
    };
    let output = command(NAME).env(GROUP, &group.0).output().unwrap();
    let peak = ["memory.max_usage_in_bytes", "memory.peak"]
        .iter()
        .find_map(|file| fs::read_to_string(group.0.join(file)).ok());
    println!("peak of {} bytes, limit {}", peak.unwrap_or_default().trim(), CACHE_BYTES + REST_BYTES);
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}
