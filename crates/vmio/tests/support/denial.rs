//! What the kernel denies from now on: system calls, as container runtimes have it, and locked memory.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// `UFFDIO_WRITEPROTECT`, by which pages of private memory are protected.
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
/// `PAGEMAP_SCAN`, by which pages are protected whose stores the kernel notes, and its notes are read.
pub const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// All by which pages are protected.
pub const PROTECTING: [u64; 2] = [UFFDIO_WRITEPROTECT, PAGEMAP_SCAN];

/// The calls fail with EPERM for the calling thread and those that it starts.
pub fn deny(calls: &[libc::c_long]) {
    apply(calls.iter().map(|call| (*call, Vec::new())).collect());
}

/// The same of ioctls with one of these codes.
pub fn deny_ioctls(codes: &[u64]) {
    let is_code = |code| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, code).unwrap();
    let rules = codes.iter().map(|code| SeccompRule::new(vec![is_code(*code)]).unwrap()).collect();
    apply([(libc::SYS_ioctl, rules)].into());
}

fn apply(rules: std::collections::BTreeMap<i64, Vec<SeccompRule>>) {
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// The process may lock this many bytes in memory, or what is left to it, and no more (RLIMIT_MEMLOCK, without CAP_IPC_LOCK). For children of one
/// thread: the right is taken from the calling one and those that it starts.
pub fn limit_locked_memory(bytes: u64) {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    sets.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
    let current = Some(maximum.map_or(bytes, |maximum| bytes.min(maximum)));
    setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
}
