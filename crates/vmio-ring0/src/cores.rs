//! The host's cores: which one runs the caller, and which NUMA nodes they belong to.

use std::fs;

const NODES: &str = "/sys/devices/system/node";

/// The core that the calling thread runs on, or did lately: no system call, and a hint alone.
///
/// The C library reads it from the thread's own memory (rseq). The kernel writes it there when a thread that was moved returns to the process: for
/// one in the machine, at its next exit. The processor itself says in the machine (RDPID, RDTSCP, the limit of a segment) what it was
/// told when the thread entered, which is older. A virtual processor's number would be a thread's: threads may be more than cores, and one outside
/// has none.
#[inline]
pub(crate) fn current() -> usize {
    // SAFETY: has no arguments. Where the kernel has no rseq, the C library asks the vDSO, which answers in the machine, too.
    unsafe { libc::sched_getcpu() as usize }
}

/// Of each core, the node that it belongs to. Nodes without cores are left out, and the others numbered from 0 on. One core at least.
pub(crate) fn nodes() -> Vec<usize> {
    let read = |file: String| fs::read_to_string(format!("{NODES}/{file}")).unwrap_or_default();
    let nodes = numbers(&read("online".to_owned())).map(|node| read(format!("node{node}/cpulist"))).collect::<Vec<_>>();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    nodes_of(&nodes, cores)
}

fn nodes_of(nodes: &[String], cores: usize) -> Vec<usize> {
    let with_cores = nodes.iter().filter(|cores| numbers(cores).next().is_some());
    let mut nodes = vec![0; cores];
    for (node, cores) in with_cores.enumerate() {
        for core in numbers(cores) {
            nodes.resize(nodes.len().max(core + 1), 0);
            nodes[core] = node;
        }
    }
    nodes
}

/// The numbers of a list like `0-3,8`. None of what is no number.
fn numbers(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let range = first.parse().ok().zip(last.parse().ok());
        range.into_iter().flat_map(|(first, last): (usize, usize)| first..=last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_belong_to_the_nodes_that_list_them() {
        let of = |lists: &[&str]| nodes_of(&lists.iter().map(|list| (*list).to_owned()).collect::<Vec<_>>(), 2);
        assert_eq!(of(&["0-1,4\n", "\n", "2-3,5-6\n"]), [0, 0, 1, 1, 0, 1, 1]);
        assert_eq!(of(&[]), [0, 0]);
        assert_eq!(of(&["nonsense", "1-"]), [0, 0]);
    }

    #[test]
    fn this_machine_has_the_core_that_runs_the_caller() {
        let nodes = nodes();
        assert!(current() < nodes.len() || std::fs::exists(NODES).is_ok_and(|exists| !exists));
        let last = nodes.iter().max().copied().unwrap_or_default();
        assert!((0..=last).all(|node| nodes.contains(&node)), "{nodes:?}");
    }
}
