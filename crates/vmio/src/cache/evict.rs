//! Eviction: takes spans from the policy, writes their dirty pages back, and unmaps a batch with one shootdown.

use std::sync::PoisonError;

use vmio_core::page::new_pages::NewPages;
use vmio_core::page::snapshot::State;
use vmio_core::page::span::SpanGuard;
use vmio_core::page::unit::Unit;
use vmio_core::page::visit::{FifoQueue, Visit};
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::cache::collect::Select;
use crate::cache::empty_spans::Held;
use crate::cache::evictor::{Evictor, SPANS_MAX};
use crate::cache::huge_frame::{HugeFrame, is_full};
use crate::cache::pass::{Goal, PASS_PAGES, Pass};
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::cache::shared::eviction::Gate;
use crate::cache::tenant::Tenant;
use crate::cache::victim_source::Source;
use crate::policy::SpanRef;
use crate::sys::{cpu, probes};
use crate::telemetry::counters::Counter;

/// The most spans that a pass skips because nothing in them is new.
const SKIPPED_MAX: usize = 4 * SPANS_MAX;
/// An ordinary pass does not write a span with fewer dirty pages than this, unless the cache has too many: protecting a span
/// costs one shootdown, however many pages become clean, so dirty pages gather.
const WORTH_PROTECTING: u32 = 16;
/// A visit that protects its span counts as this many: each page that stays may trap at its next store, and the next visit
/// protects it again. docs/design/policies.md has what 1 to 16 cost.
const DIRTY_WEIGHT: u8 = 16;

impl Evictor {
    /// Visits spans in the policy's order until `wanted` pages are found, and gives these back. Async-signal-safe.
    pub(crate) fn pass(&mut self, shared: &Shared, wanted: usize, goal: Goal) -> Pass {
        // While the gate is held, no region with queued spans goes away.
        let gate = shared.eviction.gate.read().unwrap_or_else(PoisonError::into_inner);
        let pass = self.pass_of_all(shared, &gate, wanted, goal, &mut None);
        probes::evict(pass.freed, pass.written, pass.failed);
        pass
    }

    /// Like [`Self::pass`], for the spans of one mapping, whatever its floor: the mapping evicts for itself.
    pub(crate) fn pass_of(&mut self, shared: &Shared, tenant: &Tenant, wanted: usize, goal: Goal) -> Pass {
        let _gate = shared.eviction.gate.read().unwrap_or_else(PoisonError::into_inner);
        let source = Source::tenant(shared, tenant, wanted);
        let pass = self.pass_from(shared, &source, wanted, goal, &mut None);
        probes::evict(pass.freed, pass.written, pass.failed);
        pass
    }

    /// Evicts until a span gives up its huge page to the frame, with its share of the budget. The pages of that span do not
    /// count as given back. Takes from the mapping `of` alone, or from any. The caller holds the eviction gate.
    pub(crate) fn recycle(&mut self, shared: &Shared, gate: &Gate<'_>, of: Option<&Tenant>, frame: &mut HugeFrame) {
        let mut frame = Some(frame);
        let pass = match of {
            Some(tenant) => {
                let source = Source::tenant(shared, tenant, usize::MAX);
                self.pass_from(shared, &source, SPAN_PAGES, Goal::EVICT, &mut frame)
            }
            None => self.pass_of_all(shared, gate, SPAN_PAGES, Goal::EVICT, &mut frame),
        };
        probes::evict(pass.freed, pass.written, pass.failed);
    }

    /// A pass over the spans of one order.
    pub(super) fn pass_from(
        &mut self,
        shared: &Shared,
        source: &Source<'_>,
        wanted: usize,
        goal: Goal,
        frame: &mut Option<&mut HugeFrame>,
    ) -> Pass {
        debug_assert!(self.is_empty(), "a pass ends with nothing in hand");
        let core = cpu::current();
        let mut pass = Pass::default();
        let wanted = wanted.min(PASS_PAGES).min(source.allowed);
        self.gather(shared, source, wanted, goal, frame, &mut pass);
        pass.spans = (self.held.len() + self.empty.len()) as u32;
        // Clean pages first: a thread may be waiting for them, and writing takes longer.
        let clean = self.unmap_victims(shared, core, &mut pass);
        shared.telemetry.count(core, Counter::EvictedClean, u64::from(clean));
        pass.freed += clean;
        if !self.batch.pages().is_empty() {
            self.write(shared, &mut pass);
            for written in self.batch.pages() {
                let region = written.region();
                if goal == Goal::Clean || region.deactivatable().is_some() || self.is_enough(source, &pass) {
                    continue;
                }
                // In a larger unit the visit has asked the clean pages whether they have visits left; the written page is
                // asked as well.
                let alone = region.table.unit == Unit::Kib4 || goal.is_hard();
                if region.table.word(written.page).begin_evict(if alone { Visit::LAST } else { Visit::ORDINARY }) {
                    self.victims.push((SpanRef::new(region.table.span(span_of(written.page))), written.page));
                }
            }
            self.batch.clear();
            let dirty = self.unmap_victims(shared, core, &mut pass);
            shared.telemetry.count(core, Counter::EvictedDirty, u64::from(dirty));
            pass.freed += dirty;
        }
        let left = if is_full(frame) { 0 } else { (wanted as u32).saturating_sub(pass.freed) };
        pass.freed += self.drop_inactive(shared, source, core, left, goal, pass.written_inactive);
        self.put_spans_back(source);
        pass.freed += self.empty.give_back(shared);
        debug_assert!(self.is_empty(), "a span or a page is left that nobody evicts any more");
        pass
    }

    /// Whether the pages that are gone or about to go are as many as may go.
    fn is_enough(&self, source: &Source<'_>, pass: &Pass) -> bool {
        pass.freed as usize + self.victims.len() >= source.allowed
    }

    /// Finds victims. In spans whose frames can be deactivated, these are pages in the inactive queue, which this function
    /// keeps filled from the policy's order. In other spans, they are the first pages in the policy's order.
    fn gather(
        &mut self,
        shared: &Shared,
        source: &Source<'_>,
        wanted: usize,
        goal: Goal,
        frame: &mut Option<&mut HugeFrame>,
        pass: &mut Pass,
    ) {
        let (core, order) = (cpu::current(), source.order);
        let mut waiting = 0;
        let mut in_order = true;
        let mut visit = goal.visit(source.queue);
        let mut priority = None;
        let (mut first_skipped, mut skipped) = (None, 0);
        while !is_full(frame)
            && pass.freed as usize + self.victims.len() + self.batch.pages().len().max(waiting) < wanted
            && self.batch.room() > 0
            && (self.held.len() + self.empty.len()).max(self.dropping.len()) < SPANS_MAX
        {
            let enough = order.inactive_spans.pages() > source.inactive_pages_max;
            if goal != Goal::Clean
                && (enough || !in_order)
                && let Some(span) = order.inactive_spans.pop()
            {
                waiting += self.prepare_drop(span);
                continue;
            }
            if !in_order {
                break;
            }
            match order.policy.next(core) {
                Some(span)
                    if wanted.saturating_sub(pass.freed as usize + self.victims.len()) >= SPAN_PAGES
                        && frame.is_some()
                        && span.get().is_whole_huge_page() =>
                {
                    self.take_huge_page(shared, core, span, frame)
                }
                // Higher priorities give up both of their queues before lower ones give up any.
                Some(span)
                    if visit.queue.is_some()
                        && *priority.get_or_insert(span.get().priority()) > span.get().priority() =>
                {
                    visit.queue = None;
                    order.policy.put_back(span);
                    self.put_spans_back(source);
                }
                Some(span)
                    if visit.queue == Some(FifoQueue::Small)
                        && !span.get().has_new_pages()
                        && span.get().resident() > 0 =>
                {
                    in_order = first_skipped != Some(span) && skipped < SKIPPED_MAX;
                    first_skipped.get_or_insert(span);
                    skipped += 1;
                    order.policy.put_back(span);
                }
                Some(span) => self.visit(shared, source, span, (goal, visit), pass),
                None => in_order = false,
            }
        }
    }

    /// Takes the pages that a selected span has to give.
    fn visit(
        &mut self,
        shared: &Shared,
        source: &Source<'_>,
        span: SpanRef,
        (goal, visit): (Goal, Visit),
        pass: &mut Pass,
    ) {
        let core = cpu::current();
        if span.get().resident() == 0 {
            return self.empty.push(span, Held::ByUs);
        }
        // The mark stays if the visit does not ask new pages, or if another thread syncs or pins the span right now.
        let asks_new = source.queue.is_some() && goal != Goal::Clean && visit.queue != Some(FifoQueue::Main);
        let locked = span.get().try_lock();
        let takes_new = asks_new && locked.is_some();
        let had_new = if takes_new { span.get().take_new_pages() } else { NewPages::NONE };
        self.held.push((span, had_new));
        let Some(locked) = locked else { return };
        // SAFETY: the span comes from the queue and the eviction gate is held.
        let (region, number) = unsafe { Region::of_span(span) };
        let pages = region.table.pages_of_span(number);
        if goal != Goal::Clean
            && let Some(frames) = region.deactivatable()
        {
            // All pages together share a shootdown. They can survive while they wait in the inactive queue.
            let visit = if source.order.policy.deactivates_by_page() { visit } else { Visit::LAST };
            let inactive = region.deactivate(frames, pages, visit, &mut self.stored, &locked);
            shared.telemetry.count(core, Counter::ShootdownsEvict, inactive.shootdowns);
            if inactive.pages > 0 {
                source.order.inactive_spans.push(span);
            }
            return;
        }
        if goal != Goal::Clean && !shared.paging.frames.unmaps_scattered() {
            return self.evict_whole(shared, source, core, span, locked, pass);
        }
        let dirty = span.get().dirty();
        let worth_writing = goal != Goal::EVICT || dirty >= WORTH_PROTECTING || shared.has_too_many_dirty();
        // Protecting a span costs a shootdown, however few pages go: pages of both queues share it, and survive fewer visits.
        let visit = if dirty > 0 && worth_writing {
            Visit { queue: None, weight: visit.weight.max(DIRTY_WEIGHT) }
        } else {
            visit
        };
        if goal != Goal::Clean {
            let mut leaves_new = NewPages::NONE;
            let asked = if visit.queue == Some(FifoQueue::Small) { had_new } else { NewPages::ALL };
            let most = (PASS_PAGES + SPAN_PAGES).min(source.allowed.saturating_sub(pass.freed as usize));
            let order = source.victim_order(pages.clone(), asked);
            let is_alone = region.table.unit == Unit::Kib4;
            for (page, word) in order.flat_map(|run| run.clone().zip(region.table.words(run))) {
                // Most pages of a large file are absent.
                if is_alone && word.load().state() == State::Absent {
                    continue;
                }
                let unit = region.table.unit.around(page);
                if unit.start != page {
                    continue;
                }
                if self.victims.len() + region.table.unit.pages() as usize > most {
                    leaves_new = had_new;
                    break;
                }
                let unit = page..unit.end.min(pages.end);
                if goal.is_hard() || region.table.can_go_together(unit.clone(), worth_writing) {
                    let goes = |page: &u64| {
                        let word = region.table.word(*page);
                        let goes = word.begin_evict(visit);
                        if !goes && word.load().is_new() {
                            leaves_new = leaves_new.union(NewPages::of(*page));
                        }
                        goes
                    };
                    self.victims.extend(unit.filter(goes).map(|page| (span, page)));
                } else {
                    leaves_new = leaves_new.union(NewPages::of(page));
                }
            }
            if let Some((_, may_leave_new)) = self.held.last_mut() {
                *may_leave_new = leaves_new.intersection(had_new);
            }
        }
        let select = if goal == Goal::Clean { Select::Available } else { Select::ToEvict(visit) };
        if dirty > 0 && worth_writing && !self.is_enough(source, pass) {
            // A failure to protect leaves the pages dirty; the pass goes on with what it has.
            let _ = self.batch.collect(region, pages, select, &locked);
        }
    }

    /// Like [`Self::visit`], for a span that came in as a huge page. It goes as one if all of its pages may go.
    fn take_huge_page(&mut self, shared: &Shared, core: usize, span: SpanRef, frame: &mut Option<&mut HugeFrame>) {
        let Some(frame) = frame else { return };
        self.held.push((span, NewPages::ALL));
        // SAFETY: the span comes from the policy's queues, and the eviction gate is held: its region stays until that is
        // released.
        let (region, number) = unsafe { Region::of_span(span) };
        let taken = region.take_huge_page(number, frame);
        if !frame.is_full() {
            return self.victims.extend(taken.map(|page| (span, page)));
        }
        shared.telemetry.count(core, Counter::RecycledSpans, 1);
        shared.telemetry.count(core, Counter::ShootdownsEvict, 1);
        shared.telemetry.count(core, Counter::EvictedClean, SPAN_PAGES as u64);
        shared.eviction.note_evicted(SPAN_PAGES as u32);
        let now = shared.eviction_time();
        taken.for_each(|page| region.finish_evict(page, now));
    }

    /// Like [`Self::visit`], where the kernel cannot unmap scattered pages. All pages that can go leave together, the dirty
    /// ones once they are written. The evictor works span by span, so that the program stores to few pages meanwhile: such a
    /// page stays, and splits the run.
    fn evict_whole(
        &mut self,
        shared: &Shared,
        source: &Source<'_>,
        core: usize,
        span: SpanRef,
        locked: SpanGuard<'_>,
        pass: &mut Pass,
    ) {
        // SAFETY: the span comes from the policy's queues, and the eviction gate is held: its region stays until that is
        // released.
        let (region, number) = unsafe { Region::of_span(span) };
        let mut pages = region.table.pages_of_span(number);
        let mut written = 0;
        if span.get().dirty() > 0 {
            // A failure to protect leaves the pages dirty; the others go all the same.
            written = self.batch.collect(region, pages.clone(), Select::Available, &locked).unwrap_or(0);
        }
        drop(locked);
        if written > 0 {
            if self.batch.room() == 0 {
                // Behind the last page that fit, dirty pages may be left.
                pages.end = self.batch.pages().last().map_or(pages.end, |last| last.page + 1);
            }
            self.write(shared, pass);
            self.batch.clear();
        }
        let left = source.allowed.saturating_sub(pass.freed as usize);
        let unmapped = region.evict_together(
            span_of(pages.start),
            source.victim_order(pages, NewPages::ALL).flatten(),
            left,
            &mut self.unmap,
        );
        shared.telemetry.count(core, Counter::ShootdownsEvict, unmapped.shootdowns);
        self.count_evicted(shared, core, unmapped.pages, written as u32);
        pass.failed += unmapped.failed;
        pass.freed += unmapped.pages;
    }

    /// Writes the batch, and counts its pages in `pass`.
    fn write(&self, shared: &Shared, pass: &mut Pass) {
        self.batch.write(shared);
        pass.failed += self.batch.failed();
        pass.written += self.batch.pages().len() as u32 - self.batch.failed();
        let inactive = self.batch.pages().iter().filter(|written| written.region().deactivatable().is_some());
        pass.written_inactive += inactive.count() as u32;
    }

    /// Counts evicted pages and gives back their budget. Up to `written` of them count as dirty: a note on each page would
    /// not be worth it.
    fn count_evicted(&self, shared: &Shared, core: usize, freed: u32, written: u32) {
        let dirty = freed.min(written);
        shared.telemetry.count(core, Counter::EvictedDirty, u64::from(dirty));
        shared.telemetry.count(core, Counter::EvictedClean, u64::from(freed - dirty));
        shared.release_evicted(freed);
    }

    /// Adds the dirty pages of a span from the inactive queue to the batch. Returns how many pages of the span are inactive.
    fn prepare_drop(&mut self, span: SpanRef) -> usize {
        self.dropping.push(span);
        // SAFETY: the span comes from the inactive queue, and the eviction gate is held: its region stays until that is
        // released.
        let (region, number) = unsafe { Region::of_span(span) };
        // If another thread holds the span's lock, the clean pages will do.
        let pages = region.table.pages_of_span(number);
        if let Some(locked) = span.get().try_lock() {
            let _ = self.batch.collect(region, pages.clone(), Select::ToEvict(Visit::LAST), &locked);
        }
        pages.filter(|page| region.table.word(*page).load().is_inactive()).count()
    }

    /// Drops inactive pages that have waited long enough, now that the dirty ones are written.
    fn drop_inactive(
        &mut self,
        shared: &Shared,
        source: &Source<'_>,
        core: usize,
        wanted: u32,
        goal: Goal,
        written: u32,
    ) -> u32 {
        let mut dropped = 0;
        for span in self.dropping.drain(..) {
            // SAFETY: the span came from the inactive queue, and the eviction gate is held since: its region stays until that
            // is released.
            let (region, number) = unsafe { Region::of_span(span) };
            let pages = region.table.pages_of_span(number);
            let left = wanted.saturating_sub(dropped);
            dropped += region.drop_inactive(pages.clone(), left, goal.visit(None), &mut self.unmap);
            if pages.into_iter().any(|page| region.table.word(page).load().is_inactive()) {
                source.order.inactive_spans.push(span);
            } else if span.get().resident() == 0 && region.is_sparse() {
                self.empty.push(span, Held::ByOthers);
            }
        }
        self.count_evicted(shared, core, dropped, written);
        dropped
    }

    /// Unmaps the victims and gives their budget back.
    fn unmap_victims(&mut self, shared: &Shared, core: usize, pass: &mut Pass) -> u32 {
        if self.victims.is_empty() {
            return 0;
        }
        self.unmap.clear();
        for (span, page) in &self.victims {
            // SAFETY: the span came from a queue in this pass, and the eviction gate is held since: its region stays until that
            // is released.
            let (region, _) = unsafe { Region::of_span(*span) };
            debug_assert_eq!(region.table.word(*page).load().state(), State::Evicting);
            self.unmap.push_page(region.table.address(*page));
        }
        // SAFETY: every victim's word says Evicting, by us.
        let shootdowns = unsafe { shared.paging.frames.unmap(&mut self.unmap) };
        shared.telemetry.count(core, Counter::ShootdownsEvict, shootdowns);
        let now = shared.eviction_time();
        let mut freed = 0;
        for (span, page) in self.victims.drain(..) {
            // SAFETY: the span came from a queue in this pass, and the eviction gate is held since: its region stays until that
            // is released.
            let (region, _) = unsafe { Region::of_span(span) };
            if self.unmap.has_failed(region.table.address(page)) {
                region.table.word(page).fail_evict(State::Clean);
                // The visit counted the page as gone.
                span.get().add_new_pages(NewPages::of(page));
                pass.failed += 1;
            } else {
                region.finish_evict(page, now);
                freed += 1;
            }
        }
        shared.release_evicted(freed);
        freed
    }

    /// Puts visited spans back into the policy's order. An empty span goes back too, and leaves if it is still empty when the
    /// policy selects it next. If the tables of empty spans take too much, it leaves at once.
    fn put_spans_back(&mut self, source: &Source<'_>) {
        for (span, may_have_new) in self.held.drain(..) {
            // SAFETY: the span came from a queue in this pass, and the eviction gate is held since: its region stays until that
            // is released.
            let (region, number) = unsafe { Region::of_span(span) };
            if span.get().resident() == 0 && region.is_sparse() {
                self.empty.push(span, Held::ByUs);
                continue;
            }
            let pages = may_have_new.among(region.table.pages_of_span(number));
            let new = pages.flatten().filter(|page| region.table.word(*page).load().is_new());
            span.get().add_new_pages(new.fold(NewPages::NONE, |new, page| new.union(NewPages::of(page))));
            source.order.policy.put_back(span);
        }
    }
}
