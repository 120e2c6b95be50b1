//! Page tables and page words: charged to the budget while a span has pages in memory, given back when it has none.

use std::ops::Range;
use std::sync::atomic::Ordering;

use vmio_core::page::{SPAN_PAGES, span_of};

use crate::cache::empty_spans::{BLOCK_PAGES, BLOCK_SPANS, Block, EmptySpan, EmptySpans, Held, STEP_SPANS};
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::cache::shared::Shared;
use crate::cache::shared::memory::KEPT_SHARE;
use crate::policy::SpanRef;
use crate::sys::unmap::UnmapList;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// A span with a page in memory is charged for a page of page tables. It is also charged for a whole page of page words,
/// since the neighbour that shares that page may have nothing to put there. Each further view of the span takes another page
/// of page tables.
pub(crate) const TABLE_PAGES: u32 = 2;

impl Region {
    /// The pages of the budget that bringing a page in costs. The caller is counted in the page's span: only a neighbour that
    /// comes in at the same time can change this.
    pub(crate) fn charge_of(&self, page: u64) -> u32 {
        if self.table.span(span_of(page)).is_charged() { 1 } else { 1 + TABLE_PAGES }
    }

    /// Charges a page and the tables of its span, with the number of pages that [`Self::charge_of`] returned. The caller has
    /// taken these from the budget.
    pub(crate) fn charge(&self, page: u64, charge: u32) {
        debug_assert!(charge == 1 || charge == 1 + TABLE_PAGES, "{charge} pages");
        if charge == 1 {
            return;
        }
        let number = span_of(page);
        if self.table.span(number).claim_charged() {
            self.count_tables(TABLE_PAGES);
            // An evictor that finds the span empty ends the charge, whatever becomes of the page.
            self.queue_span(number);
        } else {
            self.shared.memory.release(TABLE_PAGES);
        }
        debug_assert!(self.table.span(number).is_charged(), "the caller is counted in the span");
    }

    /// Counts pages of the budget that tables take from now on.
    pub(super) fn count_tables(&self, pages: u32) {
        if let Some(tenant) = &self.tenant {
            tenant.add(pages);
        }
        self.table_pages.fetch_add(pages, Ordering::Relaxed);
        self.shared.memory.table_pages.fetch_add(u64::from(pages), Ordering::Relaxed);
    }

    /// The opposite of [`Self::count_tables`].
    pub(super) fn discount_tables(&self, pages: u32) {
        let before = self.table_pages.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "{pages} of {before} pages of tables");
        let before = self.shared.memory.table_pages.fetch_sub(u64::from(pages), Ordering::Relaxed);
        debug_assert!(before >= u64::from(pages), "{pages} of {before} pages of tables of all");
        if let Some(tenant) = &self.tenant {
            tenant.remove(pages);
        }
    }

    /// Whether the tables take so much of the cache, or of the mapping's ceiling, that empty spans do not keep theirs.
    pub(crate) fn is_sparse(&self) -> bool {
        let tables = self.table_pages.load(Ordering::Relaxed);
        self.shared.memory.is_sparse()
            || self.tenant.as_ref().is_some_and(|tenant| tables > tenant.pages_max() / KEPT_SHARE)
    }

    /// The spans that share their page of words with a span.
    fn block_of(number: u64) -> [u64; BLOCK_SPANS as usize] {
        let first = number / BLOCK_SPANS * BLOCK_SPANS;
        [first, first + 1]
    }

    /// Closes a span's block to all threads, if no page of the block is in memory or on its way in.
    fn close_block(&self, number: u64) -> bool {
        let [first, second] = Self::block_of(number).map(|number| self.table.span(number));
        if !first.try_close() {
            return false;
        }
        let closed = second.try_close();
        if !closed {
            first.open();
        }
        closed
    }

    /// Lists the memory of a closed block's page tables and page words. A span whose pages were touched notes that it forgets
    /// which.
    fn list_block(&self, number: u64, list: &mut UnmapList) {
        let spans = Self::block_of(number);
        if !spans.iter().any(|number| self.table.span(*number).is_charged()) {
            return; // Its neighbour's turn has ended the charge and given the memory back.
        }
        let first = spans[0] * SPAN_PAGES as u64;
        let len = BLOCK_PAGES as usize * PAGE_BYTES;
        for view in self.views_of(spans[0]).union(self.views_of(spans[1])).iter() {
            let address = self.views.address_at(Place { view, page: first });
            if let Some(frames) = self.deactivatable() {
                // If this fails, the page tables stay; nothing else depends on it.
                let _ = frames.forget_stores(address, len);
            }
            // SAFETY: the block is closed: no page is in memory there, or comes before it is opened.
            unsafe { self.frames().take_out_tables(address, len) };
            list.push(address, len);
        }
        // A mark that a page holds garbage on the device saves a read: it stays, and the words with it.
        if (first..first + BLOCK_PAGES).any(|page| self.table.word(page).load().is_fresh()) {
            return;
        }
        for number in spans {
            let mut pages = number * SPAN_PAGES as u64..(number + 1) * SPAN_PAGES as u64;
            if pages.any(|page| !self.table.word(page).load().is_untouched()) {
                self.table.span(number).forget_which_were_touched();
            }
        }
        let (address, len) = self.table.words_of(first..first + BLOCK_PAGES);
        list.push(address, len);
    }

    /// Opens a block to all threads again; returns how many pages of the budget this frees.
    fn open_block(&self, number: u64) -> u32 {
        let mut freed = 0;
        for number in Self::block_of(number) {
            let span = self.table.span(number);
            if span.clear_charged() {
                freed += TABLE_PAGES;
            }
            freed += span.views.take().others();
            span.open();
        }
        self.discount_tables(freed);
        freed
    }

    /// Gives back the tables and words of the empty spans among those of the given pages. Not for the trap path; the caller
    /// has signals blocked.
    pub(crate) fn give_tables_back(&self, pages: Range<u64>) {
        let mut empty = EmptySpans::with_capacity(STEP_SPANS);
        for number in span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64) {
            let span = self.table.span(number);
            // A span that was never queued has no owner yet.
            if span.was_queued() && span.is_charged() && span.resident() == 0 {
                empty.push(SpanRef::new(span), Held::ByOthers);
                if empty.len() == STEP_SPANS {
                    empty.give_back(&self.shared);
                }
            }
        }
        empty.give_back(&self.shared);
    }
}

impl EmptySpan {
    fn region(&self) -> (&Region, u64) {
        // SAFETY: the span was queued once, and `push` takes only spans whose region stays until `give_back` has returned.
        unsafe { Region::of_span(self.span) }
    }
}

impl EmptySpans {
    /// Gives back the tables of the spans that are still empty, as their neighbours are; returns how many pages of the budget
    /// that freed.
    pub(crate) fn give_back(&mut self, shared: &Shared) -> u32 {
        let list = &mut self.list;
        let freed = self.spans.chunks_mut(STEP_SPANS).map(|step| give_back_step(shared, step, list)).sum();
        self.spans.clear();
        shared.memory.release(freed);
        freed
    }
}

/// Like [`EmptySpans::give_back`], for a few spans, with one TLB shootdown.
fn give_back_step(shared: &Shared, step: &mut [EmptySpan], list: &mut UnmapList) -> u32 {
    list.clear();
    // Sorted, neighbours would stand side by side; but sorting takes 4 KiB of stack, half of a signal stack.
    for at in 0..step.len() {
        let (before, empty) = step.split_at_mut(at);
        let empty = &mut empty[0];
        let (region, number) = empty.region();
        if region.close_block(number) {
            region.list_block(number, list);
            empty.block = Block::Closed;
        } else if before.iter().any(|other| other.block == Block::Closed && other.is_neighbour(empty)) {
            empty.block = Block::ClosedForNeighbour;
        }
    }
    // SAFETY: the blocks are closed: no page is in memory there, and nobody changes a word until they are opened. A thread that
    // reads one gets what it was, or that of an untouched page.
    let shootdowns = unsafe { shared.paging.unmapper.unmap(list) } + shared.paging.frames.free_tables();
    shared.telemetry.count(cpu::current(), Counter::ShootdownsEvict, shootdowns);
    for empty in step.iter().filter(|empty| empty.held == Held::ByUs) {
        match empty.block {
            Block::Open => empty.region().0.order().policy.put_back(empty.span),
            // A thread that brings a page in, once the block is open, queues the span anew.
            Block::Closed | Block::ClosedForNeighbour => empty.span.get().clear_queued(),
        }
    }
    let closed = step.iter().filter(|empty| empty.block == Block::Closed).map(EmptySpan::region);
    closed.map(|(region, number)| region.open_block(number)).sum()
}
