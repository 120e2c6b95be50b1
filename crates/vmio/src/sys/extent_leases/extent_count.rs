//! How many extents the maps of this process have.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::fork::PerProcess;

/// The most extents of all maps, of Linux's default for the mappings of a process (65,530): a file that lies in more pieces is the kernel's.
const EXTENTS_MAX: u64 = 32_000;

/// A forked child has none of its parent's.
static OF_PROCESS: PerProcess<AtomicU64> = PerProcess::new();

/// The extents of a map.
pub(super) struct ExtentCount {
    of_map: AtomicU64,
    of_process: &'static AtomicU64,
}

impl ExtentCount {
    /// Allocates for the first map of a process.
    pub(super) fn none() -> io::Result<ExtentCount> {
        Ok(ExtentCount { of_map: AtomicU64::new(0), of_process: OF_PROCESS.get()? })
    }

    /// Adds some. False if the process has too many by now.
    pub(super) fn add(&self, more: u64) -> bool {
        self.of_map.fetch_add(more, Ordering::Relaxed);
        self.of_process.fetch_add(more, Ordering::Relaxed) <= EXTENTS_MAX
    }

    /// The map has none any more.
    pub(super) fn clear(&self) {
        self.of_process.fetch_sub(self.of_map.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_anew() {
        let (most, one) = (ExtentCount::none().unwrap(), ExtentCount::none().unwrap());
        assert!(most.add(EXTENTS_MAX + 1) && !one.add(1));
        // SAFETY: the child makes system calls, allocates a little, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_free = ExtentCount::none().is_ok_and(|own| own.add(1));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_free)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        most.clear();
        assert!(one.add(1));
        one.clear();
    }
}
