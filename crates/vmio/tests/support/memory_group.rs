//! A memory cgroup for a test's child.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A memory cgroup; removed when dropped.
pub struct MemoryGroup(pub PathBuf);

impl MemoryGroup {
    /// One with a limit in bytes, under either version of cgroups; none where this process may not make one.
    pub fn new(test: &str, limit: u64) -> Option<Self> {
        let name = format!("vmio-test-{}-{test}", std::process::id());
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
            thread::sleep(Duration::from_millis(10));
        }
    }
}
