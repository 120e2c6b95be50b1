//! Takes advice about a program's accesses to a mapping.

use std::io;
use std::ops::Range;

use vmio_core::page::reuse::Reuse;
use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::visit::Visit;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::cache::collect::Select;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::write_batch::WriteBatch;
use crate::engine::DeactivatableFrames;
use crate::error::{Error, Result, UnsupportedBy};
use crate::mapped_file::{Advice, MappedFile, touched_pages, whole_pages};
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;
use crate::sys::pagemap::StoredPages;
use crate::sys::signal::SignalsBlocked;
use crate::sys::unmap::UnmapList;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// The limit of eviction rounds. The program stores to or reads the remaining pages all the time, a commit has frozen them, or the
/// kernel cannot unmap them.
const EVICT_ROUNDS_MAX: u32 = 8;

impl Mapping {
    /// Tells the cache about the coming use of a range.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], and those that each kind of [`Advice`] names.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// use vmio::Advice;
    ///
    /// map.advise(0..4096, Advice::Priority(0))?; // keep the first page
    /// map.advise(64 << 10..1 << 20, Advice::Random)?;
    /// map.advise(64 << 10..128 << 10, Advice::DontNeed)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        self.check_range(&range)?;
        self.file().advise(range, advice)
    }
}

impl CachedFile {
    pub(super) fn take_advice(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        let whole = whole_pages(&range, self.region().table.len());
        match advice {
            Advice::Normal => self.set_window(&range, 0),
            Advice::Random => self.set_window(&range, 1),
            Advice::Sequential { window_bytes } => {
                let pages = (window_bytes as usize).div_ceil(PAGE_BYTES);
                let pages = if pages == 0 { WINDOW_PAGES_MAX } else { pages.min(WINDOW_PAGES_MAX) };
                self.set_window(&range, pages as u16);
            }
            Advice::Priority(priority) => self.set_priority(&range, priority),
            Advice::Reuse(reuse) => self.set_reuse(&range, reuse),
            Advice::WillNeed => self.read_what_fits(whole)?,
            Advice::Cold => {
                self.region().table.occupied(whole).for_each(|page| self.region().table.word(page).drop_visits_left())
            }
            Advice::DontNeed => {
                let _signals = SignalsBlocked::new();
                let evicted = self.evict(whole.clone());
                self.region().give_tables_back(whole);
                evicted?;
            }
            Advice::Fresh => {
                self.check_writable()?;
                self.mark_fresh(whole);
            }
            Advice::Free => {
                self.check_writable()?;
                self.check_droppable("Advice::Free")?;
                let _signals = SignalsBlocked::new();
                let kept = self.discard_pages(whole.clone(), Pinned::Stay);
                self.mark_fresh(whole.clone());
                self.region().give_tables_back(whole);
                check_none_kept(kept)?;
            }
            Advice::Invalidate => {
                self.check_droppable("Advice::Invalidate")?;
                let _signals = SignalsBlocked::new();
                // Once before, so that misses during the call read; and once after, for threads that had begun to fill a fresh
                // page.
                self.forget_fresh(whole.clone());
                let kept = self.discard_pages(whole.clone(), Pinned::Stay);
                self.forget_fresh(whole.clone());
                self.region().give_tables_back(whole);
                check_none_kept(kept)?;
            }
        }
        Ok(())
    }

    fn check_droppable(&self, what: &'static str) -> Result<()> {
        let why = "it drops what a commit may be about to copy: store zeros, or use Advice::Fresh";
        if self.journaled().is_some() {
            Err(Error::Unsupported { by: UnsupportedBy::AtomicMapping, what, why })
        } else {
            Ok(())
        }
    }

    fn is_all(&self, range: &Range<u64>) -> bool {
        range.start == 0 && range.end == self.region().table.len()
    }

    fn touched_spans(range: &Range<u64>) -> Range<u64> {
        let pages = touched_pages(range);
        pages.start / SPAN_PAGES as u64..pages.end.div_ceil(SPAN_PAGES as u64)
    }

    fn set_window(&self, range: &Range<u64>, pages: u16) {
        let region = self.region();
        let all = self.is_all(range);
        if all {
            region.advised.set_window(pages);
        }
        for span in Self::touched_spans(range).map(|number| region.table.span(number)) {
            // A span without advice of its own follows the mapping, and costs no memory in a huge mapping.
            if !all || span.window().is_some() {
                span.set_window(pages);
            }
        }
    }

    fn set_reuse(&self, range: &Range<u64>, reuse: Reuse) {
        let region = self.region();
        let all = self.is_all(range);
        if all {
            region.advised.set_reuse(reuse);
        }
        for span in Self::touched_spans(range).map(|number| region.table.span(number)) {
            if !all || span.reuse().is_some() {
                span.set_reuse(reuse);
            }
        }
    }

    fn set_priority(&self, range: &Range<u64>, priority: u8) {
        let region = self.region();
        let _signals = SignalsBlocked::new();
        let all = self.is_all(range);
        if all {
            region.advised.set_priority(priority);
        }
        for number in Self::touched_spans(range) {
            let span = region.table.span(number);
            if !all || span.has_priority() || span.was_queued() {
                region.set_span_priority(number, priority);
            }
        }
    }

    /// Reads pages as long as that takes none from others.
    fn read_what_fits(&self, pages: Range<u64>) -> Result<()> {
        let region = self.region();
        let shared = &region.shared;
        let has_room =
            || shared.memory.budget.free() > shared.memory.watermarks().low && region.at_ceiling(1).is_none();
        let read = region.ensure_while(pages, has_room);
        read.map_err(|(page, failure)| failure.into_error(region, page))
    }

    /// Writes back and evicts the pages of a range that nobody holds. When it returns, no older write of them is under way or
    /// follows: that would overwrite writes that bypass the mapping. Where it cannot ensure this, it returns an error. The caller
    /// has signals blocked.
    fn evict(&self, pages: Range<u64>) -> Result<()> {
        let region = self.region();
        let mut batch =
            region.shared.write_back.take_sync_batch().map_err(Error::system("allocating a merge buffer"))?;
        let failures_before = region.dirty.failures().writes;
        let mut rounds = 0;
        // Pages with a read under way would be mapped after the call, and pages that others write stay in memory meanwhile.
        self.wait_for_owners(pages.clone());
        let (evicted, is_left) = loop {
            let evicted = match region.deactivatable() {
                Some(frames) => self.deactivate_and_drop(frames, &mut batch, pages.clone()),
                None => self.write_and_drop(&mut batch, pages.clone()),
            };
            rounds += 1;
            // Pages that cannot be written or unmapped stay.
            let is_left = self.wait_for_owners(pages.clone());
            if !is_left || !matches!(evicted, Ok(Evicted { failed: 0, kept: 0 })) || rounds == EVICT_ROUNDS_MAX {
                break (evicted, is_left);
            }
        };
        batch.clear();
        region.shared.write_back.return_sync_batch(batch);
        let Evicted { failed, kept } = evicted.map_err(Error::system("write-protecting dirty pages"))?;
        // With no failure here, another thread may always have been first to try the write.
        if failed > 0 || is_left && region.dirty.failures().writes > failures_before {
            return Err(region.write_error(&pages, failed.max(1).into()));
        }
        check_none_kept(kept)
    }

    /// Waits until nobody else moves, copies or writes the pages of a range. True if a page remains that could go or be written. A
    /// dirty page that the program has pinned for loads counts where its frame can be protected.
    fn wait_for_owners(&self, pages: Range<u64>) -> bool {
        let region = self.region();
        let mut is_left = false;
        for page in region.table.occupied(pages) {
            let word = region.table.word(page);
            let is_in_use = |seen: Snapshot| seen.is_busy() || seen.in_flight() || self.is_being_copied(page, seen);
            word.wait_while(is_in_use);
            let seen = word.load();
            let may_be_written =
                seen.needs_write() && !seen.is_pinned_for_writing() && region.deactivatable().is_none();
            is_left |= is_in_use(seen) || seen.is_resident() && (seen.pins() == 0 || may_be_written);
        }
        is_left
    }

    /// Whether copies of bytes in or out hold a page, beside the program's pins and system calls. They end in an instant.
    fn is_being_copied(&self, page: u64, seen: Snapshot) -> bool {
        seen.pins() > 0 && seen.pins() > self.opened.pinned.holding(page) + self.region().calls_holding(page)
    }

    fn write_and_drop(&self, batch: &mut WriteBatch, pages: Range<u64>) -> io::Result<Evicted> {
        let region = self.region();
        let mut failed = 0;
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            if region.table.span(number).dirty() > 0 {
                let of_span = region.table.pages_of_span(number);
                let part = of_span.start.max(pages.start)..of_span.end.min(pages.end);
                batch.collect(region, part, Select::Available, &region.table.span(number).lock())?;
                failed += batch.write_and_clear(&region.shared);
            }
        }
        let claim = |page| {
            let word = region.table.word(page);
            if word.begin_evict(Visit::LAST) {
                return Claim::Taken(State::Clean);
            }
            let seen = word.load();
            let can_go = seen.state() == State::Clean && !seen.in_flight();
            match can_go && (seen.pins() == 0 || self.is_being_copied(page, seen)) {
                true => Claim::Busy,
                // Another round looks at the page.
                false => Claim::Left,
            }
        };
        let kept = self.unmap_where(pages, |page, seen| self.is_being_copied(page, seen), claim);
        Ok(Evicted { failed, kept })
    }

    /// The program may store to an active page at any time. Only the write of an inactive page holds all stores.
    fn deactivate_and_drop(
        &self,
        frames: &dyn DeactivatableFrames,
        batch: &mut WriteBatch,
        pages: Range<u64>,
    ) -> io::Result<Evicted> {
        let region = self.region();
        let shared = &region.shared;
        let mut stored = StoredPages::new();
        let mut list = UnmapList::with_capacity(SPAN_PAGES);
        let mut failed = 0;
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            let span = region.table.span(number);
            if span.resident() == 0 {
                continue;
            }
            let of_span = region.table.pages_of_span(number);
            let part = of_span.start.max(pages.start)..of_span.end.min(pages.end);
            let collected = {
                let held = span.lock();
                let inactive = region.deactivate(frames, part.clone(), Visit::LAST, &mut stored, &held);
                shared.telemetry.count(cpu::current(), Counter::ShootdownsEvict, inactive.shootdowns);
                batch.collect(region, part.clone(), Select::ToEvict(Visit::LAST), &held)
            };
            failed += batch.write_and_clear(shared);
            let dropped = region.drop_inactive(part, u32::MAX, Visit::LAST, &mut list);
            shared.telemetry.count(cpu::current(), Counter::EvictedClean, u64::from(dropped));
            shared.release_evicted(dropped);
            collected?;
        }
        Ok(Evicted { failed, kept: 0 })
    }

    fn mark_fresh(&self, pages: Range<u64>) {
        let region = self.region();
        let whole_mapping = pages == (0..region.table.pages());
        if whole_mapping {
            region.table.set_all_fresh(true);
        }
        for number in pages.start / SPAN_PAGES as u64..pages.end.div_ceil(SPAN_PAGES as u64) {
            // An untouched span of a huge mapping costs no memory.
            if whole_mapping && !region.table.span(number).was_queued() {
                continue;
            }
            let of_span = region.table.pages_of_span(number);
            let part = of_span.start.max(pages.start)..of_span.end.min(pages.end);
            let all = part == of_span;
            // Keeps the words from being given back with a new mark.
            region.add_resident(number);
            if all {
                region.table.span(number).set_all_fresh();
            } else {
                region.table.span(number).note_fresh_marks();
            }
            for page in part {
                // In a span that is fresh as a whole, an untouched page needs no mark of its own.
                if !(all && region.table.word(page).load().is_untouched()) {
                    region.table.word(page).mark_fresh();
                }
            }
            region.remove_resident(number, 1);
        }
    }

    /// Undoes [`Self::mark_fresh`]. Other pages of the same spans may lose their marks too; misses then read them.
    fn forget_fresh(&self, pages: Range<u64>) {
        let region = self.region();
        if pages == (0..region.table.pages()) {
            region.table.set_all_fresh(false);
        }
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            let span = region.table.span(number);
            if !(region.table.untouched_is_fresh(number) || span.has_fresh_marks() || span.was_queued()) {
                continue;
            }
            let of_span = region.table.pages_of_span(number);
            region.add_resident(number);
            span.forget_which_were_touched();
            for page in of_span.start.max(pages.start)..of_span.end.min(pages.end) {
                region.table.word(page).forget_fresh();
            }
            region.remove_resident(number, 1);
        }
    }

    /// Drops pages without a write, and returns how many the kernel would not unmap; these stay as they are. The caller has signals
    /// blocked.
    pub(super) fn discard_pages(&self, pages: Range<u64>, pinned: Pinned) -> u32 {
        let region = self.region();
        let is_waited_for = |page, word: Snapshot| match pinned {
            Pinned::AreWaitedFor => word.pins() > 0,
            Pinned::Stay => self.is_being_copied(page, word),
        };
        self.unmap_where(pages, is_waited_for, |page| {
            let word = region.table.word(page);
            let seen = word.load();
            if seen.is_busy() || seen.in_flight() || is_waited_for(page, seen) {
                Claim::Busy
            } else if word.begin_discard() {
                region.table.span(span_of(page)).remove_dirty(1);
                region.shared.write_back.remove_dirty(1);
                Claim::Taken(State::Dirty)
            } else if word.begin_evict(Visit::LAST) {
                Claim::Taken(State::Clean)
            } else {
                let now = word.load();
                let is_held = now.pins() > 0 && !is_waited_for(page, now);
                match seen.is_settled_resident() && !is_held {
                    true => Claim::Busy, // The word has changed meanwhile: look again.
                    false => Claim::Left,
                }
            }
        })
    }

    /// Unmaps the pages that `claim` takes, and returns how many the kernel would not unmap. Waits for busy pages and those
    /// `waited_for`, but never while it holds other pages: the thread that makes a page busy may wait for these.
    fn unmap_where(
        &self,
        pages: Range<u64>,
        waited_for: impl Fn(u64, Snapshot) -> bool,
        claim: impl Fn(u64) -> Claim,
    ) -> u32 {
        let region = self.region();
        let mut kept = 0;
        let mut victims = Vec::with_capacity(SPAN_PAGES);
        let mut list = UnmapList::with_capacity(SPAN_PAGES);
        for page in region.table.occupied(pages) {
            loop {
                match claim(page) {
                    Claim::Taken(before) => victims.push((page, before)),
                    Claim::Left => {}
                    Claim::Busy => {
                        kept += self.unmap_victims(&mut victims, &mut list);
                        region
                            .table
                            .word(page)
                            .wait_while(|word| word.is_busy() || word.in_flight() || waited_for(page, word));
                        continue;
                    }
                }
                break;
            }
            if victims.len() == SPAN_PAGES {
                kept += self.unmap_victims(&mut victims, &mut list);
            }
        }
        kept + self.unmap_victims(&mut victims, &mut list)
    }

    /// Unmaps the victims, and returns how many of them the kernel would not unmap.
    fn unmap_victims(&self, victims: &mut Vec<(u64, State)>, list: &mut UnmapList) -> u32 {
        if victims.is_empty() {
            return 0;
        }
        let region = self.region();
        let shared = &region.shared;
        list.clear();
        let joins = !region.frames().unmaps_scattered();
        let mut gaps = Vec::new();
        let mut next = victims[0].0;
        for (page, _) in victims.iter() {
            let gap = next..*page;
            if joins && span_of(gap.start) == span_of(gap.end) && region.table.claim_gap(gap.clone()) {
                gap.clone().for_each(|page| list.push_page(region.table.address(page)));
                gaps.push(gap);
            }
            list.push_page(region.table.address(*page));
            next = page + 1;
        }
        // SAFETY: the words of all victims, and of the gaps between them, say Evicting, by us.
        let shootdowns = unsafe { region.frames().unmap(list) };
        gaps.into_iter().for_each(|gap| region.table.release_gap(gap));
        let core = cpu::current();
        shared.telemetry.count(core, Counter::ShootdownsEvict, shootdowns);
        let now = shared.eviction_time();
        let (mut freed, mut kept) = (0, 0);
        for (page, before) in victims.drain(..) {
            if !list.has_failed(region.table.address(page)) {
                region.finish_evict(page, now);
                freed += 1;
                continue;
            }
            kept += 1;
            if before != State::Dirty {
                region.table.word(page).fail_evict(before);
                continue;
            }
            // Stores to the page may not have trapped, and syncs have passed it by meanwhile: it is dirty in the present epoch.
            // With the lock held, no sync looks between the announcement and the change of the word.
            let _held = region.table.span(span_of(page)).lock();
            let epoch = region.announce_dirty(page);
            region.table.word(page).fail_deactivate(Some(epoch));
            region.count_dirty(page);
        }
        shared.telemetry.count(core, Counter::EvictedClean, u64::from(freed));
        shared.release_evicted(freed);
        kept
    }
}

fn check_none_kept(pages: u32) -> Result<()> {
    if pages == 0 { Ok(()) } else { Err(Error::system("dropping pages")(kept_by_the_kernel(pages))) }
}

/// The error for pages that the kernel keeps in memory. Before Linux 5.18 it keeps those that the program has locked (mlock).
pub(super) fn kept_by_the_kernel(pages: u32) -> io::Error {
    let why = format!("the kernel keeps {pages} page(s) in memory: unlock what mlock has locked");
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// The treatment of pinned pages when a range is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// Pages that the program has pinned stay in memory.
    Stay,
    /// The drop waits for the end of each pin: nobody holds one for long.
    AreWaitedFor,
}

/// The pages that an eviction has left.
struct Evicted {
    /// The number of pages that could not be written.
    failed: u32,
    /// The number of pages that the kernel would not unmap.
    kept: u32,
}

/// The outcome of an attempt to take a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// The page's word says Evicting now; before, it held this state.
    Taken(State),
    /// The page is absent or pinned, or stays for another reason.
    Left,
    /// Another thread works on the page.
    Busy,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use vmio_core::page::word::PinOutcome;

    use super::*;
    use crate::backing::{Access, MemoryBacking};
    use crate::cache::region::REGIONS;
    use crate::{Cache, FrameHint, MappingOptions};

    const HINTS: [FrameHint; 2] = [FrameHint::ReadMostly, FrameHint::Mixed];

    fn two_pages(hint: FrameHint) -> Mapping {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let backing = MemoryBacking::new(2 * PAGE_BYTES as u64).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new().frames(hint)).unwrap();
        map.write_at(0, &[7]).unwrap();
        map
    }

    /// Copies of bytes in and out pin their page for an instant. A copy under way would leave old bytes in memory, which later
    /// overwrite writes that bypass the mapping.
    #[test]
    fn a_page_that_is_being_copied_goes_when_the_copy_has_ended() {
        for (hint, advice) in HINTS
            .into_iter()
            .flat_map(|hint| [Advice::DontNeed, Advice::Invalidate, Advice::Free].map(|advice| (hint, advice)))
        {
            let map = two_pages(hint);
            let word = REGIONS.find(map.as_ptr() as usize).unwrap().table.word(0);
            assert_eq!(word.pin(false), PinOutcome::Pinned);
            thread::scope(|scope| {
                let advised = scope.spawn(|| map.advise(0..map.len(), advice).unwrap());
                while !word.load().is_awaited() && !advised.is_finished() {
                    thread::yield_now();
                }
                word.unpin();
            });
            assert!(!map.is_resident(0), "{hint:?}, {advice:?}");
        }
    }

    /// The program may hold its pin until the call returns.
    #[test]
    fn only_copies_are_waited_for_of_a_page_that_the_program_has_pinned() {
        for hint in HINTS {
            let map = two_pages(hint);
            let word = REGIONS.find(map.as_ptr() as usize).unwrap().table.word(0);
            assert_eq!(word.pin(false), PinOutcome::Pinned);
            thread::scope(|scope| {
                let advised = scope.spawn(|| map.advise(0..map.len(), Advice::DontNeed).unwrap());
                while !word.load().is_awaited() && !advised.is_finished() {
                    thread::yield_now();
                }
                let pin = map.pin(0..1, Access::ReadOnly).unwrap();
                word.unpin();
                advised.join().unwrap();
                assert!(map.is_resident(0), "{hint:?}");
                drop(pin);
            });
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            assert!(!map.is_resident(0), "{hint:?}");
        }
    }

    #[test]
    fn a_page_goes_that_is_read_all_the_time() {
        let map = two_pages(FrameHint::ReadMostly);
        let shared = &REGIONS.find(map.as_ptr() as usize).unwrap().shared;
        let evicted = || shared.telemetry.counters.total(Counter::EvictedClean);
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut byte = [0];
                    while !ends.load(Ordering::Relaxed) {
                        map.read_at(0, &mut byte).unwrap();
                    }
                });
            }
            for round in 1..200 {
                map.read_at(0, &mut [0]).unwrap();
                let before = evicted();
                map.advise(0..map.len(), Advice::DontNeed).unwrap();
                if evicted() == before {
                    ends.store(true, Ordering::Relaxed);
                    panic!("it stayed in round {round}");
                }
            }
            ends.store(true, Ordering::Relaxed);
        });
    }
}
