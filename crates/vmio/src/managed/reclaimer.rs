//! The background reclaimer keeps the managed files within the budget. It looks, gives up the excess before the kernel
//! must, and sleeps no longer than the reserve of free pages will last.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmio_core::page::SPAN_PAGES;

use crate::backing::Access;
use crate::cache::resize::PATIENCE;
use crate::cache::shared::memory::share;
use crate::elastic::MemoryCgroups;
use crate::error::Error;
use crate::managed::ahead::Reader;
use crate::managed::counts::Counts;
use crate::managed::family::{Family, Member};
use crate::managed::given_back::Inbox;
use crate::managed::ledger::{Ledger, Totals};
use crate::managed::read_ahead::Advised;
use crate::managed::region::ManagedRegion;
use crate::managed::survey::Cause;
use crate::managed::throttle::Throttle;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::Generation;
use crate::sys::mapped_pages::MappedPages;
use crate::sys::page_cache;
use crate::sys::page_scan::PageScan;
use crate::telemetry::Stats;

/// The most pages that come in per second between two looks: somewhat more than a fast device delivers.
const ARRIVALS_PER_S: u64 = 250_000;
/// How long the reclaimer sleeps, at least and at most.
const SLEEP: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(10));
/// How long the reclaimer sleeps after a failure of its own.
const BACK_OFF: Duration = Duration::from_millis(250);
/// The age at which the space that the cgroups leave is read anew.
const ROOM_AGE: Duration = Duration::from_millis(250);
/// The age at which the dirty pages are counted anew.
const DIRTY_AGE: Duration = Duration::from_millis(100);
/// Threads that fault are held back once the resident pages exceed the budget by one part in this many.
const HELD_BACK_PART: u64 = 32;
/// The cgroups may leave less space than the capacity. vmio keeps one part in this many of the capacity all the same.
const BUDGET_MIN_PART: u64 = 8;

/// The limits that the reclaimer keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The process that built the cache.
    pub(crate) generation: Generation,
    /// Pages that may be resident when the cache starts.
    pub(crate) capacity_pages: u32,
    /// The share of them that may be dirty. Above it the reclaimer writes, even if it gives nothing up.
    pub(crate) dirty_ratio: f64,
    /// Whether threads that bring in pages faster than the reclaimer gives them up have to wait.
    pub(crate) holds_back: bool,
}

/// Keeps the managed files of a cache within its budget.
pub(crate) struct Reclaimer {
    limits: Limits,
    /// Pages that may be resident.
    capacity_pages: AtomicU32,
    /// Held by a thread that changes the capacity.
    resizing: Mutex<()>,
    scan: Arc<PageScan>,
    mapped: Arc<MappedPages>,
    totals: Arc<Totals>,
    pub(super) counts: Arc<Counts>,
    pub(super) pinned_pages: AtomicU64,
    /// The capacity, or the part of it that the cgroups and the other processes of the family leave.
    budget_pages: AtomicU64,
    /// The processes that keep the budget together.
    family: Arc<Family>,
    member: Mutex<Member>,
    throttle: Mutex<Throttle>,
    /// The dirty pages at the last count.
    dirty_pages: AtomicU64,
    ledger: Mutex<Ledger>,
    inbox: Inbox,
    /// The thread that reads ahead, started at the first request.
    reader: Mutex<Option<Reader>>,
    cgroups: MemoryCgroups,
    stopping: AtomicBool,
    has_files: Mutex<bool>,
    woken: Condvar,
}

/// The state of the thread between its rounds.
struct Watch {
    room_looked: Option<Instant>,
    room: u64,
    dirty_looked: Instant,
    dirty_took: Duration,
    /// Resident pages at the end of the last round.
    left: u64,
    sleep: Duration,
    has_warned: bool,
}

impl Reclaimer {
    pub(super) fn new(family: Arc<Family>, limits: Limits) -> io::Result<Self> {
        let (scan, mapped) = (Arc::new(PageScan::open()?), Arc::new(MappedPages::open()?));
        let (totals, counts) = (Arc::new(Totals::default()), Arc::new(Counts::default()));
        let looks = (Arc::clone(&scan), Arc::clone(&mapped));
        let ledger = Ledger::new(
            looks,
            (Arc::clone(&totals), Arc::clone(&counts)),
            stretch_pages(limits.capacity_pages),
            limits.capacity_pages,
        );
        Ok(Reclaimer {
            limits,
            capacity_pages: AtomicU32::new(limits.capacity_pages),
            resizing: Mutex::new(()),
            scan,
            mapped,
            totals,
            counts,
            pinned_pages: AtomicU64::new(0),
            budget_pages: AtomicU64::new(limits.capacity_pages.into()),
            family: Arc::clone(&family),
            member: Mutex::new(Member::join(family, limits.generation)),
            throttle: Mutex::default(),
            dirty_pages: AtomicU64::new(0),
            ledger: Mutex::new(ledger),
            inbox: Inbox::default(),
            reader: Mutex::new(None),
            cgroups: MemoryCgroups::of_this_process(),
            stopping: AtomicBool::new(false),
            has_files: Mutex::new(false),
            woken: Condvar::new(),
        })
    }

    pub(crate) fn generation(&self) -> Generation {
        self.limits.generation
    }

    /// The processes that keep the budget together.
    pub(super) fn family(&self) -> &Arc<Family> {
        &self.family
    }

    /// The limits at present.
    pub(super) fn limits_now(&self) -> Limits {
        Limits { capacity_pages: self.capacity_pages(), ..self.limits }
    }

    /// The descriptors through which it reads the process's memory.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.scan.descriptor(), self.mapped.descriptor()]
    }

    pub(crate) fn capacity_pages(&self) -> u32 {
        self.capacity_pages.load(Ordering::SeqCst)
    }

    /// The unit in which pages are given up; a later change of the capacity leaves it as it is.
    pub(super) fn stretch_pages(&self) -> u64 {
        stretch_pages(self.limits.capacity_pages)
    }

    pub(super) fn scan(&self) -> &PageScan {
        &self.scan
    }

    // ---- files

    /// Adds a file to those kept within the budget.
    pub(super) fn insert(&self, region: Arc<ManagedRegion>) -> io::Result<()> {
        self.ledger().insert(region)?;
        *self.has_files.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_all();
        Ok(())
    }

    /// Removes a file from them.
    pub(super) fn remove(&self, region: &Arc<ManagedRegion>) {
        let mut ledger = self.ledger();
        ledger.remove(region);
        self.inbox.forget(region);
        if ledger.regions().is_empty() {
            self.throttle().release();
        }
        if let Some(reader) = &*self.reader.lock().unwrap_or_else(PoisonError::into_inner) {
            reader.forget(region);
        }
        *self.has_files.lock().unwrap_or_else(PoisonError::into_inner) = !ledger.regions().is_empty();
    }

    /// Has the order of stretches found anew, since priorities have changed.
    pub(super) fn reorder(&self) {
        self.ledger().reorder();
    }

    /// Gives up pages that the program needs no more for now, before others. Waits for nothing.
    pub(super) fn let_go(&self, region: &Arc<ManagedRegion>, pages: &Range<u64>) -> io::Result<()> {
        self.inbox.let_go(region, pages, (&self.scan, &self.totals, self.stretch_pages()))
    }

    /// Remembers a failed write or flush.
    pub(super) fn note_failure(&self, region: &ManagedRegion, error: io::Error) -> Error {
        self.counts.write_errors.add(1);
        region.note_failure(error)
    }

    /// Notes how the program will read a range, in whole stretches; `None`: the reclaimer finds it out.
    pub(super) fn advise_reads(
        &self,
        region: &ManagedRegion,
        bytes: &Range<u64>,
        advised: Option<Advised>,
    ) -> io::Result<()> {
        if advised.is_none() && !region.read_ahead.has_advice() {
            return Ok(());
        }
        let stretch_bytes = self.stretch_pages() * PAGE_BYTES as u64;
        let stretches = bytes.start / stretch_bytes..bytes.end.div_ceil(stretch_bytes);
        let whole = stretches.start * stretch_bytes..(stretches.end * stretch_bytes).min(region.map.len() as u64);
        let _nothing_is_learnt_meanwhile = self.ledger();
        region.map.no_read_ahead(&whole)?;
        if advised == Some(Advised::Random) {
            region.map.read_by_pages(&whole)?;
            region.pattern.lock().unwrap_or_else(PoisonError::into_inner).forget_whole(&stretches);
        }
        region.read_ahead.advise(stretches, advised);
        Ok(())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- numbers

    fn resident_pages(&self) -> u64 {
        if !*self.has_files.lock().unwrap_or_else(PoisonError::into_inner) {
            return 0;
        }
        self.mapped.read().map_or(0, |mapped| self.totals.resident(mapped))
    }

    /// Pages that may be fetched without giving anything up.
    pub(super) fn room_pages(&self) -> u64 {
        let budget = self.budget_pages.load(Ordering::Relaxed);
        budget.saturating_sub(low(budget)).saturating_sub(self.resident_pages())
    }

    pub(crate) fn stats(&self) -> Stats {
        let capacity_pages = u64::from(self.capacity_pages());
        if !self.generation().is_current() {
            return Stats { capacity_pages, ..Stats::default() }; // The resident pages are the parent's.
        }
        let resident_pages = self.resident_pages();
        let counts = &*self.counts;
        let shootdowns = counts.shootdowns.get();
        Stats {
            capacity_pages,
            resident_pages,
            free_pages: capacity_pages.saturating_sub(resident_pages),
            dirty_pages: if resident_pages == 0 { 0 } else { self.dirty_pages.load(Ordering::Relaxed) },
            pinned_pages: self.pinned_pages.load(Ordering::Relaxed),
            written_bytes: counts.written_pages.get() * PAGE_BYTES as u64,
            writes: counts.writes.get(),
            evicted_clean: counts.evicted_clean.get(),
            evicted_dirty: counts.evicted_dirty.get(),
            shootdowns,
            shootdowns_evict: shootdowns,
            write_errors: counts.write_errors.get(),
            drop_failures: counts.drop_failures.get(),
            ..Stats::default()
        }
    }

    // ---- the capacity

    /// Changes the capacity and gives up the excess. The inner error says why the capacity stays as it was.
    pub(crate) fn resize(&self, pages: u32) -> Result<Result<(), &'static str>, Error> {
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.capacity_pages();
        self.set_capacity(pages);
        let met = self.meet_capacity();
        if !matches!(met, Ok(Ok(()))) {
            self.set_capacity(before);
        }
        met.map_err(Error::system("giving up pages of the cache"))
    }

    fn set_capacity(&self, pages: u32) {
        self.capacity_pages.store(pages, Ordering::SeqCst);
        self.family.set_capacity(pages);
        self.ledger().set_capacity(pages);
        self.budget_pages.store(self.room(), Ordering::Relaxed);
    }

    fn meet_capacity(&self) -> io::Result<Result<(), &'static str>> {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        loop {
            if self.pinned_pages.load(Ordering::SeqCst) > self.pinned_pages_max() {
                return Ok(Err("pins would hold more than three quarters of it: drop some"));
            }
            let resident = self.resident_pages();
            if resident <= u64::from(self.capacity_pages()) {
                return Ok(Ok(()));
            }
            if resident < least {
                (least, since) = (resident, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Ok(Err("the pages that are left are pinned, or cannot be written (sync returns the reason)"));
            }
            self.make_room()?;
            std::thread::sleep(SLEEP.0);
        }
    }

    /// Pages that pins may hold.
    pub(super) fn pinned_pages_max(&self) -> u64 {
        u64::from(self.capacity_pages() / 4 * 3)
    }

    // ---- the thread

    /// Ends the thread, and the one that reads ahead.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(self.has_files.lock());
        self.woken.notify_all();
        if let Some(mut reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            reader.stop();
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The body of the thread: runs until [`Self::stop`].
    pub(super) fn run(&self) {
        let mut watch = Watch {
            room_looked: None,
            room: 0,
            dirty_looked: Instant::now(),
            dirty_took: Duration::ZERO,
            left: 0,
            sleep: SLEEP.0,
            has_warned: false,
        };
        while self.sleep(watch.sleep) {
            if let Err(error) = self.run_round(&mut watch) {
                self.throttle().release();
                if !watch.has_warned {
                    tracing::error!(%error, "the reclaimer cannot keep the budget");
                }
                watch.has_warned = true;
                watch.sleep = BACK_OFF;
            }
        }
    }

    /// Sleeps for `time`, or while there is no file; `false` if the thread is to end.
    fn sleep(&self, time: Duration) -> bool {
        let mut has_files = self.has_files.lock().unwrap_or_else(PoisonError::into_inner);
        let end = Instant::now() + time;
        while !self.is_stopping() {
            has_files = if *has_files {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return true;
                }
                self.woken.wait_timeout(has_files, left).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.woken.wait(has_files).unwrap_or_else(PoisonError::into_inner)
            };
        }
        false
    }

    /// One round: a look, and its consequences.
    fn run_round(&self, watch: &mut Watch) -> io::Result<()> {
        let mut budget = self.budget(watch)?;
        self.ledger().take_given_back(&self.inbox);
        // One stretch at a time: other threads wait for the ledger.
        while self.ledger().write_given_back() {}
        if self.ledger().reads_ahead(budget) {
            // Pages come in faster than this thread looks. If the kernel had to reclaim, it would write all dirty
            // pages.
            budget = budget.saturating_sub(2 * low(budget));
        }
        let (low, high) = (low(budget), 2 * low(budget));
        let mut resident = {
            let mut ledger = self.ledger();
            let resident = ledger.resident()?;
            let cause = match resident > budget {
                // The program may have mapped or unmapped other files: count before giving anything up for that.
                true => Cause::Excess,
                false if resident != watch.left => Cause::Arrivals,
                false => Cause::Doubt,
            };
            if ledger.is_count_due(cause)? {
                ledger.count(budget)?;
                self.read_ahead(&mut ledger)?;
                ledger.resident()?
            } else {
                resident
            }
        };
        let arrived = resident.saturating_sub(watch.left);
        if resident + low > budget {
            let before = self.evicted();
            let given_up = self.give_up(budget.saturating_sub(high), budget, self.limits.holds_back);
            resident = self.ledger().resident()?;
            // Held threads wait while there is too much and it becomes less.
            if given_up.is_err() || !is_far_beyond(resident, budget) || self.evicted() == before {
                self.throttle().release();
            }
            given_up?;
        } else {
            self.throttle().release();
        }
        // Unmap the next stretches some time before they go. That shows which are still in use, and their writes end
        // early.
        while self.totals.in_line() < budget / 16 && resident + 2 * high > budget && !self.is_stopping() {
            if self.ledger().unmap_next(budget)?.is_none() {
                break;
            }
        }
        self.write_if_too_dirty(watch)?;
        watch.left = self.ledger().resident()?;
        // Sleep for half of the time that the reserve lasts. A small idle cache needs no more looks than a large one.
        let reserve_lasts = budget.saturating_sub(watch.left) * 1_000_000 / ARRIVALS_PER_S / 2;
        let longest = if arrived == 0 { watch.sleep * 2 } else { Duration::from_micros(reserve_lasts) };
        watch.sleep = longest.max(Duration::from_micros(reserve_lasts)).clamp(SLEEP.0, SLEEP.1);
        if self.ledger().follows_streams() {
            watch.sleep = SLEEP.0; // The read-ahead must stay ahead of the program.
        }
        Ok(())
    }

    /// Passes the ledger's requests to the thread that reads ahead.
    fn read_ahead(&self, ledger: &mut Ledger) -> io::Result<()> {
        if ledger.requests.is_empty() {
            return Ok(());
        }
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if reader.is_none() {
            *reader = Some(Reader::start()?);
        }
        if let Some(reader) = &*reader {
            reader.request(ledger.requests.drain(..));
        }
        Ok(())
    }

    /// Gives pages up if the reclaimer is behind. For a thread that is about to bring in a few pages by a call of ours.
    pub(super) fn make_room(&self) -> io::Result<()> {
        let budget = self.budget_pages.load(Ordering::Relaxed);
        if self.resident_pages() > budget {
            self.give_up(budget.saturating_sub(low(budget)), budget, false)?;
        }
        Ok(())
    }

    /// Takes the present excess over `target` pages out of memory, but at most a quarter of the budget at a time. The
    /// excess may turn out to belong to other mappings: the next look counts.
    fn give_up(&self, target: u64, budget: u64, holds_back: bool) -> io::Result<()> {
        let began = self.evicted();
        let enough = began + self.ledger().resident()?.saturating_sub(target).min(budget / 4);
        while !self.is_stopping() && self.evicted() < enough {
            // One step at a time: a thread that closes a file waits for the ledger.
            let mut ledger = self.ledger();
            let resident = ledger.resident()?;
            if resident <= target {
                break;
            }
            if holds_back {
                self.member.lock().unwrap_or_else(PoisonError::into_inner).is_at_work(resident);
            }
            // Where nothing can be given up, no thread is held for it.
            let comes_free = self.evicted() > began || self.totals.in_line() > 0;
            if holds_back && is_far_beyond(resident, budget) && comes_free {
                self.throttle().hold();
            }
            if ledger.drop_next()? {
                // That was one stretch fewer in line.
            } else if self.totals.in_line() < budget / 4 && ledger.unmap_next(budget)?.is_some() {
                // The unmapped stretch goes with the next step, or after its writes.
            } else if !ledger.drop_first()? {
                // All that is left is pinned, locked, or would be lost, since its write failed. The kernel could do no
                // better: memory.reclaim drops pages whose write has failed, and pages of others.
                break;
            }
        }
        Ok(())
    }

    /// The pages evicted so far.
    fn evicted(&self) -> u64 {
        self.counts.evicted_clean.get() + self.counts.evicted_dirty.get()
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The budget: the least of the capacity, the space that the cgroups leave, and the share that the family leaves.
    fn budget(&self, watch: &mut Watch) -> io::Result<u64> {
        if watch.room_looked.is_none_or(|looked| looked.elapsed() > ROOM_AGE) {
            watch.room_looked = Some(Instant::now());
            watch.room = self.room();
        }
        let share = self.member.lock().unwrap_or_else(PoisonError::into_inner).share(watch.left);
        if share.somebody_has_gone {
            self.ledger().take_over()?;
        }
        let budget = watch.room.min(share.pages);
        self.budget_pages.store(budget, Ordering::Relaxed);
        Ok(budget)
    }

    /// The capacity, or the space for page cache in the cgroups if that is less.
    fn room(&self) -> u64 {
        let capacity = self.family.capacity();
        let room = self.cgroups.room_pages().unwrap_or(capacity);
        room.clamp(capacity / BUDGET_MIN_PART, capacity)
    }

    /// Counts the dirty pages. If there are too many, unmaps and writes some, those that go next first. The kernel need
    /// not write-protect unmapped pages one by one; a page still in use is mapped again at its next access.
    fn write_if_too_dirty(&self, watch: &mut Watch) -> io::Result<()> {
        if watch.dirty_looked.elapsed() < DIRTY_AGE.max(100 * watch.dirty_took) {
            return Ok(());
        }
        let began = Instant::now();
        let writable = |region: &&Arc<ManagedRegion>| region.access == Access::ReadWrite && !region.has_failed();
        let dirty = {
            let ledger = self.ledger();
            let regions = ledger.regions().iter().filter(writable);
            let looks = regions.filter_map(|region| page_cache::look(region.file(), &region.reach()));
            looks.map(|cached| cached.dirty).sum::<u64>()
        };
        self.dirty_pages.store(dirty, Ordering::Relaxed);
        (watch.dirty_looked, watch.dirty_took) = (Instant::now(), began.elapsed());
        let mut excess = dirty.saturating_sub(share(self.capacity_pages(), self.limits.dirty_ratio).into());
        let mut place = if excess > 0 { self.ledger().recount(self.budget_pages.load(Ordering::Relaxed))? } else { 0 };
        // Giving up an excess over the budget comes before this.
        let is_within = || self.resident_pages() <= self.budget_pages.load(Ordering::Relaxed);
        while excess > 0 && !self.is_stopping() && is_within() {
            let Some(begun) = self.ledger().write_next(&mut place)? else { break };
            excess = excess.saturating_sub(begun);
        }
        Ok(())
    }
}

/// Whether threads that fault must be held back.
fn is_far_beyond(resident: u64, budget: u64) -> bool {
    resident > budget + budget / HELD_BACK_PART
}

/// The low watermark: with fewer free pages, the reclaimer gives pages up until twice as many are free. On busy cores
/// each of its rounds delays a thread that faults, so rounds are large and few.
fn low(budget: u64) -> u64 {
    (budget / 32).clamp(16, 16 * 1024)
}

/// A span. In a small cache fewer pages, so that giving them up leaves most of the others.
fn stretch_pages(capacity_pages: u32) -> u64 {
    let part = u64::from(capacity_pages / 16).max(16);
    (1 << part.ilog2()).min(SPAN_PAGES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_small_parts_of_spans() {
        assert_eq!(stretch_pages(256), 16);
        assert_eq!(stretch_pages(640), 32);
        assert_eq!(stretch_pages(2048), 128);
        assert_eq!(stretch_pages(8191), 256);
        assert_eq!(stretch_pages(8192), SPAN_PAGES as u64);
        assert_eq!(stretch_pages(131_072), SPAN_PAGES as u64);
    }
}
