//! The cores of the NUMA node that the medium is on. A server that runs there stores to near memory alone.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const NODES: &str = "/sys/devices/system/node";

/// The cores of a node, as far as this process may use them.
pub struct NearCores {
    node: u32,
    cores: CpuSet,
}

impl NearCores {
    /// Those of the node that a medium is on. `None` if Linux names no node, or the process may use none of its cores, or no others.
    pub fn of(medium: &Path) -> Option<NearCores> {
        let device = device_of(&fs::metadata(medium).ok()?).canonicalize().ok()?;
        let node = node_of(&device)?;
        let listed = fs::read_to_string(format!("{NODES}/node{node}/cpulist")).ok()?;
        let cores = common(&listed, &sched_getaffinity(None).ok()?)?;
        Some(NearCores { node, cores })
    }

    /// Has this thread, and all that it starts from now on, run there.
    pub fn stay(&self) {
        let (node, count) = (self.node, self.cores.count());
        match sched_setaffinity(None, &self.cores) {
            Ok(()) => tracing::info!("the server runs on {count} cores of node {node}, where the medium is"),
            Err(error) => tracing::warn!(%error, "the server cannot stay on node {node}, where the medium is"),
        }
    }
}

/// The folder of sysfs of a device, or of the one that a file is on.
fn device_of(medium: &Metadata) -> PathBuf {
    let kind = medium.file_type();
    let (class, number) = match (kind.is_char_device(), kind.is_block_device()) {
        (true, _) => ("char", medium.rdev()),
        (_, true) => ("block", medium.rdev()),
        _ => ("block", medium.dev()),
    };
    PathBuf::from(format!("/sys/dev/{class}/{}:{}", major(number), minor(number)))
}

/// The node of a device: it says so itself, or the one does that it is a part of.
fn node_of(device: &Path) -> Option<u32> {
    let said = device.ancestors().find_map(|folder| fs::read_to_string(folder.join("numa_node")).ok());
    // −1 stands for none.
    said?.trim().parse().ok()
}

/// The cores of a list like `0-3,8` that a process may use; `None` if these are none, or all that it may use.
fn common(list: &str, allowed: &CpuSet) -> Option<CpuSet> {
    let mut cores = CpuSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first..=last.min(CpuSet::MAX_CPU - 1)).filter(|core| allowed.is_set(*core)).for_each(|core| cores.set(core));
    }
    (cores.count() > 0 && cores != *allowed).then_some(cores)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        set
    }

    #[test]
    fn a_server_keeps_to_the_cores_of_a_node_that_it_may_use() {
        let allowed = set(&[0, 1, 2, 3, 9]);
        assert!(common("2-5,9\n", &allowed) == Some(set(&[2, 3, 9])));
        // Memory without cores, none of its own, and nothing to choose.
        for list in ["\n", "4-8", "0-9", "0-100000", "nonsense"] {
            assert!(common(list, &allowed).is_none(), "{list}");
        }
    }

    #[test]
    fn a_part_of_a_device_is_on_the_node_of_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("region0/namespace0.0");
        let part = device.join("block/pmem0/pmem0p1");
        fs::create_dir_all(&part).unwrap();
        assert_eq!(node_of(&part), None);
        for (said, node) in [("1\n", Some(1)), ("-1\n", None)] {
            fs::write(device.join("numa_node"), said).unwrap();
            assert_eq!((node_of(&part), node_of(&device)), (node, node));
        }
    }
}
