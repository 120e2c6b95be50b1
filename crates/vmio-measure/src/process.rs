//! The kernel's counts for a process: device bytes, CPU time, memory, major faults.

use std::fs;
use std::mem::MaybeUninit;

use anyhow::{Context, bail};

/// Counters of this process since it began.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Bytes that a device had to read for this process.
    pub read_bytes: u64,
    /// Bytes that a device had, or will have, to write for this process.
    pub write_bytes: u64,
    /// CPU time in user and kernel mode.
    pub cpu_s: f64,
    /// Faults that had to read.
    pub major_faults: u64,
}

impl Usage {
    /// Reads the counters of this process, all its threads together.
    pub fn now() -> anyhow::Result<Self> {
        let io = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `getrusage` writes one `rusage` into the pointer, which is valid for that.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
            bail!("getrusage failed: {}", std::io::Error::last_os_error());
        }
        // SAFETY: the value was zeroed, which is a valid `rusage`, and `getrusage` succeeded.
        let usage = unsafe { usage.assume_init() };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Ok(Self {
            read_bytes: field(&io, "read_bytes:").context("/proc/self/io has no read_bytes")?,
            write_bytes: field(&io, "write_bytes:").context("/proc/self/io has no write_bytes")?,
            cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            major_faults: usage.ru_majflt as u64,
        })
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            read_bytes: self.read_bytes - earlier.read_bytes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            cpu_s: self.cpu_s - earlier.cpu_s,
            major_faults: self.major_faults - earlier.major_faults,
        }
    }
}

/// The most memory this process ever had resident.
pub fn max_rss_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kibibytes(&status, "VmHWM:")
}

/// The memory that process `id` has resident now.
pub fn rss_bytes(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    kibibytes(&status, "VmRSS:")
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    // SAFETY: `geteuid` has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Asks the kernel to kill this process when its parent is gone: no run outlives its command.
pub fn die_with_parent() {
    // SAFETY: this option only sets a flag of the calling process; its argument is a signal.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    Some(field(status, name)? * 1024)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
