//! The memory cgroups that the process is in: how much room they leave for page cache.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sys::PAGE_BYTES;

/// A cgroup with a limit, and those above it that have one.
pub(crate) struct MemoryCgroups {
    levels: Vec<Level>,
}

/// One cgroup.
struct Level {
    folder: PathBuf,
    version: &'static Version,
}

/// How a version of cgroups names its files and fields.
struct Version {
    /// Files with the limits at which the kernel reclaims at the latest. A cgroup without the first file does not
    /// count; the others may be missing.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Fields of memory.stat: page cache, and the part of it that is not the cache of any file.
    cache: [&'static str; 2],
}

static V1: Version = Version {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cache: ["total_cache ", "total_shmem "],
};
static V2: Version =
    Version { limits: &["memory.max", "memory.high"], usage: "memory.current", cache: ["file ", "shmem "] };

impl MemoryCgroups {
    /// Those of this process.
    pub(crate) fn of_this_process() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same, with the files of the kernel under the given folder.
    pub(super) fn under(root: &Path) -> Self {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = root.join("sys/fs/cgroup");
        let mut levels = Vec::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            if controllers.split(',').any(|name| name == "memory") {
                levels.extend(levels_of(&mounts.join("memory"), path, &V1));
            } else if controllers.is_empty() {
                levels.extend(levels_of(&mounts, path, &V2));
                levels.extend(levels_of(&mounts.join("unified"), path, &V2));
            }
        }
        MemoryCgroups { levels }
    }

    /// Pages that the page cache may take without the kernel having to reclaim; `None` without a limit.
    pub(crate) fn room_pages(&self) -> Option<u64> {
        self.room_bytes().map(|bytes| bytes / PAGE_BYTES as u64)
    }

    /// The same in bytes.
    pub(super) fn room_bytes(&self) -> Option<u64> {
        self.levels.iter().filter_map(Level::room_bytes).min()
    }

    /// The file that tells how long threads of the innermost cgroup of version 2 have waited for memory.
    pub(super) fn pressure(&self) -> Option<PathBuf> {
        let innermost = self.levels.iter().find(|level| std::ptr::eq(level.version, &V2))?;
        Some(innermost.folder.join("memory.pressure"))
    }
}

/// The cgroup and those above it, as far as they can be seen. In a container the path may be the host's.
fn levels_of(mount: &Path, path: &str, version: &'static Version) -> Vec<Level> {
    let own = mount.join(path.trim_start_matches('/'));
    let folders = own.ancestors().take_while(|folder| folder.starts_with(mount));
    folders
        .filter(|folder| folder.join(version.limits[0]).exists())
        .map(|folder| Level { folder: folder.to_owned(), version })
        .collect()
}

impl Level {
    fn room_bytes(&self) -> Option<u64> {
        let number = |file: &str| fs::read_to_string(self.folder.join(file)).ok()?.trim().parse::<u64>().ok();
        // Version 2 says "max", version 1 a number beyond all memory.
        let limits = self.version.limits.iter().filter_map(|file| number(file));
        let limit = limits.min().filter(|limit| *limit < 1 << 60)?;
        let usage = number(self.version.usage)?;
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let [cache, shared] = self.version.cache.map(|name| field(&stat, name).unwrap_or(0));
        let other_uses = usage.saturating_sub(cache.saturating_sub(shared));
        Some(limit.saturating_sub(other_uses))
    }
}

/// The number behind a name, in a file with one on each line.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_level_counts_and_file_pages_do_not() {
        let mount = tempfile::tempdir().unwrap();
        let inner = mount.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, limit: &str, current: u64| {
            fs::write(folder.join("memory.max"), limit).unwrap();
            fs::write(folder.join("memory.current"), current.to_string()).unwrap();
            fs::write(folder.join("memory.stat"), "anon 5\nfile 40960\nshmem 8192\n").unwrap();
        };
        let groups = MemoryCgroups { levels: levels_of(mount.path(), "/a/b", &V2) };
        assert_eq!(groups.room_pages(), None);
        write(&inner, "max\n", 50_000);
        write(&mount.path().join("a"), "409600\n", 49_152);
        let groups = MemoryCgroups { levels: levels_of(mount.path(), "/a/b", &V2) };
        // 49152 bytes are in use, of which 32768 are file pages: 16384 are not available.
        assert_eq!(groups.room_pages(), Some(100 - 4));
    }
}
