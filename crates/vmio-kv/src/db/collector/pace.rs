//! How writers are slowed, so that what goes on in the background keeps up with them: evenly, and before a bound is reached.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// By how much each byte is delayed where the bound is reached: 4 MB a second are left to writers.
const DELAY_NS_A_BYTE: f64 = 250.0;
/// Nobody sleeps for less: what several records owe is slept by one.
const SLEEP_MIN: Duration = Duration::from_micros(100);
/// Nor for more at a time.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// Who has come to the bound waits until there is space, and no longer than this: the collector may be waiting itself.
const WAIT_MAX: Duration = Duration::from_millis(60);

/// Who has written more waits so much longer for each of these.
const WAITED_FOR_BYTES: u64 = 1 << 20;

/// Thousandths of the way to the bound at which writers stop.
const BOUND: u32 = 1000;

/// What is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The space that the log takes.
    Space,
    /// What an opening would read back.
    Recovery,
}

/// How close a segment is to its bounds.
#[derive(Default)]
pub(crate) struct Pace {
    /// Thousandths of the way from where nobody is slowed to the bound: of each bound,
    parts: [AtomicU32; 2],
    /// and the most of them.
    close: AtomicU32,
    owed_ns: AtomicU64,
    is_beyond: Mutex<()>,
    changed: Condvar,
}

impl Pace {
    /// Says how far it is from where nobody is slowed, 0, to a bound, 1.
    pub(crate) fn set(&self, bound: Bound, part: f64) {
        self.parts[bound as usize].store((part.clamp(0.0, 2.0) * f64::from(BOUND)) as u32, Ordering::Relaxed);
        let close = self.parts.iter().map(|part| part.load(Ordering::Relaxed)).max().unwrap_or(0);
        let before = self.close.swap(close, Ordering::Relaxed);
        if before >= BOUND && close < BOUND {
            drop(self.is_beyond.lock());
            self.changed.notify_all();
        }
    }

    /// What it was said to be.
    pub(super) fn part(&self) -> f64 {
        f64::from(self.close.load(Ordering::Relaxed)) / f64::from(BOUND)
    }

    /// How long who has written so many bytes has to sleep: by the square of how close the bound is.
    fn delay(&self, bytes: u64) -> Option<Duration> {
        let close = self.close.load(Ordering::Relaxed);
        if close == 0 {
            // What was owed for is no danger any more.
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
        // What is left is for others.
        self.owed_ns.fetch_add((owed - sleeps).as_nanos() as u64, Ordering::Relaxed);
        Some(sleeps)
    }

    /// Has a writer wait who holds nothing, and has written so many bytes.
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
        assert_eq!(pace.delay(1 << 30), None, "nobody is slowed far from it");
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
