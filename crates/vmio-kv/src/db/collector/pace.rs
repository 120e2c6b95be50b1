//! Slows writers evenly before a bound is reached, so that background work keeps up with them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Delay for each byte at the bound: it leaves writers 4 MB a second.
const DELAY_NS_A_BYTE: f64 = 250.0;
/// The shortest sleep: one writer sleeps for the debts of several records.
const SLEEP_MIN: Duration = Duration::from_micros(100);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// At the bound a writer waits until there is space, but no longer than this: the collector may be waiting itself.
const WAIT_MAX: Duration = Duration::from_millis(40);

/// For each of these bytes that it has written, a writer waits another `WAIT_MAX` at most.
const WAITED_FOR_BYTES: u64 = 1 << 20;

/// The closeness at which writers stop, in thousandths of the way to the bound.
const AT_BOUND: u32 = 1000;

/// A bounded quantity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The space that the log takes.
    Space,
    /// The log that an opening would read back.
    Recovery,
}

/// How close a segment is to its bounds.
#[derive(Default)]
pub(crate) struct Pace {
    /// Thousandths of the way from where no writer is slowed to the bound, for each bound. Writers at a bound wait with it.
    by_bound: Mutex<[u32; 2]>,
    /// The largest of `by_bound`; it changes only while that is locked, so that the last change has seen all before it.
    closeness: AtomicU32,
    owed_ns: AtomicU64,
    /// The closeness has fallen below the bound.
    has_fallen: Condvar,
}

impl Pace {
    /// Sets how far the segment is on the way from where no writer is slowed, 0, to a bound, 1.
    pub(crate) fn set(&self, bound: Bound, closeness: f64) {
        let mut by_bound = self.by_bound.lock();
        by_bound[bound as usize] = (closeness.clamp(0.0, 2.0) * f64::from(AT_BOUND)) as u32;
        let now = by_bound.iter().copied().max().unwrap_or(0);
        let before = self.closeness.swap(now, Ordering::Relaxed);
        drop(by_bound);
        if before >= AT_BOUND && now < AT_BOUND {
            self.has_fallen.notify_all();
        }
    }

    /// The largest of the values set.
    pub(super) fn closeness(&self) -> f64 {
        f64::from(self.closeness.load(Ordering::Relaxed)) / f64::from(AT_BOUND)
    }

    /// How long a writer of `bytes` bytes has to sleep: by the square of the closeness to the bound.
    fn delay(&self, bytes: u64) -> Option<Duration> {
        let closeness = self.closeness.load(Ordering::Relaxed);
        if closeness == 0 {
            // The debts are harmless now.
            if self.owed_ns.load(Ordering::Relaxed) > 0 {
                self.owed_ns.store(0, Ordering::Relaxed);
            }
            return None;
        }
        let part = f64::from(closeness.min(AT_BOUND)) / f64::from(AT_BOUND);
        let owes = (DELAY_NS_A_BYTE * part * part * bytes as f64) as u64;
        let owed = self.owed_ns.fetch_add(owes, Ordering::Relaxed) + owes;
        if Duration::from_nanos(owed) < SLEEP_MIN {
            return None;
        }
        let owed = Duration::from_nanos(self.owed_ns.swap(0, Ordering::Relaxed).min(owed));
        let sleeps = owed.min(SLEEP_MAX);
        // The rest is left to other writers.
        self.owed_ns.fetch_add((owed - sleeps).as_nanos() as u64, Ordering::Relaxed);
        Some(sleeps)
    }

    /// Delays a writer that holds no locks and has written `bytes` bytes.
    pub(crate) fn delay_writer(&self, bytes: u64) {
        if let Some(delay) = self.delay(bytes) {
            std::thread::sleep(delay);
        }
        let is_at_bound = || self.closeness.load(Ordering::Relaxed) >= AT_BOUND;
        if !is_at_bound() {
            return;
        }
        let until = Instant::now() + WAIT_MAX * (1 + bytes / WAITED_FOR_BYTES) as u32;
        let mut by_bound = self.by_bound.lock();
        while is_at_bound() {
            if self.has_fallen.wait_until(&mut by_bound, until).timed_out() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_towards_the_bound_and_are_shared() {
        let pace = Pace::default();
        assert_eq!(pace.delay(1 << 30), None, "no writer is slowed far from the bound");
        let slept = |closeness: f64| {
            let pace = Pace::default();
            pace.set(Bound::Space, closeness);
            (0..1000).filter_map(|_| pace.delay(1000)).sum::<Duration>()
        };
        let delays: Vec<Duration> = [0.1, 0.3, 0.6, 1.0].into_iter().map(slept).collect();
        assert!(delays.is_sorted() && delays[0] > Duration::ZERO, "{delays:?}");
        assert_eq!(delays[3], Duration::from_millis(250));
        assert_eq!(slept(1.7), delays[3], "no more than that");
        pace.set(Bound::Recovery, 1.0);
        pace.set(Bound::Space, 0.2);
        assert_eq!(pace.delay(1 << 20), Some(SLEEP_MAX), "a batch does not sleep for all its records");
        assert_eq!(pace.delay(0), Some(SLEEP_MAX), "the next one does");
    }

    #[test]
    fn a_writer_at_the_bound_goes_on_when_there_is_space() {
        let pace = Pace::default();
        pace.set(Bound::Space, 1.5);
        assert!((pace.closeness() - 1.5).abs() < 1e-6);
        std::thread::scope(|scope| {
            scope.spawn(|| pace.delay_writer(1));
            pace.set(Bound::Space, 0.0);
        });
        pace.delay_writer(1 << 20);
    }
}
