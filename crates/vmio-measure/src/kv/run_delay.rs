//! A thread's waits for a processor: time that the machine took, not the engine.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The time in which a thread was ready but did not run because other threads, of its engine or not, had the processors. The kernel counts
/// it in `schedstat`. Sleep, on an engine's lock or for its I/O, does not count.
pub struct RunDelay {
    /// `None` if the kernel does not count.
    file: Option<File>,
    seen_ns: u64,
}

impl RunDelay {
    /// The waits of the calling thread.
    pub fn of_this_thread() -> Self {
        let mut delay = Self { file: File::open("/proc/thread-self/schedstat").ok(), seen_ns: 0 };
        delay.since_last_ns();
        delay
    }

    /// Nanoseconds since the last call. Costs about a microsecond.
    pub fn since_last_ns(&mut self) -> Option<u64> {
        let mut text = [0; 80];
        let bytes = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let total_ns = parse(&text[..bytes])?;
        let since_ns = total_ns.saturating_sub(self.seen_ns);
        self.seen_ns = total_ns;
        Some(since_ns)
    }
}

/// The second number: the time on a processor comes first, then the waits for one.
fn parse(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

    use super::*;

    #[test]
    fn the_second_number_counts() {
        assert_eq!(parse(b"566642982 2191976 76\n"), Some(2_191_976));
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn threads_on_one_processor_wait_for_each_other() {
        if RunDelay::of_this_thread().since_last_ns().is_none() {
            return test_depth::skipped("this kernel does not say how long a thread waits");
        }
        let (start, has_waited) = (Instant::now(), AtomicBool::new(false));
        let spin = || {
            let mut only_here = CpuSet::new();
            only_here.set(sched_getcpu());
            let (has_waited, start) = (&has_waited, &start);
            move || {
                let _ = sched_setaffinity(None, &only_here);
                let (mut delay, mut delayed_ns) = (RunDelay::of_this_thread(), 0);
                while !has_waited.load(Relaxed) && start.elapsed() < Duration::from_secs(60) {
                    delayed_ns += delay.since_last_ns().unwrap_or(0);
                    if delayed_ns > 20_000_000 {
                        has_waited.store(true, Relaxed);
                    }
                }
            }
        };
        let threads = [spin(), spin(), spin()];
        thread::scope(|scope| threads.into_iter().for_each(|spin| drop(scope.spawn(spin))));
        assert!(has_waited.into_inner(), "no thread waited 20 ms of a minute");
    }

    #[test]
    fn a_sleep_is_not_counted() {
        let mut least = u64::MAX;
        // On a busy machine the thread waits for a processor when it wakes.
        for _ in 0..20 {
            let mut delay = RunDelay::of_this_thread();
            thread::sleep(Duration::from_millis(100));
            least = least.min(delay.since_last_ns().unwrap_or(0));
            if least < 50_000_000 {
                return;
            }
        }
        panic!("{least} ns of 100 ms asleep");
    }
}
