//! A memory cgroup that gives Linux mmap the same budget as the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use vmio_report::cleanup::Cleanup;
use vmio_report::output::OutputArgs;

/// A cgroup with a memory limit; removed when dropped, once its processes are gone.
pub struct MemoryCgroup {
    path: PathBuf,
    _removal: Cleanup,
}

/// The interface files of one cgroup version.
struct Version {
    mount: &'static str,
    /// The controllers in its line of /proc/self/cgroup, after the number.
    controllers: &'static str,
    limit_file: &'static str,
    usage_file: &'static str,
}

const VERSIONS: [Version; 3] = [
    Version {
        mount: "/sys/fs/cgroup/memory",
        controllers: "memory",
        limit_file: "memory.limit_in_bytes",
        usage_file: "memory.usage_in_bytes",
    },
    Version { mount: "/sys/fs/cgroup", controllers: "", limit_file: "memory.max", usage_file: "memory.current" },
    Version {
        mount: "/sys/fs/cgroup/unified",
        controllers: "",
        limit_file: "memory.max",
        usage_file: "memory.current",
    },
];

impl MemoryCgroup {
    /// Like [`Self::create`], for `what` to run in. Where no cgroup can be made, tells the user.
    pub fn create_or_tell(limit_bytes: u64, what: &str, output: &OutputArgs) -> anyhow::Result<Option<Self>> {
        match Self::create(limit_bytes) {
            Ok(cgroup) => Ok(Some(cgroup)),
            Err(error) => output.text(&format!("{what}: its memory is not limited: {error:#}")).map(|()| None),
        }
    }

    /// Creates a cgroup limited to `limit_bytes`, file pages included.
    pub fn create(limit_bytes: u64) -> anyhow::Result<Self> {
        let mut failures = Vec::new();
        for version in &VERSIONS {
            for parent in version.parents() {
                match version.create_in(&parent, limit_bytes) {
                    Ok(cgroup) => return Ok(cgroup),
                    Err(error) => failures.push(format!("{}: {error:#}", parent.display())),
                }
            }
        }
        if failures.is_empty() {
            bail!("no memory cgroup controller is mounted under /sys/fs/cgroup");
        }
        bail!("creating a memory cgroup needs root or a delegated cgroup ({})", failures.join("; "))
    }

    /// The folder of the cgroup.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Version {
    /// The folders for a cgroup of ours: the cgroup that we are in, or else the root of the mount.
    fn parents(&self) -> Vec<PathBuf> {
        let mount = Path::new(self.mount);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            (fields.next()?.split(',').any(|name| name == self.controllers)).then(|| fields.next())?
        });
        let own = own.map(|own| mount.join(own.trim_start_matches('/')));
        let mut parents: Vec<_> = own.into_iter().chain([mount.to_owned()]).collect();
        parents.dedup();
        parents.retain(|parent| parent.join("cgroup.procs").exists());
        parents
    }

    fn create_in(&self, parent: &Path, limit_bytes: u64) -> anyhow::Result<MemoryCgroup> {
        if self.controllers.is_empty() {
            let controllers = fs::read_to_string(parent.join("cgroup.controllers"))?;
            if !controllers.split_whitespace().any(|name| name == "memory") {
                bail!("its memory controller is not available");
            }
            // If it is enabled already, that is fine; if this fails, the write of the limit below fails and says so.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let path = parent.join(format!("vmio-bench-{}-{limit_bytes}", process::id()));
        fs::create_dir(&path).context("cannot create a cgroup")?;
        let to_remove = path.clone();
        let removal = Cleanup::register(move || remove(&to_remove))?;
        fs::write(path.join(self.limit_file), limit_bytes.to_string())
            .with_context(|| format!("cannot write {}", self.limit_file))?;
        Ok(MemoryCgroup { path, _removal: removal })
    }
}

/// Moves this process into the cgroup, which is charged for its mappings from now on.
pub fn enter(path: &Path) -> anyhow::Result<()> {
    fs::write(path.join("cgroup.procs"), process::id().to_string())
        .with_context(|| format!("cannot enter the cgroup {}", path.display()))
}

/// Bytes charged to the cgroup now.
pub fn usage_bytes(path: &Path) -> Option<u64> {
    let text = VERSIONS.iter().find_map(|version| fs::read_to_string(path.join(version.usage_file)).ok())?;
    text.trim().parse().ok()
}

/// Removes a cgroup. A process that has just ended may keep the cgroup busy for a moment.
fn remove(path: &Path) {
    for _ in 0..100 {
        if fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    eprintln!("vmio: cannot remove the cgroup {}: remove it by rmdir", path.display());
}
