//! Scans of read-only mappings: vmio reads whole spans aside and moves them in as huge pages, some of them ahead of the scan.

use std::ops::Range;
use std::sync::PoisonError;

use vmio_core::page::sequence::Sequence;
use vmio_core::page::snapshot::State;
use vmio_core::page::span_of;
use vmio_core::page::visit::Visit;
use vmio_core::page::word::Loaded;
use vmio_core::page::{SPAN_BYTES, SPAN_PAGES};

use crate::cache::evictor::Evictor;
use crate::cache::huge_frame::HugeFrame;
use crate::cache::huge_pages::{AHEAD_SPANS_MAX, PRESENT_PAGES_MAX};
use crate::cache::region::Region;
use crate::cache::region::read_ahead::HugePages;
use crate::cache::shared::Shared;
use crate::cache::shared::eviction::Gate;
use crate::cache::shared::streams::Request;
use crate::cache::tables::TABLE_PAGES;
use crate::sys::cpu;
use crate::sys::reservation::Reservation;
use crate::telemetry::counters::Counter;

/// A scan has one span read ahead for this many pages of the cache, or of its mapping's ceiling: a quarter of them in all.
const SPANS_AHEAD_SHARE: u64 = 4 * SPAN_PAGES as u64;

impl Shared {
    /// Reads one requested span.
    pub(crate) fn read_ahead(&self, evictor: &mut Evictor) {
        let Some(mut frame) = self.reads.streams.frames.pop() else { return };
        // While the gate is held, no region that has made a request goes away.
        let gate = self.eviction.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.read_requested(&gate, &mut frame, evictor);
        self.put_frame_back(frame);
    }

    fn read_requested(&self, gate: &Gate<'_>, frame: &mut HugeFrame, evictor: &mut Evictor) {
        let Some(request) = self.reads.streams.requests.pop() else { return };
        // SAFETY: the eviction gate is held, and a region that is closed forgets its requests under that gate first: it is
        // there.
        let region = unsafe { Region::of(request.region) };
        if !region.is_to_be_read_whole(request.span) {
            return; // The scan has got there itself.
        }
        self.recycle(gate, region, frame, evictor);
        let core = cpu::current();
        region.load_span(core, request.span, None, frame, |pages| self.memory.budget.take(core, pages).is_some());
    }

    /// Takes the huge page of the next span in the policy's order for a region, once only the reserve is free. If the region is
    /// at its ceiling, the span is one of its own.
    fn recycle(&self, gate: &Gate<'_>, region: &Region, frame: &mut HugeFrame, evictor: &mut Evictor) {
        let tenant = region.at_ceiling(SPAN_PAGES as u32 + TABLE_PAGES);
        if tenant.is_some() || self.memory.budget.free() < self.memory.watermarks().high + SPAN_PAGES as u32 {
            evictor.recycle(self, gate, tenant, frame);
        }
    }

    fn put_frame_back(&self, mut frame: HugeFrame) {
        if frame.is_full {
            // SAFETY: the memory is ours alone, and nobody reads it before something is moved there again.
            let _ = unsafe { self.paging.unmapper.zap(frame.recycled.base() as usize, SPAN_BYTES) };
            frame.is_full = false;
            self.memory.release(SPAN_PAGES as u32);
        }
        debug_assert!(!frame.is_full, "a frame in the pool is in nobody's budget");
        let pooled = self.reads.streams.frames.push(frame);
        debug_assert!(pooled.is_ok());
    }
}

impl Region {
    /// Asks for the spans after one that a scan has reached, except those that were asked for already.
    pub(super) fn request_read_ahead(&self, span: u64, mut scan: Sequence) {
        let room = match self.read_ahead.huge_pages {
            HugePages::Always => AHEAD_SPANS_MAX,
            _ => u64::from(self.shared.memory.capacity_pages()) / SPANS_AHEAD_SHARE,
        };
        let room =
            self.tenant.as_ref().map_or(room, |tenant| room.min(u64::from(tenant.pages_max()) / SPANS_AHEAD_SHARE));
        let until = (span + 1 + scan.spans_ahead().min(room)).min(self.table.spans());
        let asked = self.read_ahead.spans_until();
        let from = if (span + 1..=until).contains(&asked) { asked } else { span + 1 };
        if from >= until {
            return;
        }
        self.read_ahead.set_spans_until(until);
        for span in from..until {
            if self.is_to_be_read_whole(span) {
                // As if the scan had come through the span: it will miss at the end of the spans that are read, and not before.
                scan = scan.with_span();
                self.table.span(span).set_sequence(scan.ending_at(SPAN_PAGES as u64));
                let _ = self.shared.reads.streams.requests.push(Request { region: self.reference(), span });
            }
        }
        if self.shared.reads.streams.has_requests() {
            self.shared.workers.wake(true);
        }
    }

    /// Brings in the whole span of a missed page, which the caller has made Loading. If that is not possible, now or at all,
    /// leaves all pages as they were.
    pub(super) fn load_missed_span(&self, core: usize, page: u64) -> bool {
        let shared = &*self.shared;
        let Some(mut frame) = shared.reads.streams.frames.pop() else { return false };
        if let Some(mut evictor) = shared.eviction.spare_evictors.pop() {
            let gate = shared.eviction.gate.read().unwrap_or_else(PoisonError::into_inner);
            shared.recycle(&gate, self, &mut frame, &mut evictor);
            drop(gate);
            let _ = shared.eviction.spare_evictors.push(evictor);
        }
        let loaded =
            self.load_span(core, span_of(page), Some(page), &mut frame, |pages| shared.try_take_pages(core, pages));
        shared.put_frame_back(frame);
        loaded
    }

    /// Like [`Self::load_missed_span`], with a given frame, and perhaps without a miss. The frame is empty after a success.
    /// `take` takes a number of pages from the budget, or none. Small pages of the span that are in memory are replaced.
    fn load_span(
        &self,
        core: usize,
        number: u64,
        missed: Option<u64>,
        frame: &mut HugeFrame,
        take: impl Fn(u32) -> bool,
    ) -> bool {
        let shared = &*self.shared;
        let absent = (SPAN_PAGES as u32).saturating_sub(self.table.span(number).resident());
        if self.at_ceiling(absent + TABLE_PAGES).is_some() {
            return false;
        }
        let Some((pages, present)) = self.claim_span(number, missed) else { return false };
        let first = pages.start;
        let charge = self.charge_of(first);
        // Small pages stay until the whole span is read, and are charged twice until then.
        let due = SPAN_PAGES as u32 + charge - 1;
        let has = if frame.is_full { SPAN_PAGES as u32 } else { 0 };
        let taken = due.saturating_sub(has);
        if taken > 0 && !take(taken) {
            self.unclaim(pages, missed, false);
            return false;
        }
        let read = self.read_span(core, first, frame.memory());
        // SAFETY: all pages of the span are ours, their words say so; the range is attached, and read-only to all.
        let gone = read
            && (present == 0 || unsafe { shared.paging.unmapper.zap(self.table.address(first), SPAN_BYTES) }.is_ok());
        // SAFETY: all pages of the span are ours, their words say so, and the span holds nothing; the range is attached.
        let installed =
            gone && unsafe { self.frames().install_span(self.table.address(first), frame.memory()) }.is_ok();
        if !installed {
            if !frame.is_full {
                // SAFETY: the frame's memory is ours alone, nobody reads it before the next read fills it, and no budget counts
                // what the read has allocated.
                let _ = unsafe { shared.paging.unmapper.zap(frame.new.base() as usize, SPAN_BYTES) };
            }
            self.unclaim(pages, missed, gone);
            shared.memory.release(taken + if gone { present } else { 0 });
            return false;
        }
        frame.is_full = false;
        self.charge(first, charge);
        shared.memory.release(has.saturating_sub(due) + present);
        if present > 0 {
            shared.telemetry.count(core, Counter::ShootdownsEvict, 1);
        }
        shared.telemetry.count(
            core,
            Counter::ReadAheadPages,
            SPAN_PAGES as u64 - u64::from(present) - u64::from(missed.is_some()),
        );
        shared.telemetry.count(core, Counter::MovedSpans, 1);
        self.table.span(number).set_huge(true);
        pages.for_each(|page| match self.table.word(page).load().state() {
            // The page was in memory before, and its word keeps what it knew.
            State::Evicting => self.table.word(page).fail_evict(State::Clean),
            _ => self.finish_load(core, page, Loaded::default()),
        });
        true
    }

    /// Makes all pages of a span ours; the missed one already is. Absent pages are Loading afterwards, and pages in memory
    /// Evicting. Returns the pages, and how many of them are in memory.
    fn claim_span(&self, number: u64, missed: Option<u64>) -> Option<(Range<u64>, u32)> {
        let pages = self.table.pages_of_span(number);
        if pages.end - pages.start < SPAN_PAGES as u64 {
            return None;
        }
        let mut present = 0;
        for page in pages.clone().filter(|page| Some(*page) != missed) {
            if self.begin_load(page).is_ok() {
                continue;
            }
            // A poisoned page will hardly have become readable.
            let word = self.table.word(page);
            let is_worth_it = present < PRESENT_PAGES_MAX && !word.load().is_poisoned();
            if !(is_worth_it && word.begin_evict(Visit::LAST)) {
                self.unclaim(pages.start..page, missed, false);
                return None;
            }
            present += 1;
        }
        // The mapping may have been shortened meanwhile; the thread that shortens it looks at the words after.
        if self.table.pages_of_span(number) != pages {
            self.unclaim(pages, missed, false);
            return None;
        }
        Some((pages, present))
    }

    /// Undoes [`Self::claim_span`]: pages are as they were, but those in memory are gone if `are_gone`.
    fn unclaim(&self, pages: Range<u64>, missed: Option<u64>, are_gone: bool) {
        for page in pages.filter(|page| Some(*page) != missed) {
            match self.table.word(page).load().state() {
                State::Evicting if are_gone => self.finish_evict(page, self.shared.eviction_time()),
                State::Evicting => self.table.word(page).fail_evict(State::Clean),
                State::Loading => self.fail_load(page),
                _ => {}
            }
        }
    }

    /// Takes a span for eviction: makes its clean pages that nobody holds Evicting, and stops at the first other page. If these
    /// are all pages of the span, moves their memory into the frame, which is full then. Returns the pages; if the frame is not
    /// full, the caller unmaps them like others.
    pub(super) fn take_huge_page(&self, number: u64, frame: &mut HugeFrame) -> Range<u64> {
        debug_assert!(!frame.is_full, "it holds another span's memory");
        let pages = self.table.pages_of_span(number);
        let taken = pages.clone().take_while(|page| self.table.word(*page).begin_evict(Visit::ORDINARY)).count();
        if taken == SPAN_PAGES {
            // SAFETY: all pages of the span are ours, their words say Evicting; the frame is ours, and without memory.
            let moved = unsafe { self.frames().take_span(self.table.address(pages.start), &frame.recycled) };
            match moved {
                Ok(()) => frame.is_full = true,
                Err(_) => {
                    self.table.span(number).set_huge(false);
                    // SAFETY: the frame's memory is ours alone, and nobody reads it before something is moved there again; some
                    // pages of the span may have arrived.
                    let _ = unsafe { self.shared.paging.unmapper.zap(frame.recycled.base() as usize, SPAN_BYTES) };
                }
            }
        }
        pages.start..pages.start + taken as u64
    }

    /// Reads a span into memory aside; false if any of it is not available.
    fn read_span(&self, core: usize, first: u64, memory: &Reservation) -> bool {
        // SAFETY: the frame is ours as long as it is out of the pool, and nobody else knows of it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base(), SPAN_BYTES) };
        self.read(core, first, bytes).is_ok()
            && bytes.chunks(crate::sys::PAGE_BYTES).zip(first..).all(|(data, page)| self.verify(page, data).is_ok())
    }
}
