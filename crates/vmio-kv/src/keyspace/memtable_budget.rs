//! The memory of all memtables together; the cache has the rest, besides the ends of logs.
//!
//! A writer adds to a memtable only once it is admitted, and waits for flushes while the budget has no space. The budget slows writers
//! before they have to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

/// The delay of a record when the budget is used up.
const DELAY_MAX: Duration = Duration::from_millis(1);
/// No sleep is shorter: delays add up until then, and one writer sleeps for several records.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// No sleep is longer: after a batch of many records a writer would sleep long after there is space again.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The gaps may take this part of the budget.
const GAPS_SHARE: u64 = 16;

/// How much all scans may read ahead together, in steps of a 64th of the memory: a sixteenth.
const SCANS_STEPS: u64 = 4;
/// The same with a step of a merge into leaves, which has this many bytes at most: a flush may wait for it.
const COMPACTION_STEPS: u64 = 8;
const COMPACTION_BYTES_MAX: u64 = 1 << 30;
/// How long a compaction waits for the cache at most.
const GIVE_UP_WAIT: Duration = Duration::from_secs(1);
/// How much a scan takes at a time.
const SCAN_SPACE_BYTES: u64 = 64 << 10;

/// The memory of all memtables: a count with a limit. Writers wait for space in it, and the cache follows its changes by a step or more.
pub(crate) struct MemtableBudget {
    bytes: AtomicU64,
    /// Bytes of immutable memtables, to be flushed or flushed and still read.
    closed_bytes: AtomicU64,
    /// Bytes of memtables that are to be flushed.
    immutable_bytes: AtomicU64,
    /// The bytes of admitted writers, of mutable memtables, and of those to be flushed. They are one number, so that no two writers get the
    /// same space. Memtables that only snapshots hold do not count: no writer could wait for them.
    taken_bytes: AtomicU64,
    /// Other memory that the cache does not have.
    other_bytes: AtomicU64,
    /// Bytes of gaps.
    gaps_bytes: AtomicU64,
    /// Bytes that scans have read ahead, or compactions.
    scans_bytes: AtomicU64,
    /// The same, as the cache was last told, and as it has given up since.
    told_scans_bytes: AtomicU64,
    given_up_bytes: AtomicU64,
    has_given_up: Condvar,
    /// The budget; half of it is for mutable memtables.
    most_bytes: u64,
    /// How much the cache can give up besides, and besides other memory.
    spare_bytes: u64,
    /// The delay that writers still owe.
    owed_ns: AtomicU64,
    step_bytes: u64,
    is_over: Mutex<bool>,
    changed: Condvar,
    /// Held by the first of the waiting writers.
    front: Mutex<()>,
    /// How many writers wait: no other is admitted before them.
    waiting: AtomicUsize,
    /// How much the first one waits for.
    wanted_bytes: AtomicU64,
    /// Counts the changes that the first one may wait for.
    changes: Mutex<u64>,
    has_changed: Condvar,
}

/// The right to add that many bytes to memtables. They count as taken until it is dropped.
pub(crate) struct Admitted<'budget> {
    budget: &'budget MemtableBudget,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.budget.free(self.bytes);
    }
}

/// Memory for a scan's reads ahead, or a compaction's: the cache lacks it while this exists.
pub(crate) struct ScanSpace {
    budget: Arc<MemtableBudget>,
    bytes: u64,
    most_bytes: u64,
}

impl ScanSpace {
    /// Nothing yet.
    pub(crate) fn new(budget: &Arc<MemtableBudget>) -> Self {
        ScanSpace { budget: Arc::clone(budget), bytes: 0, most_bytes: SCANS_STEPS * budget.step_bytes }
    }

    /// Nothing yet, for a compaction that reads records.
    pub(crate) fn of_compaction(budget: &Arc<MemtableBudget>) -> Self {
        ScanSpace { budget: Arc::clone(budget), bytes: 0, most_bytes: budget.compaction_bytes_max() }
    }

    /// Takes more, up to that many bytes in all. Returns whether it has that many.
    pub(crate) fn reaches(&mut self, bytes: u64) -> bool {
        while self.bytes < bytes {
            if !self.budget.take_for_scan(SCAN_SPACE_BYTES, self.most_bytes) {
                return false;
            }
            self.bytes += SCAN_SPACE_BYTES;
        }
        true
    }

    /// Takes as much as there is, up to that many bytes in all, and waits until the cache has given it up. Returns how many it has.
    pub(crate) fn take_up_to(&mut self, bytes: u64) -> u64 {
        self.reaches(bytes);
        self.budget.wait_for_cache();
        self.bytes
    }
}

impl ScanSpace {
    /// Gives all of it back.
    pub(crate) fn give_back(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back_of_scan(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for ScanSpace {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The prospects of a writer that is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hope {
    /// A memtable is being flushed, or will be.
    Flush,
    /// No memtable can be flushed.
    Nothing,
}

impl MemtableBudget {
    /// An empty budget of `most_bytes`, beside which the cache can give up `spare_bytes`. [`Self::wait`] returns for each multiple of
    /// `step_bytes` that is crossed.
    pub(crate) fn new(most_bytes: u64, spare_bytes: u64, step_bytes: u64) -> Self {
        MemtableBudget {
            bytes: AtomicU64::new(0),
            closed_bytes: AtomicU64::new(0),
            immutable_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            gaps_bytes: AtomicU64::new(0),
            scans_bytes: AtomicU64::new(0),
            told_scans_bytes: AtomicU64::new(0),
            given_up_bytes: AtomicU64::new(0),
            has_given_up: Condvar::new(),
            most_bytes,
            spare_bytes,
            owed_ns: AtomicU64::new(0),
            step_bytes: step_bytes.max(1),
            is_over: Mutex::new(false),
            changed: Condvar::new(),
            front: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            wanted_bytes: AtomicU64::new(0),
            changes: Mutex::new(0),
            has_changed: Condvar::new(),
        }
    }

    /// Takes bytes for good, for another use than memtables.
    pub(crate) fn add_other(&self, bytes: u64) {
        self.other_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.notify();
    }

    /// The most bytes of the gaps of all keyspaces and views.
    pub(super) fn gaps_bytes_max(&self) -> u64 {
        self.most_bytes / GAPS_SHARE
    }

    /// The bytes of these gaps.
    #[cfg(test)]
    pub(super) fn gaps_bytes(&self) -> u64 {
        self.gaps_bytes.load(Ordering::Relaxed)
    }

    /// Takes bytes for a gap, unless all gaps would take too much.
    pub(super) fn take_for_gaps(&self, bytes: u64) -> bool {
        let more = |before: u64| Some(before + bytes).filter(|bytes| *bytes <= self.gaps_bytes_max());
        let taken = self.gaps_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.inspect(|before| self.tell(*before, *before + bytes)).is_ok()
    }

    /// Gives a gap's bytes back.
    pub(super) fn give_back_of_gaps(&self, bytes: u64) {
        let before = self.gaps_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(before, before - bytes);
    }

    /// The most bytes of a compaction that reads records.
    pub(crate) fn compaction_bytes_max(&self) -> u64 {
        let spare = self.spare_bytes.saturating_sub(self.other_bytes.load(Ordering::Relaxed));
        (COMPACTION_STEPS * self.step_bytes).min(COMPACTION_BYTES_MAX).min(spare)
    }

    /// Takes bytes for a scan, unless all scans would take more than `most`.
    fn take_for_scan(&self, bytes: u64, most: u64) -> bool {
        let more = |before: u64| Some(before + bytes).filter(|bytes| *bytes <= most);
        let taken = self.scans_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.inspect(|before| self.tell(*before, *before + bytes)).is_ok()
    }

    /// Gives a scan's bytes back.
    fn give_back_of_scan(&self, bytes: u64) {
        let before = self.scans_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // The cache may grow by these before anybody takes them again.
        self.given_up_bytes.fetch_min(before - bytes, Ordering::Relaxed);
        self.tell(before, before - bytes);
    }

    /// Adds bytes of a mutable memtable.
    pub(super) fn add(&self, bytes: u64) {
        self.taken_bytes.fetch_add(bytes, Ordering::SeqCst);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tell(before, before + bytes);
    }

    /// Removes bytes of a mutable memtable.
    pub(super) fn remove(&self, bytes: u64) {
        self.remove_read(bytes);
        self.free(bytes);
    }

    fn remove_read(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(before, before - bytes);
    }

    /// Counts a memtable as immutable.
    pub(super) fn make_immutable(&self, bytes: u64) {
        self.closed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.immutable_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an immutable memtable as flushed: only snapshots may hold it.
    pub(super) fn flushed(&self, bytes: u64) {
        self.immutable_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.free(bytes);
    }

    /// Removes a flushed memtable.
    pub(super) fn remove_flushed(&self, bytes: u64) {
        self.remove_read(bytes);
        self.closed_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Removes an immutable memtable that was not flushed.
    pub(super) fn remove_immutable(&self, bytes: u64) {
        self.flushed(bytes);
        self.remove_flushed(bytes);
    }

    fn written_to(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).saturating_sub(self.closed_bytes.load(Ordering::Relaxed))
    }

    /// Whether mutable memtables should be flushed: they have their half of the budget, or memory that a waiting writer needs.
    pub(crate) fn is_crowded(&self) -> bool {
        let written_to = self.written_to();
        let wanted = self.wanted_bytes.load(Ordering::Relaxed);
        let is_in_the_way = || {
            let immutable = self.immutable_bytes.load(Ordering::Relaxed);
            let stays = self.taken_bytes.load(Ordering::Relaxed).saturating_sub(immutable);
            written_to > 0 && stays.saturating_add(wanted) > self.most_bytes
        };
        written_to >= self.most_bytes / 2 || (wanted > 0 && is_in_the_way())
    }

    /// Whether there is space for that many more bytes.
    pub(crate) fn has_space(&self, bytes: u64) -> bool {
        self.taken_bytes.load(Ordering::SeqCst) + bytes <= self.most_bytes
    }

    /// Admits a writer that adds bytes, if there is space.
    pub(crate) fn try_admit(&self, bytes: u64) -> Option<Admitted<'_>> {
        let with_these = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= self.most_bytes);
        let taken = self.taken_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with_these);
        taken.is_ok().then(|| Admitted { budget: self, bytes })
    }

    /// Admits a writer, whether there is space or not.
    pub(crate) fn admit_anyway(&self, bytes: u64) -> Admitted<'_> {
        self.taken_bytes.fetch_add(bytes, Ordering::SeqCst);
        Admitted { budget: self, bytes }
    }

    /// Admits a writer once there is space. If there never will be, it admits the writer once no other one is admitted. The caller holds
    /// nothing that a flush needs. `press` requests flushes, and returns the prospects.
    pub(crate) fn admit(&self, bytes: u64, mut press: impl FnMut() -> Result<Hope>) -> Result<Admitted<'_>> {
        if self.waiting.load(Ordering::SeqCst) == 0
            && let Some(admitted) = self.try_admit(bytes)
        {
            return Ok(admitted);
        }
        // In this order: space that comes free after our look wakes us.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let front = self.front.lock();
        self.wanted_bytes.store(bytes, Ordering::Relaxed);
        let admitted = loop {
            let known = *self.changes.lock();
            if let Some(admitted) = self.try_admit(bytes) {
                break Ok(admitted);
            }
            match press() {
                Ok(Hope::Flush) => {}
                // Others are admitted, and will add to memtables, or give up.
                Ok(Hope::Nothing) if self.has_admitted() => {}
                Ok(Hope::Nothing) => break Ok(self.admit_anyway(bytes)),
                Err(error) => break Err(error),
            }
            let mut changes = self.changes.lock();
            while *changes == known {
                self.has_changed.wait(&mut changes);
            }
        };
        self.wanted_bytes.store(0, Ordering::Relaxed);
        drop(front);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        admitted
    }

    /// Whether a writer is admitted that has not added all yet.
    fn has_admitted(&self) -> bool {
        let memtables = self.written_to() + self.immutable_bytes.load(Ordering::Relaxed);
        self.taken_bytes.load(Ordering::SeqCst) > memtables
    }

    fn free(&self, bytes: u64) {
        self.taken_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the first waiting writer, since something has changed.
    pub(super) fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            *self.changes.lock() += 1;
            self.has_changed.notify_all();
        }
    }

    /// How long a writer of some records has to sleep, so that flushes keep up. Below seven eighths of the budget it does not sleep. From
    /// there on the delay grows by the square of the excess.
    pub(crate) fn delay(&self, records: usize) -> Option<Duration> {
        let free_of_delay = self.most_bytes / 8 * 7;
        let beyond = self.taken_bytes.load(Ordering::Relaxed).checked_sub(free_of_delay)?;
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
        // A thread between its look and its wait holds it.
        drop(self.is_over.lock());
        self.changed.notify_all();
    }

    /// Waits until the taken bytes are no longer `known`, and returns them in steps, rounded up. `None` once [`Self::end`] was called.
    pub(crate) fn wait(&self, known: Option<u64>) -> Option<u64> {
        let mut is_over = self.is_over.lock();
        loop {
            // The caller has done what it was told.
            self.given_up_bytes.store(self.told_scans_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            self.has_given_up.notify_all();
            let memtables = (self.bytes.load(Ordering::Relaxed) / self.step_bytes + 1) * self.step_bytes;
            // No step while there are none.
            let gaps = self.gaps_bytes.load(Ordering::Relaxed).next_multiple_of(self.step_bytes);
            let scans = self.scans_bytes.load(Ordering::Relaxed).next_multiple_of(self.step_bytes);
            let bytes = memtables + gaps + scans + self.other_bytes.load(Ordering::Relaxed);
            if *is_over {
                return None;
            }
            self.told_scans_bytes.store(scans, Ordering::Relaxed);
            if Some(bytes) != known {
                return Some(bytes);
            }
            self.given_up_bytes.store(scans, Ordering::Relaxed);
            self.has_given_up.notify_all();
            self.changed.wait(&mut is_over);
        }
    }

    /// Waits until the cache has given up what scans and compactions have taken, or for a second.
    fn wait_for_cache(&self) {
        let until = Instant::now() + GIVE_UP_WAIT;
        // Less than a step tells nobody.
        self.notify();
        let mut is_over = self.is_over.lock();
        let taken = self.scans_bytes.load(Ordering::Relaxed);
        while !*is_over && self.given_up_bytes.load(Ordering::Relaxed) < taken {
            if self.has_given_up.wait_until(&mut is_over, until).timed_out() {
                return;
            }
        }
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
        self.has_given_up.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_at_steps_only() {
        let budget = MemtableBudget::new(1000, 0, 100);
        assert_eq!(budget.wait(None), Some(100));
        budget.add(250);
        assert_eq!(budget.wait(Some(100)), Some(300));
        budget.remove(40);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| budget.wait(Some(300)));
            budget.remove(20);
            assert_eq!(waits.join().expect("no panic"), Some(200));
        });
        budget.add_other(50);
        assert_eq!(budget.wait(Some(200)), Some(250));
        budget.end();
        assert_eq!(budget.wait(None), None);
    }

    #[test]
    fn scans_share_a_sixteenth_which_the_cache_loses() {
        let budget = Arc::new(MemtableBudget::new(1 << 20, 0, 128 << 10));
        assert_eq!(budget.wait(None), Some(128 << 10));
        let [mut first, mut second] = [ScanSpace::new(&budget), ScanSpace::new(&budget)];
        assert!(first.reaches(300 << 10) && first.reaches(200 << 10));
        assert_eq!(budget.wait(None), Some((128 + 384) << 10));
        assert!(second.reaches(192 << 10) && !second.reaches(193 << 10));
        assert_eq!(budget.wait(None), Some((128 + 512) << 10));
        drop(first);
        assert!(second.reaches(512 << 10) && !second.reaches(513 << 10));
        drop(second);
        assert_eq!(budget.wait(None), Some(128 << 10));
        assert!(budget.try_admit(1 << 20).is_some(), "writers wait for no scan");
    }

    #[test]
    fn writers_are_slowed_gradually() {
        let slept = |bytes: u64| {
            let budget = MemtableBudget::new(1000, 0, 100);
            budget.add(bytes);
            (0..1000).filter_map(|_| budget.delay(1)).sum::<Duration>()
        };
        assert_eq!(slept(875), Duration::ZERO);
        let delays: Vec<Duration> = [900, 925, 950, 975, 1000].into_iter().map(slept).collect();
        assert!(delays.is_sorted() && delays[0] > Duration::ZERO, "{delays:?}");
        assert_eq!(delays[4], 1000 * DELAY_MAX);
        assert_eq!(slept(5000), delays[4], "no more than that");
        let budget = MemtableBudget::new(1000, 0, 100);
        budget.add(1000);
        assert_eq!(budget.delay(1_000_000), Some(SLEEP_MAX), "a batch does not sleep for all its records");
    }

    #[test]
    fn memtables_that_are_being_flushed_do_not_count_as_mutable() {
        let budget = MemtableBudget::new(1000, 0, 100);
        budget.add(500);
        assert!(budget.is_crowded());
        budget.make_immutable(300);
        assert!(!budget.is_crowded());
        budget.add(400);
        assert!(budget.is_crowded() && budget.delay(1000).is_some());
        budget.flushed(300);
        assert!(budget.delay(1000).is_none(), "a snapshot holds it");
        budget.remove_flushed(300);
        assert_eq!(budget.written_to(), 600);
        budget.make_immutable(600);
        budget.remove_immutable(600);
        assert_eq!((budget.written_to(), budget.taken_bytes.into_inner()), (0, 0));
    }

    #[test]
    fn writers_without_space_wait_and_have_memtables_flushed() {
        let budget = MemtableBudget::new(1000, 0, 100);
        let first = budget.try_admit(600).expect("there is space");
        budget.add(550);
        drop(first);
        assert!(budget.try_admit(500).is_none() && budget.is_crowded());
        let mut pressed = 0;
        let admitted = budget.admit(500, || {
            pressed += 1;
            assert!(budget.is_crowded());
            budget.make_immutable(550);
            budget.flushed(550);
            Ok(Hope::Flush)
        });
        assert_eq!(admitted.expect("it was flushed").bytes, 500);
        assert_eq!((pressed, budget.taken_bytes.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn writers_that_never_fit_are_admitted_alone() {
        let budget = MemtableBudget::new(1000, 0, 100);
        let other = budget.try_admit(100).expect("there is space");
        let mut other = Some(other);
        let admitted = budget.admit(5000, || {
            // The first look finds another writer.
            other.take();
            Ok(Hope::Nothing)
        });
        assert_eq!(admitted.expect("nothing is there").bytes, 5000);
        assert!(other.is_none());
        let budget = MemtableBudget::new(1000, 0, 100);
        budget.add(990);
        let full = || {
            Err(crate::error::Error::Full { volume: String::new(), wanted: 1, place: crate::error::FullPlace::Volume })
        };
        assert!(budget.admit(20, full).is_err(), "where nothing can be flushed");
        assert!(budget.try_admit(10).is_some(), "a writer that has given up blocks no other");
    }

    #[test]
    fn no_two_writers_are_admitted_to_the_same_space() {
        let budget = MemtableBudget::new(1000, 0, 100);
        let most = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let admitted = budget.admit(300, || Ok(Hope::Flush)).expect("others end");
                        most.fetch_max(budget.taken_bytes.load(Ordering::SeqCst), Ordering::Relaxed);
                        budget.add(200);
                        most.fetch_max(budget.bytes.load(Ordering::SeqCst), Ordering::Relaxed);
                        drop(admitted);
                        budget.remove(200);
                    }
                });
            }
        });
        // Bytes count twice while they are being added.
        assert!(most.into_inner() <= 1600, "three are admitted at a time");
        assert_eq!(budget.taken_bytes.into_inner(), 0);
    }
}
