//! Counting: which pages of all files are mapped, in which order they go, and where the program reads on. The unit is a
//! stretch: up to 512 neighbouring pages (see [`crate::managed`]).

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::backing::Access;
use crate::managed::ahead::Request;
use crate::managed::arrivals::Known;
use crate::managed::ledger::{Ledger, Victim};
use crate::managed::pattern::{Grown, Pattern, Plan, Surroundings};
use crate::managed::region::ManagedRegion;
use crate::sys::PAGE_BYTES;
use crate::sys::page_cache;

/// The age up to which a cheap count is good enough, unless pages have come in or there seem to be too many.
const COUNT_AGE: Duration = Duration::from_millis(5);
/// The time within which arrivals of pages are compared.
const PERIOD: Duration = Duration::from_millis(50);

/// After this many counts in a row that found no stretch with dense arrivals, the program is taken to go through no
/// file.
const STREAMS_LAST: u32 = 4;

/// The reason for a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The process may have mapped or unmapped other files.
    Doubt,
    /// Pages have come in: the program may go on beside them.
    Arrivals,
    /// The resident pages seem to exceed the budget.
    Excess,
}

/// The time and the cost of the last count.
pub(super) struct Survey {
    counted: Instant,
    took: Duration,
    /// The pages that the process had mapped when the last count ended, and those of ours that the count found.
    last: (u64, u64),
    /// Whether the count before came to the same. Pages that come and go during a count spoil it without a trace.
    is_confirmed: bool,
    period_began: Instant,
    /// Counts in a row that found no stretch with dense arrivals.
    in_vain: u32,
}

impl Survey {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Survey {
            counted: now,
            took: Duration::ZERO,
            last: (0, 0),
            is_confirmed: false,
            period_began: now,
            in_vain: STREAMS_LAST,
        }
    }
}

/// The mapped pages of one stretch, and its longest run of mapped neighbours.
struct Counted {
    stretch: u64,
    mapped: u64,
    run: u64,
}

/// The result of a count for one file.
#[derive(Default)]
struct Found {
    mapped: u64,
    cached_only: u64,
    read: u64,
    grown: Vec<Grown>,
    /// Pages that came in since the last count, and since the period began.
    new: u64,
    of_period: u64,
}

impl Ledger {
    /// Resident pages, approximately.
    pub(super) fn resident(&self) -> io::Result<u64> {
        Ok(self.totals.resident(self.mapped.read()?))
    }

    /// Whether the last count is too old, or was disturbed. Counts take at most 0.5 % of the time if only other mappings may have
    /// changed, and 10 % while there seem to be too many pages. After arrivals they take at most 5 %, which falls to
    /// 1.25 % while they find no stretch with dense arrivals.
    pub(super) fn is_count_due(&self, cause: Cause) -> io::Result<bool> {
        let (after, share) = match cause {
            Cause::Doubt => (COUNT_AGE, 200),
            Cause::Arrivals => (Duration::ZERO, 20 << (self.survey.in_vain / 64).min(2)),
            Cause::Excess => (Duration::ZERO, 10),
        };
        let is_old = self.survey.counted.elapsed() > after.max(share * self.survey.took);
        Ok(is_old && (!self.survey.is_confirmed || self.mapped.read()? != self.survey.last.0))
    }

    /// Whether the program goes through a file at present.
    pub(super) fn follows_streams(&self) -> bool {
        self.survey.in_vain < STREAMS_LAST
    }

    /// Counts the mapped pages and sorts their stretches into the order in which they go. The order is by priority,
    /// then by the time since they came in or were last unmapped, longest first. Finds out what to read ahead, within a
    /// budget of this many pages.
    pub(super) fn count(&mut self, budget: u64) -> io::Result<()> {
        let began = Instant::now();
        self.queue.clear();
        let is_new_period = self.survey.period_began.elapsed() > PERIOD;
        if is_new_period {
            self.survey.period_began = began;
        }
        let regions = self.regions.clone();
        let (mut ours, mut cached_only, mut found_any) = (0, 0, false);
        let before = self.mapped.read()?;
        let resident = self.totals.resident(before);
        for region in &regions {
            let found = self.look_at(region, is_new_period)?;
            ours += found.mapped;
            cached_only += found.cached_only;
            found_any |= !found.grown.is_empty();
            self.read_on(region, &found, budget, resident);
        }
        // Of stretches that are equal in both, the one at the lower address goes first.
        self.queue.reverse();
        self.queue.sort_by_key(|victim| (victim.priority, std::cmp::Reverse(victim.age)));
        let is_needed = resident > budget - budget / 4;
        for lost in self.ahead.settle(is_needed, |region, stretch| region.arrivals.get(stretch).mapped) {
            self.give_up_waiting(lost.region, lost.stretch);
        }
        cached_only +=
            self.ahead.iter().map(|waiting| waiting.region.arrivals.get(waiting.stretch).cached_only()).sum::<u64>();
        self.totals.cached_only.store(cached_only, Ordering::Relaxed);
        let now = (self.mapped.read()?, ours);
        self.survey.is_confirmed = std::mem::replace(&mut self.survey.last, now) == now && before == now.0;
        // Pages that the program maps during the count are not foreign. On busy cores a count may take long.
        let foreign = before.min(now.0) as i64 - ours as i64;
        self.totals.foreign.store(foreign.max(0), Ordering::Relaxed);
        self.class = self.queue.last().map(|victim| victim.priority);
        self.unmapped_since_count = 0;
        self.survey.counted = Instant::now();
        self.survey.in_vain = if found_any { 0 } else { self.survey.in_vain.saturating_add(1) };
        // A count that took much longer than the one before was interrupted.
        let took = began.elapsed();
        self.survey.took = if self.survey.took.is_zero() { took } else { took.min(2 * self.survey.took) };
        Ok(())
    }

    /// Counts the pages of one file, stretch by stretch.
    fn look_at(&mut self, region: &Arc<ManagedRegion>, is_new_period: bool) -> io::Result<Found> {
        let stretch_bytes = self.stretch_pages as usize * PAGE_BYTES;
        let base = region.map.base() as usize;
        let mut found = Found::default();
        let is_usual = region.pattern.lock().unwrap_or_else(PoisonError::into_inner).is_usual();
        let mut current: Option<Counted> = None;
        let (queue, time, stretch_pages) = (&mut self.queue, self.time, self.stretch_pages);
        let mut finish = |found: &mut Found, counted: Counted| {
            let stretch = counted.stretch;
            let age = region.ages.get(stretch as usize);
            if age.load(Ordering::Relaxed) == 0 {
                age.store(time, Ordering::Relaxed);
            }
            let priority = region.priority(stretch * stretch_pages);
            queue.push(Victim { priority, age: age.load(Ordering::Relaxed), region: Arc::clone(region), stretch });
            found.note(region, &counted, stretch_pages, (is_new_period, is_usual));
        };
        self.scan.present(region.map.addresses(&region.reach()), |run| {
            let mut at = run.start - base;
            while at < run.end - base {
                let stretch = at / stretch_bytes;
                let until = ((stretch + 1) * stretch_bytes).min(run.end - base);
                let pages = ((until - at) / PAGE_BYTES) as u64;
                match &mut current {
                    Some(counted) if counted.stretch == stretch as u64 => {
                        (counted.mapped, counted.run) = (counted.mapped + pages, counted.run.max(pages));
                    }
                    _ => {
                        let counted = Counted { stretch: stretch as u64, mapped: pages, run: pages };
                        if let Some(done) = current.replace(counted) {
                            finish(&mut found, done);
                        }
                    }
                }
                at = until;
            }
        })?;
        if let Some(done) = current {
            finish(&mut found, done);
        }
        Ok(found)
    }

    /// Requests the stretches of a file that are to be in memory before the program comes to them.
    fn read_on(&mut self, region: &Arc<ManagedRegion>, found: &Found, budget: u64, resident: u64) {
        let mut pattern = region.pattern.lock().unwrap_or_else(PoisonError::into_inner);
        let stretches = region.reach().end.div_ceil(self.stretch_pages * PAGE_BYTES as u64);
        let around = Surroundings {
            stretch_pages: self.stretch_pages,
            stretches,
            absent: (stretches * self.stretch_pages).saturating_sub(found.read) / self.stretch_pages,
            window_max: (budget / 8 / self.stretch_pages).clamp(1, 4),
            room: (budget - budget / 8).saturating_sub(resident) / self.stretch_pages,
        };
        let stretch_bytes = self.stretch_pages * PAGE_BYTES as u64;
        let is_stored = |stretch: u64| {
            region.access == Access::ReadWrite && {
                let bytes = stretch * stretch_bytes..(stretch + 1) * stretch_bytes;
                page_cache::look(region.file(), &bytes).is_none_or(|cached| cached.dirty > 0 || cached.in_write > 0)
            }
        };
        let mut plan = pattern.look(&found.grown, found.of_period, around, is_stored);
        let of_the_program: Vec<_> =
            plan.whole.iter().cloned().flatten().filter(|ahead| region.read_ahead.is_advised_against(*ahead)).collect();
        for ahead in of_the_program {
            pattern.forget_whole(&(ahead..ahead + 1));
            plan.keep_from_whole(ahead);
        }
        if region.read_ahead.is_bounded() && !region.read_ahead.has_advice() {
            plan.usual = pattern.reads_usually(around);
        }
        if pattern.warms_up(found.new, around) {
            plan.read.push(0..stretches);
            // The file fits: pages that nobody asks for displace nothing.
            if region.access == Access::ReadOnly && !region.read_ahead.has_advice() {
                pattern.read_whole(0..stretches, &mut plan);
            }
        }
        drop(pattern);
        if let Err(error) = self.tell(region, &plan) {
            tracing::debug!(%error, "the kernel reads at a miss as before");
        }
        for stretch in plan.read.into_iter().flatten() {
            let known = region.arrivals.get(stretch);
            if known.is_in_line || known.read >= self.stretch_pages || region.read_ahead.is_advised_against(stretch) {
                continue;
            }
            region.arrivals.set(stretch, Known { read: self.stretch_pages, ..known });
            if known.mapped == 0 {
                self.ahead.insert(region, stretch);
            }
            self.totals.cached_only.fetch_add(self.stretch_pages - known.mapped, Ordering::Relaxed);
            let first = stretch * self.stretch_pages * PAGE_BYTES as u64;
            let end = (first + self.stretch_pages * PAGE_BYTES as u64).min(region.reach().end);
            let bytes = first..end.max(first);
            self.requests.push(Request { region: Arc::clone(region), stretch, bytes });
        }
    }

    /// Tells the kernel how much it reads at a miss.
    fn tell(&self, region: &ManagedRegion, plan: &Plan) -> io::Result<()> {
        let stretch_bytes = self.stretch_pages * PAGE_BYTES as u64;
        let len = region.map.len() as u64;
        match plan.usual {
            Some(true) => region.map.usual_read_ahead(&(0..len))?,
            Some(false) => region.map.no_read_ahead(&(0..len))?,
            None => {}
        }
        if plan.by_page {
            region.map.read_by_pages(&(0..len))?;
        }
        for whole in &plan.whole {
            region.map.read_by_huge_pages(&(whole.start * stretch_bytes..(whole.end * stretch_bytes).min(len)))?;
        }
        Ok(())
    }
}

impl Found {
    fn note(
        &mut self,
        region: &ManagedRegion,
        counted: &Counted,
        stretch_pages: u64,
        (is_new_period, is_usual): (bool, bool),
    ) {
        let Counted { stretch, mapped, run } = *counted;
        let known = region.arrivals.get(stretch);
        self.mapped += mapped;
        let (new, of_period) = (mapped.saturating_sub(known.mapped), mapped.saturating_sub(known.before));
        self.new += new;
        self.of_period += of_period;
        let is_sequential = new > 0 && region.read_ahead.is_sequential(stretch);
        let is_dense = new > 0 && Pattern::is_dense(of_period, stretch_pages);
        let is_said_to_jump = || region.read_ahead.is_advised_against(stretch);
        if (is_sequential || is_dense && !is_said_to_jump()) && !known.is_in_line {
            self.grown.push(Grown { stretch, pages: of_period, run, is_sequential });
        }
        let before = if is_new_period || mapped < known.before { mapped } else { known.before };
        // The kernel maps half of what it reads around a miss.
        let read = if is_usual { (2 * mapped).min(stretch_pages) } else { mapped };
        let now = Known { before, mapped, read: known.read.max(read), ..known };
        region.arrivals.set(stretch, now);
        self.cached_only += now.cached_only();
        self.read += now.read;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::backing::FileBacking;
    use crate::options::MappingOptions;
    use crate::sys::mapped_pages::MappedPages;
    use crate::sys::page_scan::PageScan;

    #[test]
    fn counts_settle_on_the_truth_whatever_comes_and_goes_during_one() {
        const PAGES: u64 = 64;
        let folder = tempfile::tempdir().unwrap();
        let bytes = 0..PAGES * PAGE_BYTES as u64;
        let backing = FileBacking::create(folder.path().join("file"), bytes.end).unwrap();
        let region = Arc::new(ManagedRegion::new(Box::new(backing), &MappingOptions::new(), 16, None).unwrap());
        let looks = (Arc::new(PageScan::open().unwrap()), Arc::new(MappedPages::open().unwrap()));
        let mut ledger = Ledger::new(looks, (Arc::default(), Arc::default()), 16, 1024);
        ledger.insert(Arc::clone(&region)).unwrap();
        for round in 0..2000_u32 {
            (0..PAGES).for_each(|page| _ = region.map.first_word(page));
            let start = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    (0..round % 500).for_each(|_| std::hint::spin_loop());
                    region.map.unmap(&bytes).unwrap();
                });
                start.wait();
                ledger.count(1024).unwrap();
            });
            // What the reclaimer does while nothing happens. Other tests may map files meanwhile.
            let is_true = |ledger: &Ledger| {
                let ours = ledger.scan.count(region.map.addresses(&bytes)).unwrap();
                let foreign = ledger.totals.foreign.load(Ordering::Relaxed) as u64;
                ours + foreign == ledger.mapped.read().unwrap()
            };
            let mut looks = 0;
            while !is_true(&ledger) {
                assert!(looks < 2000, "round {round}: no count is due, and the last one was wrong");
                looks += 1;
                thread::sleep(Duration::from_millis(1));
                if ledger.is_count_due(Cause::Doubt).unwrap() {
                    ledger.count(1024).unwrap();
                }
            }
        }
    }
}
