//! The background threads, as other threads see them: how many there are, how many sleep, and how to wake one.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vmio_core::futex;

/// A device whose writes take longer than this is worth several threads that wait for it.
const SLOW_WRITE_NS: u64 = 30_000;

/// Wakes the workers, and ends them.
pub(crate) struct Workers {
    pub(crate) count: u32,
    on_fast_device: u32,
    asleep: AtomicU32,
    work: AtomicU32,
    write_ns: AtomicU64,
    stopping: AtomicBool,
}

impl Workers {
    /// For `count` workers, which are yet to start.
    pub(super) fn new(count: u32, cores: usize) -> Self {
        Workers {
            count,
            on_fast_device: (cores as u32 / 4).clamp(1, count),
            asleep: AtomicU32::new(0),
            work: AtomicU32::new(0),
            write_ns: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Wakes a worker if none is awake. If `urgent`, wakes one more, as long as that does not merely take a core from
    /// the program: while workers wait for a slow device, or where there are enough cores.
    pub(crate) fn wake(&self, urgent: bool) {
        // First the event: a worker that is about to sleep either sees it or is counted as asleep.
        self.work.fetch_add(1, Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::SeqCst);
        let useful = if self.writes_are_slow() { self.count } else { self.on_fast_device };
        if asleep == self.count || (urgent && asleep > self.count - useful) {
            futex::wake_one(&self.work);
        }
    }

    /// Returns the number to pass to [`Self::sleep`]. Call this before looking for work.
    pub(crate) fn work_event(&self) -> u32 {
        self.work.load(Ordering::SeqCst)
    }

    /// Puts a worker to sleep until work has come since `event`, or `limit` has passed.
    pub(crate) fn sleep(&self, event: u32, limit: Option<Duration>) {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        match limit {
            Some(limit) => futex::wait_for(&self.work, event, limit),
            None => futex::wait(&self.work, event),
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Tells all workers to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.work.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.work);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Notes how long a write took.
    pub(super) fn note_write(&self, ns: u64) {
        let before = self.write_ns.load(Ordering::Relaxed);
        self.write_ns.store((before * 7 + ns) / 8, Ordering::Relaxed);
    }

    /// Whether a write mostly waits for the device, so that more threads mean more throughput.
    pub(crate) fn writes_are_slow(&self) -> bool {
        self.write_ns.load(Ordering::Relaxed) > SLOW_WRITE_NS
    }
}
