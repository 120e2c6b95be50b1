//! The page table of a mapped file: its range of addresses, and the state of each page and of each span.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vmio_core::page::page_set::PageSet;
use vmio_core::page::sequence::Sequence;
use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::span::{Span, SpanGuard};
use vmio_core::page::unit::Unit;
use vmio_core::page::word::PageWord;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;

const LAST_PLACE: u64 = SPAN_PAGES as u64 - 1;

/// The pages of a mapped file, and where they are.
pub(crate) struct PageTable {
    range: Reservation,
    words: SparseArray<PageWord>,
    spans: SparseArray<Span>,
    len: AtomicU64,
    /// Which pages come and go together.
    pub(crate) unit: Unit,
    /// Whether every page that was never touched holds garbage on the device.
    all_fresh: AtomicBool,
}

/// The memory of a page table's words and spans.
pub(super) type TableMemory = (SparseArray<PageWord>, SparseArray<Span>);

impl PageTable {
    /// Memory for a range of this many bytes.
    pub(super) fn reserve(bytes: usize) -> std::io::Result<TableMemory> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        Ok((SparseArray::new(bytes / PAGE_BYTES)?, SparseArray::new(bytes.div_ceil(vmio_core::page::SPAN_BYTES))?))
    }

    /// For a file of this length, in a range that it may grow into.
    pub(super) fn new(range: Reservation, (words, spans): TableMemory, len: u64, unit: Unit) -> Self {
        PageTable { words, spans, range, len: AtomicU64::new(len), unit, all_fresh: AtomicBool::new(false) }
    }

    // ---- geometry

    /// Length of the mapping in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // Ordered against the page words: see `mapping/resize.rs`.
        self.len.load(Ordering::SeqCst)
    }

    /// Sets the length; returns the length before.
    pub(super) fn swap_len(&self, len: u64) -> u64 {
        self.len.swap(len, Ordering::SeqCst)
    }

    /// Pages of the mapping, the last one possibly partial.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        self.len().div_ceil(PAGE_BYTES as u64)
    }

    /// Spans of the mapping.
    pub(crate) fn spans(&self) -> u64 {
        self.pages().div_ceil(SPAN_PAGES as u64)
    }

    /// The address space that the mapping may grow into, in bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.range.len() as u64
    }

    /// The address of the first byte.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base()
    }

    /// The range of addresses of the mapping itself.
    pub(crate) fn range(&self) -> &Reservation {
        &self.range
    }

    /// The address of a page in the mapping's own range.
    pub(crate) fn address(&self, page: u64) -> usize {
        debug_assert!(page * (PAGE_BYTES as u64) < self.reserved());
        self.base() as usize + page as usize * PAGE_BYTES
    }

    /// The pages of a span that the mapping reaches.
    pub(crate) fn pages_of_span(&self, span: u64) -> Range<u64> {
        let first = span * SPAN_PAGES as u64;
        first..(first + SPAN_PAGES as u64).min(self.pages()).max(first)
    }

    /// The part of some pages that lies within the mapping. The thread that shortens the mapping waits for the span's
    /// lock afterwards: with the lock, none of these pages is being cut off.
    pub(crate) fn pages_left_of(&self, pages: Range<u64>, _held: &SpanGuard<'_>) -> Range<u64> {
        pages.start..pages.end.min(self.pages()).max(pages.start)
    }

    // ---- the state of a page, and of a span

    #[inline]
    pub(crate) fn word(&self, page: u64) -> &PageWord {
        self.words.get(page as usize)
    }

    /// The words of some pages.
    pub(crate) fn words(&self, pages: Range<u64>) -> &[PageWord] {
        self.words.slice(pages.start as usize..pages.end as usize)
    }

    /// Address and length in bytes of the words of some pages.
    pub(crate) fn words_of(&self, pages: Range<u64>) -> (usize, usize) {
        self.words.pages_of(pages.start as usize..pages.end as usize)
    }

    pub(crate) fn span(&self, span: u64) -> &Span {
        self.spans.get(span as usize)
    }

    /// A page's state, as its word has it. Reads no words of a span without a page in memory, whose memory is most
    /// likely given back. A load would have the kernel put its page of zeros there, and the store that follows would
    /// have to replace it, with a TLB shootdown.
    #[inline]
    pub(crate) fn peek(&self, page: u64) -> Snapshot {
        if self.span(span_of(page)).resident() == 0 { Snapshot::UNTOUCHED } else { self.word(page).load() }
    }

    /// Whether a page is in memory, and not on its way out.
    #[inline]
    pub(crate) fn has_page(&self, page: u64) -> bool {
        let word = self.peek(page);
        word.is_resident() && !word.is_leaving()
    }

    /// Whether a load of the page would go through, and not to poison.
    #[inline]
    pub(crate) fn is_active(&self, page: u64) -> bool {
        let word = self.peek(page);
        word.is_active() && !word.is_poisoned()
    }

    /// The pages of a range that may be in memory or on their way in, by the counts of their spans: of a huge sparse
    /// range, this looks at the used part only.
    pub(crate) fn occupied(&self, pages: Range<u64>) -> impl Iterator<Item = u64> {
        let spans = span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64);
        spans.filter(|span| self.span(*span).resident() > 0).flat_map(move |span| {
            let first = span * SPAN_PAGES as u64;
            pages.start.max(first)..pages.end.min(first + SPAN_PAGES as u64)
        })
    }

    /// Whether the pages of a unit that are in memory can all go now, the dirty ones once they are written.
    pub(crate) fn can_go_together(&self, mut unit: Range<u64>, writes: bool) -> bool {
        unit.end - unit.start == 1
            || unit.all(|page| {
                let word = self.word(page).load();
                let free = word.pins() == 0 && !word.in_flight();
                match word.state() {
                    State::Absent => true,
                    State::Clean => free,
                    State::Dirty => free && writes,
                    _ => false,
                }
            })
    }

    // ---- pages that hold garbage on the device

    pub(crate) fn set_all_fresh(&self, fresh: bool) {
        self.all_fresh.store(fresh, Ordering::SeqCst);
    }

    /// Whether pages of a span that were never touched hold garbage on the device.
    pub(crate) fn untouched_is_fresh(&self, span: u64) -> bool {
        let span = self.span(span);
        (self.all_fresh.load(Ordering::SeqCst) || span.all_fresh()) && !span.has_forgotten_touched()
    }

    // ---- misses in a row

    /// The sequence that a miss of a page continues, or begins.
    pub(crate) fn sequence_at(&self, page: u64) -> Sequence {
        let (span, place) = (span_of(page), page % SPAN_PAGES as u64);
        let within = self.span(span).sequence().missed_at(place);
        if within.is_row() {
            return within;
        }
        match (place, span) {
            (0, 1..) => self.span(span - 1).sequence().missed_at(SPAN_PAGES as u64),
            (LAST_PLACE, _) if span + 1 < self.spans() => self.span(span + 1).sequence().missed_below(),
            _ => within,
        }
    }

    /// Remembers a sequence for the miss that would come next. The last miss has brought in these pages.
    pub(crate) fn keep_sequence(&self, sequence: Sequence, pages: &Range<u64>) {
        let (last, behind) = if sequence.goes_down() { (pages.start, 0) } else { (pages.end - 1, 1) };
        self.span(span_of(last)).set_sequence(sequence.ending_at(last % SPAN_PAGES as u64 + behind));
    }

    // ---- the bytes of pages in memory

    /// The bytes of a page of ours (its word is busy), which is in memory and protected.
    pub(crate) fn bytes_of(&self, page: u64) -> &[u8] {
        // SAFETY: the page is ours alone, by its word: it stays resident, is readable, and nobody stores to it.
        unsafe { std::slice::from_raw_parts(self.address(page) as *const u8, PAGE_BYTES) }
    }

    /// Copies a page that we have pinned. If a thread stores to it meanwhile, the copy is torn.
    pub(crate) fn copy_pinned(&self, page: u64, target: &mut [u8]) {
        assert_eq!(target.len(), PAGE_BYTES);
        // SAFETY: the page stays resident, since it is pinned, and readable; the target overlaps with no mapping.
        unsafe { ptr::copy_nonoverlapping(self.address(page) as *const u8, target.as_mut_ptr(), PAGE_BYTES) }
    }

    // ---- absent pages between others

    /// Makes the absent pages of a range ours, so that nothing comes in there while its neighbours go.
    pub(crate) fn claim_gaps(&self, ours: &PageSet, pages: Range<u64>) -> PageSet {
        let mut gaps = PageSet::default();
        pages.filter(|page| !ours.contains(*page) && self.word(*page).claim_gap()).for_each(|page| gaps.insert(page));
        gaps
    }

    /// Lets claimed gaps go. Call it before the last page of ours goes: a span without pages may lose its words.
    pub(crate) fn release_gaps(&self, gaps: &PageSet, pages: Range<u64>) {
        pages.filter(|page| gaps.contains(*page)).for_each(|page| self.word(page).release_gap());
    }

    /// Makes the pages of a range ours if all of them are absent.
    pub(crate) fn claim_gap(&self, gap: Range<u64>) -> bool {
        let claimed = gap.clone().take_while(|page| self.word(*page).claim_gap()).count() as u64;
        let whole = claimed == gap.end - gap.start;
        if !whole {
            self.release_gap(gap.start..gap.start + claimed);
        }
        whole
    }

    /// Lets a range go that [`Self::claim_gap`] has claimed.
    pub(crate) fn release_gap(&self, gap: Range<u64>) {
        gap.for_each(|page| self.word(page).release_gap());
    }
}
