//! The observer: reads from the kernel how much memory there is for us, and whether threads wait for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::elastic::cgroup::{MemoryCgroups, field};
use crate::elastic::governor::Observation;

/// Stalls anywhere in the system count if less than one in this many of its pages is available. If more are, threads
/// elsewhere are short of memory within limits of their own.
const SCARCE_SHARE: u64 = 4;

/// Looks at the system and at the cgroups of the process.
pub(crate) struct Observer {
    meminfo: PathBuf,
    system_pressure: PathBuf,
    cgroups: MemoryCgroups,
    looked: Instant,
    /// Of the cgroup, and of the system: how long threads had waited for memory by then, in microseconds.
    stalled_us: [Option<u64>; 2],
}

impl Observer {
    /// With the files of the kernel under the given folder.
    pub(crate) fn new(root: &Path) -> Self {
        let (meminfo, system_pressure) = (root.join("proc/meminfo"), root.join("proc/pressure/memory"));
        let cgroups = MemoryCgroups::under(root);
        let mut observer =
            Observer { meminfo, system_pressure, cgroups, looked: Instant::now(), stalled_us: [None, None] };
        observer.stalled_us = observer.read_stalls();
        observer
    }

    /// Looks at memory, for a cache that holds `held_bytes` which the kernel cannot take back by itself. Skips files
    /// that cannot be read.
    pub(crate) fn look(&mut self, now: Instant, held_bytes: u64) -> Observation {
        let meminfo = fs::read_to_string(&self.meminfo).unwrap_or_default();
        let bytes = |name| field(&meminfo, name).map(|kib| kib * 1024);
        let available = bytes("MemAvailable:");
        let room = available.into_iter().chain(self.cgroups.room_bytes()).min();
        let is_scarce = available.zip(bytes("MemTotal:")).is_some_and(|(left, all)| left < all / SCARCE_SHARE);

        let elapsed_us = now.saturating_duration_since(self.looked).as_micros().max(1) as f64;
        let stalled_us = self.read_stalls();
        let share = |after: Option<u64>, before: Option<u64>| {
            after.zip(before).map_or(0.0, |(after, before)| after.saturating_sub(before) as f64 / elapsed_us)
        };
        let own = share(stalled_us[0], self.stalled_us[0]);
        let everybody = share(stalled_us[1], self.stalled_us[1]);
        (self.looked, self.stalled_us) = (now, stalled_us);
        Observation {
            // If no file says how much there is, there is no limit.
            room_bytes: room.map_or(1 << 60, |room| room.saturating_add(held_bytes)),
            stalled: if is_scarce { own.max(everybody) } else { own },
        }
    }

    fn read_stalls(&self) -> [Option<u64>; 2] {
        [self.cgroups.pressure().as_deref(), Some(&*self.system_pressure)].map(|file| {
            let pressure = fs::read_to_string(file?).ok()?;
            let some = pressure.lines().find(|line| line.starts_with("some "))?;
            some.rsplit_once("total=")?.1.trim().parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The files of a kernel with cgroups of version 2.
    struct Kernel(tempfile::TempDir);

    impl Kernel {
        fn new() -> Self {
            let kernel = Kernel(tempfile::tempdir().unwrap());
            for folder in ["proc/self", "proc/pressure", "sys/fs/cgroup/jobs/ours"] {
                fs::create_dir_all(kernel.0.path().join(folder)).unwrap();
            }
            kernel.set("proc/self/cgroup", "0::/jobs/ours\n");
            kernel.set("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         1 kB\nMemAvailable:    500 kB\n");
            kernel.set("sys/fs/cgroup/jobs/ours/memory.stat", "anon 100\nfile 2048\nshmem 0\n");
            kernel.set("sys/fs/cgroup/jobs/ours/memory.current", "102400\n");
            kernel.set("sys/fs/cgroup/jobs/ours/memory.max", "max\n");
            kernel.stall("proc/pressure/memory", 0);
            kernel.stall("sys/fs/cgroup/jobs/ours/memory.pressure", 0);
            kernel
        }

        fn set(&self, file: &str, contents: &str) {
            fs::write(self.0.path().join(file), contents).unwrap();
        }

        fn stall(&self, file: &str, us: u64) {
            self.set(
                file,
                &format!("some avg10=0.00 avg60=0.00 total={us}\nfull avg10=0.00 avg60=0.00 total={}\n", us / 2),
            );
        }
    }

    #[test]
    fn the_tightest_of_system_and_cgroups_is_the_room() {
        let kernel = Kernel::new();
        let mut observer = Observer::new(kernel.0.path());
        let now = Instant::now();
        let mut room = || observer.look(now, 7).room_bytes;
        assert_eq!(room(), 500 * 1024 + 7);
        kernel.set("sys/fs/cgroup/jobs/ours/memory.max", "204800\n");
        assert_eq!(room(), 100 * 1024 + 2048 + 7);
        kernel.set("sys/fs/cgroup/jobs/ours/memory.high", "153600\n");
        assert_eq!(room(), 50 * 1024 + 2048 + 7);
        kernel.set("sys/fs/cgroup/jobs/ours/memory.high", "max\n");
        kernel.set("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    20 kB\n");
        assert_eq!(room(), 20 * 1024 + 7);
    }

    #[test]
    fn stalls_of_others_count_where_the_system_is_short_of_memory() {
        let kernel = Kernel::new();
        let mut observer = Observer::new(kernel.0.path());
        let mut now = observer.looked;
        let mut stalled = || {
            now += Duration::from_secs(1);
            observer.look(now, 0).stalled
        };
        kernel.stall("proc/pressure/memory", 900_000);
        assert_eq!(stalled(), 0.0);
        kernel.stall("sys/fs/cgroup/jobs/ours/memory.pressure", 250_000);
        assert_eq!(stalled(), 0.25);
        assert_eq!(stalled(), 0.0);
        kernel.set("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    20 kB\n");
        kernel.stall("proc/pressure/memory", 1_400_000);
        assert_eq!(stalled(), 0.5);
    }

    #[test]
    fn a_kernel_that_says_nothing_sets_no_limit() {
        let nothing = tempfile::tempdir().unwrap();
        let seen = Observer::new(nothing.path()).look(Instant::now(), 5);
        assert_eq!(seen, Observation { room_bytes: 1 << 60, stalled: 0.0 });
    }
}
