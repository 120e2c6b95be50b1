//! Eviction: takes spans from the policy, writes their dirty pages back, and unmaps a batch with one shootdown.

use std::io;
use std::sync::PoisonError;

use crate::cache::counters::Counter;
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::cache::write_batch::{BATCH_PAGES, Select, WriteBatch};
use crate::page::word::State;
use crate::page::{SPAN_PAGES, span_of};
use crate::policy::SpanRef;
use crate::sys::cpu;
use crate::sys::unmap::UnmapList;

/// Victims that a pass aims at, FastMap's batch (§3.3).
pub(crate) const PASS_PAGES: usize = 512;
const VICTIMS_MAX: usize = PASS_PAGES + SPAN_PAGES + BATCH_PAGES;
/// Spans that a pass looks at; a sparse mapping may hold one page in each.
const SPANS_MAX: usize = 1024;
/// Fewer dirty pages than this in a span are left to gather while clean pages can be had: protecting a span costs
/// one shootdown however many pages it cleans.
const WORTH_PROTECTING: u32 = 16;

/// Everything an evictor needs, allocated beforehand.
pub(crate) struct Reclaimer {
    batch: WriteBatch,
    victims: Vec<(SpanRef, u64)>,
    unmap: UnmapList,
    held: Vec<SpanRef>,
}

/// What a pass achieved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// Pages given back.
    pub(crate) freed: u32,
    /// Dirty pages written.
    pub(crate) written: u32,
    /// Pages that could not be written, or not be unmapped.
    pub(crate) failed: u32,
    /// Spans looked at.
    pub(crate) spans: u32,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Give back clean pages; write only where it pays.
    Evict,
    /// Give back pages whatever it takes.
    EvictHard,
    /// Write the oldest dirty pages, evict nothing.
    Clean,
}

impl Reclaimer {
    /// One that writes up to so many pages at a time, [`BATCH_PAGES`] at most.
    pub(crate) fn new(batch_pages: usize) -> io::Result<Self> {
        Ok(Reclaimer {
            batch: WriteBatch::new(batch_pages.min(BATCH_PAGES))?,
            victims: Vec::with_capacity(VICTIMS_MAX),
            unmap: UnmapList::with_capacity(VICTIMS_MAX),
            held: Vec::with_capacity(SPANS_MAX),
        })
    }

    /// Looks at spans in the policy's order until `wanted` pages are found, and gives them back. Async-signal-safe.
    pub(crate) fn pass(&mut self, shared: &Shared, wanted: usize, goal: Goal) -> Pass {
        // While this is held no region that has spans in the queues goes away.
        let _gate = shared.eviction_gate.read().unwrap_or_else(PoisonError::into_inner);
        let core = cpu::current();
        let mut pass = Pass::default();
        self.gather(shared, core, wanted.min(PASS_PAGES), goal);
        pass.spans = self.held.len() as u32;
        // Clean pages first: somebody may be waiting for them, and writing takes longer.
        let clean = self.unmap_victims(shared, core, &mut pass);
        shared.count(core, Counter::EvictedClean, u64::from(clean));
        if !self.batch.pages().is_empty() {
            self.batch.write(shared);
            pass.failed += self.batch.failed();
            pass.written = self.batch.pages().len() as u32 - self.batch.failed();
            for written in self.batch.pages() {
                let word = written.region().word(written.page);
                if goal != Goal::Clean && word.begin_evict(true) {
                    let span = SpanRef::new(written.region().span(span_of(written.page)));
                    self.victims.push((span, written.page));
                }
            }
            self.batch.clear();
            let dirty = self.unmap_victims(shared, core, &mut pass);
            shared.count(core, Counter::EvictedDirty, u64::from(dirty));
            pass.freed = dirty;
        }
        pass.freed += clean;
        self.put_spans_back(shared);
        pass
    }

    fn gather(&mut self, shared: &Shared, core: usize, wanted: usize, goal: Goal) {
        let mut visited = 0;
        while self.victims.len() + self.batch.pages().len() < wanted && self.batch.room() > 0 && visited < SPANS_MAX {
            let Some(span) = shared.policy.next(core) else { break };
            self.held.push(span);
            visited += 1;
            // Somebody syncs or pins it right now: another time.
            let Some(locked) = span.get().try_lock() else { continue };
            // SAFETY: the span comes from the queue and the eviction gate is held.
            let (region, number) = unsafe { Region::of_span(span) };
            if goal != Goal::Clean {
                for page in region.pages_of_span(number) {
                    if self.victims.len() < PASS_PAGES + SPAN_PAGES && region.word(page).begin_evict(false) {
                        self.victims.push((span, page));
                    }
                }
            }
            let dirty = span.get().dirty();
            let pays =
                goal != Goal::Evict || dirty >= WORTH_PROTECTING || shared.dirty_pages() > shared.watermarks.dirty;
            let select = if goal == Goal::Clean { Select::Available } else { Select::ToEvict };
            if dirty > 0 && pays {
                // A failure to protect leaves the pages dirty; the pass goes on with what it has.
                let _ = self.batch.collect(region, region.pages_of_span(number), select, &locked);
            }
        }
    }

    /// Unmaps the victims and gives their budget back.
    fn unmap_victims(&mut self, shared: &Shared, core: usize, pass: &mut Pass) -> u32 {
        if self.victims.is_empty() {
            return 0;
        }
        self.unmap.clear();
        for (span, page) in &self.victims {
            // SAFETY: as in `gather`.
            let (region, _) = unsafe { Region::of_span(*span) };
            self.unmap.push_page(region.address(*page));
        }
        // SAFETY: every victim's word says Evicting, by us.
        let shootdowns = unsafe { shared.frames.unmap(&mut self.unmap) };
        shared.count(core, Counter::ShootdownsEvict, shootdowns);
        let now = shared.eviction_time();
        let mut freed = 0;
        for (span, page) in self.victims.drain(..) {
            // SAFETY: as in `gather`.
            let (region, _) = unsafe { Region::of_span(span) };
            if self.unmap.has_failed(region.address(page)) {
                region.word(page).fail_evict(State::Clean);
                pass.failed += 1;
            } else {
                span.get().remove_resident(1);
                region.word(page).finish_evict(now);
                freed += 1;
            }
        }
        shared.release(freed, true);
        freed
    }

    fn put_spans_back(&mut self, shared: &Shared) {
        for span in self.held.drain(..) {
            if span.get().resident() > 0 {
                shared.policy.put_back(span);
                continue;
            }
            span.get().clear_queued();
            // A page may have come in between the two lines above, and found the span still marked as queued.
            if span.get().resident() > 0 && span.get().claim_queued() {
                shared.policy.put_back(span);
            }
        }
    }
}
