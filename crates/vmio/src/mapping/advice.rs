//! What the program knows about its accesses, and tells.

use std::io;
use std::ops::Range;

use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::write_batch::{Select, WriteBatch};
use crate::engine::HideableFrames;
use crate::error::{Error, Result};
use crate::mapped_file::{Advice, MappedFile, touched_pages, whole_pages};
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;
use crate::page::reuse::Reuse;
use crate::page::visit::Visit;
use crate::page::word::{Snapshot, State};
use crate::page::{SPAN_PAGES, span_of};
use crate::sys::pagemap::StoredPages;
use crate::sys::signal::SignalsBlocked;
use crate::sys::unmap::UnmapList;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// The most rounds. A page that is left then is being stored to or read all the time, is frozen by a commit, or cannot be unmapped.
const EVICT_ROUNDS_MAX: u32 = 8;

impl Mapping {
    /// Tells the cache how a range will be used.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        self.check_range(&range)?;
        self.file().advise(range, advice)
    }
}

impl CachedFile {
    pub(super) fn take_advice(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        let whole = whole_pages(&range, self.region().len());
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
                self.discard_pages(whole.clone(), Pinned::Stay);
                self.mark_fresh(whole.clone());
                self.region().give_tables_back(whole);
            }
            Advice::Invalidate => {
                self.check_droppable("Advice::Invalidate")?;
                let _signals = SignalsBlocked::new();
                // Before, so that who comes meanwhile reads; and after, for those who had begun to fill a fresh page.
                self.forget_fresh(whole.clone());
                self.discard_pages(whole.clone(), Pinned::Stay);
                self.forget_fresh(whole.clone());
                self.region().give_tables_back(whole);
            }
        }
        Ok(())
    }

    fn check_droppable(&self, what: &'static str) -> Result<()> {
        let why = "it drops what a commit may be about to copy: store zeros, or use Advice::Fresh";
        if self.journaled().is_some() { Err(Error::Atomic { what, why }) } else { Ok(()) }
    }

    fn is_all(&self, range: &Range<u64>) -> bool {
        range.start == 0 && range.end == self.region().len()
    }

    fn touched_spans(range: &Range<u64>) -> Range<u64> {
        let pages = touched_pages(range);
        pages.start / SPAN_PAGES as u64..pages.end.div_ceil(SPAN_PAGES as u64)
    }

    fn set_window(&self, range: &Range<u64>, pages: u16) {
        let region = self.region();
        let all = self.is_all(range);
        if all {
            region.set_window(pages);
        }
        for span in Self::touched_spans(range).map(|number| region.span(number)) {
            // A span of a huge mapping that nothing is known of follows the mapping, and costs no memory.
            if !all || span.window().is_some() {
                span.set_window(pages);
            }
        }
    }

    fn set_reuse(&self, range: &Range<u64>, reuse: Reuse) {
        let region = self.region();
        let all = self.is_all(range);
        if all {
            region.set_reuse(reuse);
        }
        for span in Self::touched_spans(range).map(|number| region.span(number)) {
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
            region.set_priority(priority);
        }
        for number in Self::touched_spans(range) {
            let span = region.span(number);
            if !all || span.has_priority() || span.is_touched() {
                region.set_span_priority(number, priority);
            }
        }
    }

    /// Reads as far as that takes nothing away from others.
    fn read_what_fits(&self, pages: Range<u64>) -> Result<()> {
        let region = self.region();
        let shared = &region.shared;
        let has_room = || shared.budget.free() > shared.watermarks().low && region.at_ceiling(1).is_none();
        let read = region.ensure_while(pages, has_room);
        read.map_err(|(page, failure)| failure.into_error(region, page))
    }

    /// Writes back and gives up the pages of a range that nobody holds. When it returns no older write of theirs is under way, which
    /// would land over what somebody writes past the mapping; nor does one follow, or it is an error. The caller has signals blocked.
    fn evict(&self, pages: Range<u64>) -> Result<()> {
        let region = self.region();
        let mut batch = region.shared.take_sync_batch().map_err(Error::system("allocating a merge buffer"))?;
        let failures_before = region.failures().writes;
        let mut rounds = 0;
        // What was read before the call would come into sight after it, and what others write stays in memory meanwhile.
        self.wait_for_owners(pages.clone());
        let (evicted, is_left) = loop {
            let evicted = match region.hideable() {
                Some(frames) => self.hide_and_drop(frames, &mut batch, pages.clone()),
                None => self.write_and_drop(&mut batch, pages.clone()),
            };
            rounds += 1;
            // What cannot be written stays.
            let is_left = self.wait_for_owners(pages.clone());
            if !is_left || !matches!(evicted, Ok(0)) || rounds == EVICT_ROUNDS_MAX {
                break (evicted, is_left);
            }
        };
        batch.clear();
        region.shared.return_sync_batch(batch);
        let failed = evicted.map_err(Error::system("write-protecting dirty pages"))?;
        // Or somebody else was always faster in trying to write them.
        if failed > 0 || is_left && region.failures().writes > failures_before {
            return Err(region.write_error(&pages, failed.max(1).into()));
        }
        Ok(())
    }

    /// Waits until nobody else moves or writes the pages of a range; whether any is left then that could go or be written. A page that is pinned
    /// for loads (each copy out pins for an instant) is written all the same, where its frame can be protected.
    fn wait_for_owners(&self, pages: Range<u64>) -> bool {
        let region = self.region();
        let mut is_left = false;
        for page in region.occupied(pages) {
            let word = region.word(page);
            word.wait_while(|word| word.is_busy() || word.in_flight());
            let seen = word.load();
            let may_be_written = seen.needs_write() && !seen.is_pinned_for_writing() && region.hideable().is_none();
            is_left |= seen.is_busy() || seen.in_flight() || seen.is_resident() && (seen.pins() == 0 || may_be_written);
        }
        is_left
    }

    /// How many could not be written.
    fn write_and_drop(&self, batch: &mut WriteBatch, pages: Range<u64>) -> io::Result<u32> {
        let region = self.region();
        let mut failed = 0;
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            if region.span(number).dirty() > 0 {
                let of_span = region.pages_of_span(number);
                let part = of_span.start.max(pages.start)..of_span.end.min(pages.end);
                batch.collect(region, part, Select::Available, &region.span(number).lock())?;
                failed += batch.written(&region.shared);
            }
        }
        let claim = |page| match region.word(page).begin_evict(Visit::LAST) {
            true => Claim::Taken(State::Clean),
            // Another round looks at it.
            false => Claim::Left,
        };
        self.unmap_where(pages, |_| false, claim);
        Ok(failed)
    }

    /// A page in sight may be stored to at any time: only when it is hidden is what is written all there is. How many could not be written.
    fn hide_and_drop(&self, frames: &dyn HideableFrames, batch: &mut WriteBatch, pages: Range<u64>) -> io::Result<u32> {
        let region = self.region();
        let shared = &region.shared;
        let mut stored = StoredPages::new();
        let mut list = UnmapList::with_capacity(SPAN_PAGES);
        let mut failed = 0;
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            let span = region.span(number);
            if span.resident() == 0 {
                continue;
            }
            let of_span = region.pages_of_span(number);
            let part = of_span.start.max(pages.start)..of_span.end.min(pages.end);
            let collected = {
                let held = span.lock();
                let hidden = region.hide(frames, part.clone(), Visit::LAST, &mut stored, &held);
                shared.count(cpu::current(), Counter::ShootdownsEvict, hidden.shootdowns);
                batch.collect(region, part.clone(), Select::ToEvict(Visit::LAST), &held)
            };
            failed += batch.written(shared);
            let dropped = region.drop_hidden(part, u32::MAX, Visit::LAST, &mut list);
            shared.count(cpu::current(), Counter::EvictedClean, u64::from(dropped));
            shared.release(dropped, true);
            collected?;
        }
        Ok(failed)
    }

    fn mark_fresh(&self, pages: Range<u64>) {
        let region = self.region();
        let whole_mapping = pages == (0..region.pages());
        if whole_mapping {
            region.set_all_fresh(true);
        }
        for number in pages.start / SPAN_PAGES as u64..pages.end.div_ceil(SPAN_PAGES as u64) {
            // A span of a huge mapping that nobody has touched costs no memory.
            if whole_mapping && !region.span(number).is_touched() {
                continue;
            }
            let of_span = region.pages_of_span(number);
            let part = of_span.start.max(pages.start)..of_span.end.min(pages.end);
            let all = part == of_span;
            // Nobody gives the words back meanwhile, with a mark that has just been made.
            region.add_resident(number);
            if all {
                region.span(number).set_all_fresh();
            } else {
                region.span(number).set_marks();
            }
            for page in part {
                // In a span that is fresh as a whole, a page that was never touched needs no mark of its own.
                if !(all && region.word(page).load().is_untouched()) {
                    region.word(page).mark_fresh();
                }
            }
            region.remove_resident(number, 1);
        }
    }

    /// The opposite of [`Self::mark_fresh`]; pages of the same spans may lose their marks as well, and are read.
    fn forget_fresh(&self, pages: Range<u64>) {
        let region = self.region();
        if pages == (0..region.pages()) {
            region.set_all_fresh(false);
        }
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            let span = region.span(number);
            if !(region.untouched_is_fresh(number) || span.has_marks() || span.is_touched()) {
                continue;
            }
            let of_span = region.pages_of_span(number);
            region.add_resident(number);
            span.forget_touched();
            for page in of_span.start.max(pages.start)..of_span.end.min(pages.end) {
                region.word(page).forget_fresh();
            }
            region.remove_resident(number, 1);
        }
    }

    /// Drops pages without writing them. The caller has signals blocked.
    pub(super) fn discard_pages(&self, pages: Range<u64>, pinned: Pinned) {
        let region = self.region();
        let is_waited_for = |word: Snapshot| pinned == Pinned::AreWaitedFor && word.pins() > 0;
        self.unmap_where(pages, is_waited_for, |page| {
            let word = region.word(page);
            let seen = word.load();
            if seen.is_busy() || seen.in_flight() || is_waited_for(seen) {
                Claim::Busy
            } else if word.begin_discard() {
                region.span(span_of(page)).remove_dirty(1);
                region.shared.remove_dirty(1);
                Claim::Taken(State::Dirty)
            } else if word.begin_evict(Visit::LAST) {
                Claim::Taken(State::Clean)
            } else if seen.is_settled_resident() && (pinned == Pinned::AreWaitedFor || word.load().pins() == 0) {
                Claim::Busy // It has changed under our eyes: look again.
            } else {
                Claim::Left
            }
        });
    }

    /// Unmaps the pages that `claim` takes. Waits for busy pages, and for what else is `waited_for`, but never while it holds
    /// others: whoever is busy may be waiting for these.
    fn unmap_where(&self, pages: Range<u64>, waited_for: impl Fn(Snapshot) -> bool, claim: impl Fn(u64) -> Claim) {
        let region = self.region();
        let mut victims = Vec::with_capacity(SPAN_PAGES);
        let mut list = UnmapList::with_capacity(SPAN_PAGES);
        for page in region.occupied(pages) {
            loop {
                match claim(page) {
                    Claim::Taken(before) => victims.push((page, before)),
                    Claim::Left => {}
                    Claim::Busy => {
                        self.unmap_victims(&mut victims, &mut list);
                        region.word(page).wait_while(|word| word.is_busy() || word.in_flight() || waited_for(word));
                        continue;
                    }
                }
                break;
            }
            if victims.len() == SPAN_PAGES {
                self.unmap_victims(&mut victims, &mut list);
            }
        }
        self.unmap_victims(&mut victims, &mut list);
    }

    fn unmap_victims(&self, victims: &mut Vec<(u64, State)>, list: &mut UnmapList) {
        if victims.is_empty() {
            return;
        }
        let region = self.region();
        let shared = &region.shared;
        list.clear();
        let joins = !region.frames().unmaps_scattered();
        let mut gaps = Vec::new();
        let mut next = victims[0].0;
        for (page, _) in victims.iter() {
            let gap = next..*page;
            if joins && span_of(gap.start) == span_of(gap.end) && region.claim_gap(gap.clone()) {
                gap.clone().for_each(|page| list.push_page(region.address(page)));
                gaps.push(gap);
            }
            list.push_page(region.address(*page));
            next = page + 1;
        }
        // SAFETY: the words of all victims, and of the gaps between them, say Evicting, by us.
        let shootdowns = unsafe { region.frames().unmap(list) };
        gaps.into_iter().for_each(|gap| region.release_gap(gap));
        let core = cpu::current();
        shared.count(core, Counter::ShootdownsEvict, shootdowns);
        let now = shared.eviction_time();
        let mut freed = 0;
        for (page, before) in victims.drain(..) {
            if !list.has_failed(region.address(page)) {
                region.finish_evict(page, now);
                freed += 1;
                continue;
            }
            region.word(page).fail_evict(before);
            if before == State::Dirty {
                region.dirty_spans.insert(span_of(page));
                region.count_dirty(page);
            }
        }
        shared.count(core, Counter::EvictedClean, u64::from(freed));
        shared.release(freed, true);
    }
}

/// What becomes of pinned pages where pages are dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// They stay in memory.
    Stay,
    /// They are dropped once they are not pinned any more: nobody holds them for long.
    AreWaitedFor,
}

/// What became of an attempt to take a page away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Its word says Evicting now; before, it said this.
    Taken(State),
    /// It is absent or pinned, or stays for another reason.
    Left,
    /// Somebody is at work on it.
    Busy,
}
