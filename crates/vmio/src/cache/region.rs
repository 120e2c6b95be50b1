//! One mapped file: its range of addresses, its page words, and the bookkeeping of its dirty pages.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backing::{Access, Backing};
use crate::cache::fetch::OpenRequests;
use crate::cache::huge_pages::HugePages;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::pre_images::PreImages;
use crate::cache::read_failures::{ReadFailure, ReadFailures};
use crate::cache::saved_pages::SavedPages;
use crate::cache::shared::Shared;
use crate::cache::tenant::{Bounds, Tenant};
use crate::cache::views::Views;
use crate::cache::write_batch::{Destination, epoch_of};
use crate::engine::{DeactivatableFrames, Frames};
use crate::error::{Error, Result};
use crate::journal::JournaledBacking;
use crate::options::{FrameHint, MappingOptions, OnReadError, PageVerifier};
use crate::page::dirty_spans::DirtySpans;
use crate::page::sequence::Sequence;
use crate::page::span::{Span, SpanGuard};
use crate::page::strides::Strides;
use crate::page::unit::Unit;
use crate::page::word::{PageWord, State, WriteEnd};
use crate::page::{SPAN_PAGES, span_of};
use crate::policy::SpanRef;
use crate::sys::address_table::GRANULE_BYTES;
use crate::sys::futex_lock::FutexLock;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

const LAST_PLACE: u64 = SPAN_PAGES as u64 - 1;

/// A mapped file.
pub(crate) struct Region {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backing: Arc<dyn Backing>,
    /// The same, if changes reach the file by commits only.
    pub(crate) journaled: Option<Arc<JournaledBacking>>,
    /// Copies for commits, and from before stores; there if it is journaled.
    pub(super) saved: Option<SavedPages>,
    pub(super) pre_images: Option<PreImages>,
    pub(crate) access: Access,
    pub(crate) verifier: Option<Arc<dyn PageVerifier>>,
    pub(crate) on_read_error: OnReadError,
    pub(crate) unit: Unit,
    range: Reservation,
    deactivatable: Option<Box<dyn DeactivatableFrames>>,
    /// If it has a floor or a ceiling.
    pub(crate) tenant: Option<Arc<Tenant>>,
    pub(super) views: Views,
    /// It may have others than its own.
    pub(super) shares_addresses: bool,
    pub(super) huge_pages: HugePages,
    read_ahead_until: AtomicU64,
    pub(super) strides: Strides,
    pub(crate) requests: OpenRequests,
    words: SparseArray<PageWord>,
    spans: SparseArray<Span>,
    pub(crate) dirty_spans: DirtySpans,
    /// Of an atomic mapping, those of them with pages that were made writable since a commit protected the span last.
    pub(super) open_spans: Option<DirtySpans>,
    /// The number of its first page in published misses.
    first_published_page: u64,
    /// What the budget is charged for its page tables and page words.
    pub(crate) table_pages: AtomicU32,
    len: AtomicU64,
    priority: AtomicU8,
    /// Every page that was never touched holds garbage on the device.
    all_fresh: AtomicBool,
    /// Pages to read at a miss; 0 to find it out.
    pub(super) window: AtomicU16,
    /// How often pages are wanted, of spans that it is not known of.
    pub(super) reuse: AtomicU8,
    /// Parity of the sync epoch: a page that becomes dirty now is not part of a sync that has begun.
    epoch: AtomicBool,
    /// A sync of the whole mapping has begun and not succeeded: pages of any epoch may be left of it.
    pub(crate) sync_is_incomplete: AtomicBool,
    /// One sync, or change of length, at a time: there are two epochs only.
    sync_lock: FutexLock,
    failures: Mutex<Failures>,
    pub(crate) read_failures: ReadFailures,
}

/// Holds the sync lock of a region: a sync or a change of its length is under way.
pub(crate) struct SyncGuard<'a> {
    region: &'a Region,
}

impl Drop for SyncGuard<'_> {
    fn drop(&mut self) {
        self.region.sync_lock.release();
    }
}

/// What has gone wrong so far. Taken in the trap path as well: always with signals blocked.
#[derive(Default)]
pub(crate) struct Failures {
    /// Failed page writes.
    pub(crate) writes: u64,
    /// The one with the lowest page since the last sync began: where, and why.
    pub(crate) first_write: Option<(u64, io::Error)>,
    /// The first failed flush.
    pub(crate) flush: Option<io::ErrorKind>,
}

impl Failures {
    fn note_write(&mut self, page: u64, error: io::Error) {
        self.writes += 1;
        if self.first_write.as_ref().is_none_or(|(first, _)| page <= *first) {
            self.first_write = Some((page, error));
        }
    }
}

/// A store to a poisoned page would go unnoticed in frames whose stores the kernel tracks, and so would one that comes while
/// a commit draws its line.
fn choose_frames(shared: &Shared, options: &MappingOptions) -> Result<FrameHint> {
    let poisons = matches!(options.on_read_error, OnReadError::Poison(_));
    let is_atomic = options.journal.is_some();
    match options.frames {
        FrameHint::Auto if is_atomic => Ok(FrameHint::ReadMostly),
        hint if is_atomic && hint != FrameHint::ReadMostly => Err(Error::BadOption {
            option: "frames",
            value: format!("{hint:?}, of an atomic mapping"),
            expected: "ReadMostly or Auto: a commit must see every store, and keep it waiting",
        }),
        FrameHint::Auto if poisons => Ok(FrameHint::ReadMostly),
        FrameHint::Auto => Ok(shared.paging.frame_hint),
        hint @ (FrameHint::Mixed | FrameHint::SharedAddresses) if poisons => Err(Error::BadOption {
            option: "frames",
            value: format!("{hint:?}, with a poison pattern for unreadable pages"),
            expected: "ReadMostly or Auto: a store to a poisoned page would go unnoticed",
        }),
        hint => Ok(hint),
    }
}

/// Without it, scans read ahead by small pages, as far as their window goes.
fn installs_spans(shared: &Shared) -> bool {
    // The kernel moves pages between ranges that are both locked, or neither.
    let installs = shared.paging.frames.installs_spans() && !shared.paging.locks_memory;
    if !installs {
        tracing::warn!(
            "huge pages cannot be moved into a mapping (that takes Linux 6.8, Engine::Sigbus and memory that is not locked): scans come in small pages"
        );
    }
    installs
}

/// Where the kernel cannot do it, the mapping gets frames whose stores trap: slower for some programs, never wrong.
fn reserve_deactivatable(shared: &Shared, len: usize) -> Option<(Reservation, Box<dyn DeactivatableFrames>)> {
    match shared.paging.engine.deactivatable(len, GRANULE_BYTES) {
        Ok(range_and_frames) => Some(range_and_frames),
        Err(error) => {
            tracing::warn!(%error, "no frames whose stores the kernel tracks (Linux 6.7 has them; `vmio doctor` says more): first stores trap");
            None
        }
    }
}

impl Region {
    /// Reserves address space for a backing and attaches it to the engine. Costs nothing until touched.
    pub(crate) fn new(shared: Arc<Shared>, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Self> {
        let len = backing.len();
        let reserved = options.reserved_bytes(len)?;
        let access = options.access_to(&*backing)?;
        let tenant = Bounds::of(&options)?.map(|bounds| Arc::new(Tenant::new(bounds, shared.eviction.new_order())));
        let hint = choose_frames(&shared, &options)?;
        let huge_pages = match hint {
            _ if tenant.as_ref().is_some_and(|tenant| !tenant.has_room_for_huge_pages()) => HugePages::Never,
            FrameHint::Stream if installs_spans(&shared) => HugePages::Always.unless_recorded(&shared),
            FrameHint::Dynamic if access == Access::ReadOnly && installs_spans(&shared) => {
                HugePages::OfSequences.unless_recorded(&shared)
            }
            _ => HugePages::Never,
        };
        if hint == FrameHint::Stream && access == Access::ReadWrite {
            return Err(Error::BadOption {
                option: "frames",
                value: "Stream, of a mapping that can be stored to".to_owned(),
                expected: "Access::ReadOnly with it: a store could go unnoticed while a huge page comes in",
            });
        }
        let (backing, journaled): (Arc<dyn Backing>, _) = match &options.journal {
            Some(journal) => {
                let journaled = Arc::new(journal.join_boxed(backing)?);
                (Arc::clone(&journaled) as _, Some(journaled))
            }
            None => (Arc::from(backing), None),
        };
        let copies =
            SavedPages::of(&options).and_then(|saved| Ok((saved, PreImages::of(&options, reserved, &shared)?)));
        let (saved, pre_images) = copies.map_err(Error::system("reserving memory for copies of pages"))?;
        // Of the other pages of a larger unit, the touches would be missing in the record.
        let unit = if shared.telemetry.miss_ring.is_some() { Unit::Kib4 } else { options.unit };
        let pages = reserved / PAGE_BYTES;
        let spans = reserved.div_ceil(crate::page::SPAN_BYTES);
        let build = || -> io::Result<_> {
            let tracked = matches!(hint, FrameHint::Mixed | FrameHint::SharedAddresses);
            let (mut range, deactivatable) = match tracked.then(|| reserve_deactivatable(&shared, reserved)).flatten() {
                Some((range, frames)) => (range, Some(frames)),
                None => {
                    let range = Reservation::zeroed(reserved, GRANULE_BYTES)?;
                    shared.paging.engine.attach(&range)?;
                    (range, None)
                }
            };
            // Huge pages can only be moved to memory that is writable: stores fault since pages are protected.
            range.prepare_for_frames(
                access == Access::ReadOnly && huge_pages == HugePages::Never,
                shared.paging.locks_memory,
            )?;
            let of_spans = || DirtySpans::new(spans as u64);
            let open_spans = journaled.is_some().then(of_spans).transpose()?;
            Ok((range, deactivatable, SparseArray::new(pages)?, SparseArray::new(spans)?, of_spans()?, open_spans))
        };
        let (range, deactivatable, words, spans, dirty_spans, open_spans) =
            build().map_err(Error::system("reserving address space for a mapping"))?;
        Ok(Region {
            views: Views::of(&range),
            first_published_page: shared
                .telemetry
                .miss_ring
                .as_ref()
                .map_or(0, |ring| ring.number_pages(pages as u64, len)),
            shares_addresses: hint == FrameHint::SharedAddresses && deactivatable.is_some(),
            shared,
            backing,
            journaled,
            saved,
            pre_images,
            access,
            verifier: options.verifier,
            on_read_error: options.on_read_error,
            unit,
            range,
            deactivatable,
            tenant,
            huge_pages,
            read_ahead_until: AtomicU64::new(0),
            strides: Strides::default(),
            requests: OpenRequests::default(),
            words,
            spans,
            dirty_spans,
            open_spans,
            table_pages: AtomicU32::new(0),
            len: AtomicU64::new(len),
            priority: AtomicU8::new(options.priority),
            all_fresh: AtomicBool::new(false),
            // A span that cannot come in as a whole comes in by as few reads as can be.
            window: AtomicU16::new(if hint == FrameHint::Stream { WINDOW_PAGES_MAX as u16 } else { 0 }),
            reuse: AtomicU8::new(0),
            epoch: AtomicBool::new(false),
            sync_is_incomplete: AtomicBool::new(false),
            sync_lock: FutexLock::default(),
            failures: Mutex::new(Failures::default()),
            read_failures: ReadFailures::default(),
        })
    }

    // ---- geometry

    /// Length of the mapping in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // Ordered against the page words: see `resize.rs`.
        self.len.load(Ordering::SeqCst)
    }

    pub(crate) fn store_len(&self, len: u64) {
        let before = self.len.swap(len, Ordering::SeqCst);
        self.shared.telemetry.mapped_bytes.fetch_add(len.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Pages of the mapping, the last one possibly partial.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        self.len().div_ceil(PAGE_BYTES as u64)
    }

    /// The address space that the mapping may grow into, in bytes.
    pub(crate) fn reserved(&self) -> u64 {
        self.range.len() as u64
    }

    /// The first byte.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base()
    }

    /// The range of addresses of the mapping itself.
    pub(crate) fn range(&self) -> &Reservation {
        &self.range
    }

    /// The address of a page in it.
    pub(crate) fn address(&self, page: u64) -> usize {
        debug_assert!(page * (PAGE_BYTES as u64) < self.reserved());
        self.base() as usize + page as usize * PAGE_BYTES
    }

    /// The pages of a span that the mapping reaches.
    pub(crate) fn pages_of_span(&self, span: u64) -> Range<u64> {
        let first = span * SPAN_PAGES as u64;
        first..(first + SPAN_PAGES as u64).min(self.pages()).max(first)
    }

    /// What is left of some pages within the mapping. The thread that shortens it waits for the span's lock afterwards: with the lock,
    /// these are pages that are not being cut off.
    pub(crate) fn pages_left_of(&self, pages: Range<u64>, _held: &SpanGuard<'_>) -> Range<u64> {
        pages.start..pages.end.min(self.pages()).max(pages.start)
    }

    /// Tells whoever records misses of those of some pages.
    pub(crate) fn publish_misses(&self, pages: Range<u64>, store: bool) {
        if let Some(ring) = &self.shared.telemetry.miss_ring {
            pages.for_each(|page| ring.note(self.first_published_page + page, store));
        }
    }

    #[inline]
    pub(crate) fn word(&self, page: u64) -> &PageWord {
        self.words.get(page as usize)
    }

    /// Address and length in bytes of the words of some pages.
    pub(crate) fn words_of(&self, pages: Range<u64>) -> (usize, usize) {
        self.words.pages_of(pages.start as usize..pages.end as usize)
    }

    pub(crate) fn span(&self, span: u64) -> &Span {
        self.spans.get(span as usize)
    }

    pub(crate) fn spans(&self) -> u64 {
        self.pages().div_ceil(SPAN_PAGES as u64)
    }

    /// The region that a queued span belongs to.
    ///
    /// # Safety
    /// The span must have been queued by a region that still lives (the eviction gate is held for reading).
    pub(crate) unsafe fn of_span<'a>(span: SpanRef) -> (&'a Region, u64) {
        let (region, number) = span.get().owner();
        // SAFETY: owners are set in `queue_span` only, to the address of a region in an Arc, which does not move.
        (unsafe { &*region.cast::<Region>() }, number)
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

    /// The pages of a range that may be in memory or on their way in, found by the counts of their spans: of a huge
    /// sparse range only the used part is looked at.
    pub(crate) fn occupied(&self, pages: Range<u64>) -> impl Iterator<Item = u64> {
        let spans = span_of(pages.start)..pages.end.div_ceil(SPAN_PAGES as u64);
        spans.filter(|span| self.span(*span).resident() > 0).flat_map(move |span| {
            let first = span * SPAN_PAGES as u64;
            pages.start.max(first)..pages.end.min(first + SPAN_PAGES as u64)
        })
    }

    // ---- frames

    /// Up to which span a scan's read-ahead was asked for.
    pub(crate) fn read_ahead_until(&self) -> u64 {
        self.read_ahead_until.load(Ordering::Relaxed)
    }

    pub(crate) fn set_read_ahead_until(&self, span: u64) {
        self.read_ahead_until.store(span, Ordering::Relaxed);
    }

    /// Its frames, if they can be deactivated and the kernel notes their stores.
    pub(crate) fn deactivatable(&self) -> Option<&dyn DeactivatableFrames> {
        self.deactivatable.as_deref()
    }

    /// Its frames.
    pub(crate) fn frames(&self) -> &dyn Frames {
        match &self.deactivatable {
            Some(frames) => &**frames,
            None => &*self.shared.paging.frames,
        }
    }

    /// Waits until the engine has done with the region's faults, of which it finds no more.
    pub(crate) fn detach(&self) {
        self.shared.paging.engine.detach(&self.range);
    }

    /// Whether a page may be in memory and not mapped at one of the region's views.
    pub(crate) fn shares_addresses(&self) -> bool {
        self.shares_addresses
    }

    // ---- advice

    /// The priority of spans that have none of their own.
    pub(crate) fn priority(&self) -> u8 {
        self.priority.load(Ordering::Relaxed)
    }

    pub(crate) fn set_priority(&self, priority: u8) {
        self.priority.store(priority, Ordering::Relaxed);
    }

    pub(crate) fn set_all_fresh(&self, fresh: bool) {
        self.all_fresh.store(fresh, Ordering::SeqCst);
    }

    /// Whether pages of a span that were never touched hold garbage on the device.
    pub(crate) fn untouched_is_fresh(&self, span: u64) -> bool {
        let span = self.span(span);
        (self.all_fresh.load(Ordering::SeqCst) || span.all_fresh()) && !span.has_forgotten()
    }

    /// The sequence that a miss of a page continues, or begins.
    pub(crate) fn sequence_at(&self, page: u64) -> Sequence {
        let (span, place) = (span_of(page), page % SPAN_PAGES as u64);
        let within = self.span(span).sequence().missed_at(place);
        if within.has_followed() {
            return within;
        }
        match (place, span) {
            (0, 1..) => self.span(span - 1).sequence().missed_at(SPAN_PAGES as u64),
            (LAST_PLACE, _) if span + 1 < self.spans() => self.span(span + 1).sequence().missed_below(),
            _ => within,
        }
    }

    /// Remembers it for the miss that would come next: the last one has brought these pages.
    pub(crate) fn keep_sequence(&self, sequence: Sequence, pages: &Range<u64>) {
        let (last, behind) = if sequence.goes_down() { (pages.start, 0) } else { (pages.end - 1, 1) };
        self.span(span_of(last)).set_sequence(sequence.ending_at(last % SPAN_PAGES as u64 + behind));
    }

    // ---- dirtiness

    /// The present sync epoch; where changes are committed, that of the present commit.
    pub(crate) fn epoch(&self) -> bool {
        match &self.journaled {
            Some(backing) => epoch_of(backing.present_commit()),
            None => self.epoch.load(Ordering::SeqCst),
        }
    }

    /// Starts the next sync epoch; returns the one that ended.
    pub(crate) fn flip_epoch(&self) -> bool {
        self.epoch.fetch_xor(true, Ordering::SeqCst)
    }

    /// Announces that a page of ours (its word is busy) is about to become writable; returns the epoch in which it is
    /// dirty. A sync that does not see the mark began before this epoch; one that does waits for the busy word.
    /// So a store by any thread, from the instant the frame is writable, belongs to the right sync.
    pub(crate) fn announce_dirty(&self, page: u64) -> bool {
        self.dirty_spans.insert(span_of(page));
        self.epoch()
    }

    /// Counts a page whose word has just become Dirty.
    pub(crate) fn count_dirty(&self, page: u64) {
        self.span(span_of(page)).add_dirty();
        self.shared.add_dirty();
    }

    /// A page's write has ended, well or not; false if it failed.
    pub(crate) fn settle_write(&self, page: u64, error: Option<io::Error>, destination: Destination) -> bool {
        let Some(error) = error else {
            self.word(page).finish_write(None);
            return true;
        };
        self.shared.telemetry.count(cpu::current(), Counter::WriteErrors, 1);
        self.shared.write_back.note_error(&error);
        let end = {
            // In one step for a sync: it either counts the failure as its own, or finds the page dirty and the mark of
            // its span set. (A mark set any earlier could be cleared by a sync that finds the page still in flight.)
            let mut failures = self.failures();
            failures.note_write(page, error);
            let end = self.word(page).finish_write(Some(destination.epoch().unwrap_or_else(|| self.epoch())));
            self.dirty_spans.insert(span_of(page));
            end
        };
        match (end, destination) {
            (WriteEnd::DirtyAgain, _) => self.count_dirty(page),
            (WriteEnd::Overtaken, Destination::Spill(commit)) => self.note_lost_image(commit),
            _ => {}
        }
        false
    }

    // ---- giving up

    /// A page's frame is gone; it was evicted at that time.
    pub(crate) fn finish_evict(&self, page: u64, time: u8) {
        let (word, order) = (self.word(page), self.order());
        let before = word.load();
        if before.is_inactive() {
            order.eviction_queue.add_pages(-1);
        }
        order.note_queue(cpu::current(), before.frequency(), -1);
        word.finish_evict(time);
        if let Some(tenant) = &self.tenant {
            tenant.remove(1);
        }
        self.remove_resident(span_of(page), 1);
    }

    /// Takes its pages out of the counts of its order, in which nobody finds its spans any more.
    pub(crate) fn leave_order(&self) {
        let words = self.occupied(0..self.pages()).map(|page| self.word(page).load());
        self.order().remove_pages(words.filter(|word| word.is_resident()));
    }

    // ---- the sync lock

    /// Waits until no sync and no change of length is under way. The caller has signals blocked.
    pub(crate) fn lock_sync(&self) -> SyncGuard<'_> {
        self.sync_lock.acquire();
        SyncGuard { region: self }
    }

    /// As [`Self::lock_sync`], if it is free.
    pub(crate) fn try_lock_sync(&self) -> Option<SyncGuard<'_>> {
        self.sync_lock.try_acquire().then(|| SyncGuard { region: self })
    }

    /// Takes the lock over from a thread that has it, and has forgotten its guard.
    pub(crate) fn resume_sync(&self) -> SyncGuard<'_> {
        SyncGuard { region: self }
    }

    // ---- failures

    pub(crate) fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a page that could not be brought in.
    pub(crate) fn note_read_failure(&self, page: u64, failure: ReadFailure) {
        self.shared.telemetry.count(cpu::current(), Counter::ReadErrors, 1);
        self.read_failures.note(page, failure);
    }

    /// The error for a page that could not be brought in.
    pub(crate) fn read_error(&self, page: u64, failure: ReadFailure) -> Error {
        failure.into_error(self.backing.describe(), page)
    }
}
