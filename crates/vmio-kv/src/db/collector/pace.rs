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

/// Thousandths of the way to the bound at which writers stop.
const BOUND: u32 = 1000;

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
    /// Thousandths of the way from where no writer is slowed to the bound, for each bound.
    parts: [AtomicU32; 2],
    /// The largest of `parts`.
    close: AtomicU32,
    owed_ns: AtomicU64,
    is_beyond: Mutex<()>,
    changed: Condvar,
}

impl Pace {
    /// Sets how far the segment is on the way from where no writer is slowed, 0, to a bound, 1.
    pub(crate) fn set(&self, bound: Bound, part: f64) {
        self.parts[bound as usize].store((part.clamp(0.0, 2.0) * f64::from(BOUND)) as u32, Ordering::Relaxed);
        let close = self.parts.iter().map(|part| part.load(Ordering::Relaxed)).max().unwrap_or(0);
        let before = self.close.swap(close, Ordering::Relaxed);
        if before >= BOUND && close < BOUND {
            drop(self.is_beyond.lock());
            self.changed.notify_all();
        }
    }

    /// The largest of the values set.
    pub(super) fn part(&self) -> f64 {
        f64::from(self.close.load(Ordering::Relaxed)) / f64::from(BOUND)
    }

    /// How long a writer of `bytes` bytes has to sleep: by the square of the closeness to the bound.
    fn delay(&self, bytes: u64) -> Option<Duration> {
        let close = self.close.load(Ordering::Relaxed);
        if close == 0 {
            // The debts are harmless now.
            if self.owed_ns.load(Ordering::Relaxed) > 0 {
                self.owed_ns.store(0, Ordering::Relaxed);
            }
            return None;
        }
        let part = f64::from(close.min(BOUND)) / f64::from(BOUND);
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
    pub(crate) fn keep(&self, bytes: u64) {
        if let Some(delay) = self.delay(bytes) {
            std::thread::sleep(delay);
        }
        if self.close.load(Ordering::Relaxed) < BOUND {
            return;
        }
        let until = Instant::now() + WAIT_MAX * (1 + bytes / WAITED_FOR_BYTES) as u32;
        let mut is_beyond = self.is_beyond.lock();
        while self.close.load(Ordering::Relaxed) >= BOUND {
            if self.changed.wait_until(&mut is_beyond, until).timed_out() {
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
        let slept = |part: f64| {
            let pace = Pace::default();
            pace.set(Bound::Space, part);
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
        assert!((pace.part() - 1.5).abs() < 1e-6);
        std::thread::scope(|scope| {
            scope.spawn(|| pace.keep(1));
            pace.set(Bound::Space, 0.0);
        });
        pace.keep(1 << 20);
    }
}
