//! What the levels in memory of all regions take together: the cache has the rest, beside what logs keep in memory, and writers are
//! slowed as it comes to its limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// By how much a record is delayed when the limit is reached.
const DELAY_MAX: Duration = Duration::from_millis(1);
/// Nobody sleeps for less: what several records owe is slept by one.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// Nor for more: a batch of many records would sleep long after there is room again.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The part of what all levels may take that ranges may take which are known to be empty.
const GAPS_SHARE: u64 = 16;

/// A count of bytes that somebody waits for to change by more than a little.
pub(crate) struct LevelMemory {
    bytes: AtomicU64,
    /// Those of them that are not written to any more: of levels that are to be spilled, or have been and are still read.
    closed_bytes: AtomicU64,
    /// Of these, those that are to be spilled.
    frozen_bytes: AtomicU64,
    /// What the cache does not have either, beside levels.
    beside_bytes: AtomicU64,
    /// What ranges take that are known to be empty.
    gaps_bytes: AtomicU64,
    /// What all levels may take; half of it is for those that are written to.
    most_bytes: u64,
    /// By how much writers are to be delayed, and have not been.
    owed_ns: AtomicU64,
    step_bytes: u64,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl LevelMemory {
    /// Nothing yet, of so many bytes at most; who waits is told of each multiple of `step_bytes` that it comes past.
    pub(crate) fn new(most_bytes: u64, step_bytes: u64) -> Self {
        LevelMemory {
            bytes: AtomicU64::new(0),
            closed_bytes: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            beside_bytes: AtomicU64::new(0),
            gaps_bytes: AtomicU64::new(0),
            most_bytes,
            owed_ns: AtomicU64::new(0),
            step_bytes: step_bytes.max(1),
            is_over: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// So many bytes are taken for ever by something else.
    pub(crate) fn add_beside(&self, bytes: u64) {
        self.beside_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.notify();
    }

    /// What ranges may take that are known to be empty, those of all regions and views.
    pub(super) fn gaps_bytes_max(&self) -> u64 {
        self.most_bytes / GAPS_SHARE
    }

    /// What they take.
    #[cfg(test)]
    pub(super) fn gaps_bytes(&self) -> u64 {
        self.gaps_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes for one of them, if they have not the most that they may take.
    pub(super) fn take_for_gaps(&self, bytes: u64) -> bool {
        let more = |before: u64| Some(before + bytes).filter(|bytes| *bytes <= self.gaps_bytes_max());
        let taken = self.gaps_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.inspect(|before| self.tell(*before, *before + bytes)).is_ok()
    }

    /// One of them is gone.
    pub(super) fn give_back_of_gaps(&self, bytes: u64) {
        let before = self.gaps_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(before, before - bytes);
    }

    /// So many more.
    pub(super) fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tell(before, before + bytes);
    }

    /// So many fewer.
    pub(super) fn remove(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(before, before - bytes);
    }

    /// A level of so many bytes is to be spilled.
    pub(super) fn freeze(&self, bytes: u64) {
        self.closed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.frozen_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It has been: only snapshots may hold it.
    pub(super) fn spilled(&self, bytes: u64) {
        self.frozen_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// It is gone.
    pub(super) fn remove_frozen(&self, bytes: u64) {
        self.remove(bytes);
        self.closed_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn written_to(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).saturating_sub(self.closed_bytes.load(Ordering::Relaxed))
    }

    /// Whether the levels that are written to have their half of it.
    pub(crate) fn is_crowded(&self) -> bool {
        self.written_to() >= self.most_bytes / 2
    }

    /// How long a writer of some records has to sleep, so that spills keep up: not at all below seven eighths of the limit, and
    /// from there on by the square of what is beyond.
    pub(crate) fn delay(&self, records: usize) -> Option<Duration> {
        let free_of_delay = self.most_bytes / 8 * 7;
        // What snapshots hold is no work that writers could wait for.
        let bytes = self.written_to() + self.frozen_bytes.load(Ordering::Relaxed);
        let beyond = bytes.checked_sub(free_of_delay)?;
        let part = (beyond as f64 / (self.most_bytes - free_of_delay).max(1) as f64).min(1.0);
        let owes = (DELAY_MAX.as_nanos() as f64 * part * part) as u64 * records as u64;
        let owed = self.owed_ns.fetch_add(owes, Ordering::Relaxed) + owes;
        if Duration::from_nanos(owed) < SLEEP_MIN {
            return None;
        }
        Some(Duration::from_nanos(self.owed_ns.swap(0, Ordering::Relaxed).min(owed)).min(SLEEP_MAX))
    }

    fn tell(&self, before: u64, after: u64) {
        if before / self.step_bytes != after / self.step_bytes {
            self.notify();
        }
    }

    fn notify(&self) {
        // Whoever is between looking and waiting holds it.
        drop(self.is_over.lock());
        self.changed.notify_all();
    }

    /// What it is, rounded up by a step and less, and what is taken beside; once that is not `known`. `None` when it is over.
    pub(crate) fn wait(&self, known: Option<u64>) -> Option<u64> {
        let mut is_over = self.is_over.lock();
        loop {
            let levels = (self.bytes.load(Ordering::Relaxed) / self.step_bytes + 1) * self.step_bytes;
            // No step as long as there are none.
            let gaps = self.gaps_bytes.load(Ordering::Relaxed).next_multiple_of(self.step_bytes);
            let bytes = levels + gaps + self.beside_bytes.load(Ordering::Relaxed);
            if *is_over {
                return None;
            }
            if Some(bytes) != known {
                return Some(bytes);
            }
            self.changed.wait(&mut is_over);
        }
    }

    /// Nobody need wait any more.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_and_what_is_in_between_is_not() {
        let memory = LevelMemory::new(1000, 100);
        assert_eq!(memory.wait(None), Some(100));
        memory.add(250);
        assert_eq!(memory.wait(Some(100)), Some(300));
        memory.remove(40);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| memory.wait(Some(300)));
            memory.remove(20);
            assert_eq!(waits.join().expect("no panic"), Some(200));
        });
        memory.add_beside(50);
        assert_eq!(memory.wait(Some(200)), Some(250));
        memory.end();
        assert_eq!(memory.wait(None), None);
    }

    #[test]
    fn writers_are_slowed_by_and_by() {
        let slept = |bytes: u64| {
            let memory = LevelMemory::new(1000, 100);
            memory.add(bytes);
            (0..1000).filter_map(|_| memory.delay(1)).sum::<Duration>()
        };
        assert_eq!(slept(875), Duration::ZERO);
        let delays: Vec<Duration> = [900, 925, 950, 975, 1000].into_iter().map(slept).collect();
        assert!(delays.is_sorted() && delays[0] > Duration::ZERO, "{delays:?}");
        assert_eq!(delays[4], 1000 * DELAY_MAX);
        assert_eq!(slept(5000), delays[4], "no more than that");
        let memory = LevelMemory::new(1000, 100);
        memory.add(1000);
        assert_eq!(memory.delay(1_000_000), Some(SLEEP_MAX), "a batch does not sleep for all its records");
    }

    #[test]
    fn what_is_being_spilled_crowds_nobody() {
        let memory = LevelMemory::new(1000, 100);
        memory.add(500);
        assert!(memory.is_crowded());
        memory.freeze(300);
        assert!(!memory.is_crowded());
        memory.add(400);
        assert!(memory.is_crowded() && memory.delay(1000).is_some());
        memory.spilled(300);
        assert!(memory.delay(1000).is_none(), "a snapshot holds it");
        memory.remove_frozen(300);
        assert_eq!(memory.written_to(), 600);
    }
}
