//! How much memory a process could take at present.

use std::fs;
use std::path::Path;

use crate::elastic::cgroup::{MemoryCgroups, field};

/// Memory that this process could take at present, without anybody being killed for it.
///
/// ```
/// let memory = vmio::AvailableMemory::now();
/// if let Some(bytes) = memory.bytes() {
///     println!("{} MiB for a cache, at most", bytes >> 20);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AvailableMemory {
    /// The bytes that the system has available (`MemAvailable` of /proc/meminfo); `None` if it does not say.
    pub system_bytes: Option<u64>,
    /// The bytes that the memory cgroups of the process leave to it, page cache counted as free; `None` without a limit.
    pub cgroup_bytes: Option<u64>,
}

impl AvailableMemory {
    /// Returns the memory available now, from a few small files of the kernel.
    pub fn now() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same, with the files of the kernel under the given folder.
    fn under(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        AvailableMemory {
            system_bytes: field(&meminfo, "MemAvailable:").map(|kib| kib * 1024),
            cgroup_bytes: MemoryCgroups::under(root).room_bytes(),
        }
    }

    /// Returns the smaller of both; `None` if nothing is known.
    pub fn bytes(&self) -> Option<u64> {
        self.system_bytes.into_iter().chain(self.cgroup_bytes).min()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_of_the_system_and_the_cgroup_counts() {
        let root = tempfile::tempdir().unwrap();
        let (proc, group) = (root.path().join("proc/self"), root.path().join("sys/fs/cgroup/ours"));
        fs::create_dir_all(&proc).unwrap();
        fs::create_dir_all(&group).unwrap();
        assert_eq!(AvailableMemory::under(root.path()).bytes(), None);
        fs::write(root.path().join("proc/meminfo"), "MemTotal: 9000 kB\nMemAvailable: 800 kB\n").unwrap();
        assert_eq!(AvailableMemory::under(root.path()).bytes(), Some(800 << 10));
        fs::write(proc.join("cgroup"), "0::/ours\n").unwrap();
        for (limit, expected) in [("max", 800 << 10), ("409600", 400_000), ("4096000", 800 << 10)] {
            fs::write(group.join("memory.max"), limit).unwrap();
            fs::write(group.join("memory.current"), "9600").unwrap();
            fs::write(group.join("memory.stat"), "file 0\nshmem 0\n").unwrap();
            assert_eq!(AvailableMemory::under(root.path()).bytes(), Some(expected), "{limit}");
        }
    }
}
