//! One mapped file, in parts. A function that needs one part is a method of that part. A function that needs several parts, or
//! the state that all mappings share, is a method of the region, in the file of its subject.

pub(crate) mod advised;
pub(crate) mod calls;
pub(crate) mod dirty_spans;
pub(crate) mod dirty_tracking;
pub(crate) mod page_table;
pub(crate) mod read_ahead;
pub(crate) mod views;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmio_core::page::unit::Unit;
use vmio_core::page::views::ViewSet;
use vmio_core::page::word::WriteEnd;
use vmio_core::page::{SPAN_BYTES, span_of};

use crate::backing::{Access, Backing};
use crate::cache::destination::{Destination, epoch_of};
use crate::cache::open_requests::OpenRequests;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::pre_images::PreImages;
use crate::cache::read_failures::{ReadFailure, ReadFailures};
use crate::cache::region::advised::Advised;
use crate::cache::region::calls::CallsOfRegion;
use crate::cache::region::dirty_tracking::DirtyTracking;
use crate::cache::region::page_table::PageTable;
use crate::cache::region::read_ahead::{HugePages, ReadAhead};
use crate::cache::region::views::Views;
use crate::cache::region_ref::RegionRef;
use crate::cache::saved_pages::SavedPages;
use crate::cache::shared::Shared;
use crate::cache::tenant::{Bounds, Tenant};
use crate::engine::{DeactivatableFrames, Frames, Prepare};
use crate::error::{Error, Result};
use crate::journal::JournaledBacking;
use crate::options::{FrameHint, MappingOptions, OnReadError, PageVerifier};
use crate::policy::{EvictionOrder, SpanRef};
use crate::sys::abort::AbortOnUnwind;
use crate::sys::address_table::{AddressTable, GRANULE_BYTES};
use crate::sys::reservation::Reservation;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// A mapped file.
pub(crate) struct Region {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backing: Arc<dyn Backing>,
    /// The same backing, if changes reach the file by commits only.
    pub(crate) journaled: Option<Arc<JournaledBacking>>,
    pub(crate) access: Access,
    pub(crate) verifier: Option<Arc<dyn PageVerifier>>,
    pub(crate) on_read_error: OnReadError,
    pub(crate) table: PageTable,
    pub(crate) dirty: DirtyTracking,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) advised: Advised,
    pub(crate) views: Views,
    deactivatable: Option<Box<dyn DeactivatableFrames>>,
    /// The tenant, if the mapping has a floor or a ceiling.
    pub(crate) tenant: Option<Arc<Tenant>>,
    pub(crate) requests: OpenRequests,
    pub(crate) calls: CallsOfRegion,
    pub(crate) read_failures: ReadFailures,
    /// The number of its first page in published misses.
    first_published_page: u64,
    /// The charge for its page tables and page words, in pages. Not in the table, whose cache lines all misses read.
    pub(crate) table_pages: AtomicU32,
}

/// The regions of the process, by their addresses: the cache handles the faults there.
pub(crate) static REGIONS: AddressTable<Region> = AddressTable::new();

/// Chooses the frames of a mapping. In frames whose stores the kernel tracks, a store to a poisoned page would go unnoticed, and
/// so would a store that comes while a commit takes its point in time.
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

/// Whether spans can come in as huge pages. If not, scans read ahead by small pages, as far as their window goes.
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

/// The same, or `Never` in a cache that records its misses: the misses that huge pages save would be missing in the
/// record.
fn unless_recorded(shared: &Shared, huge_pages: HugePages) -> HugePages {
    if shared.telemetry.miss_ring.is_some() { HugePages::Never } else { huge_pages }
}

/// Reserves a range over frames that can be deactivated. Where the kernel cannot do that, the mapping gets frames whose stores
/// trap: slower for some programs, never wrong.
fn reserve_deactivatable(
    shared: &Shared,
    len: usize,
    prepare: Prepare<'_>,
) -> Option<(Reservation, Box<dyn DeactivatableFrames>)> {
    match shared.paging.engine.deactivatable(len, GRANULE_BYTES, prepare) {
        Ok(range_and_frames) => Some(range_and_frames),
        Err(error) => {
            tracing::warn!(%error, "no frames whose stores the kernel tracks (Linux 6.7 has them; `vmio doctor` says more): first stores trap");
            None
        }
    }
}

impl Region {
    /// Reserves address space for a backing and attaches it to the engine. The range costs nothing until touched.
    pub(crate) fn new(shared: Arc<Shared>, backing: Box<dyn Backing>, options: MappingOptions) -> Result<Self> {
        let len = backing.len();
        let reserved = options.reserved_bytes(len)?;
        let access = options.access_to(&*backing)?;
        let tenant = Bounds::of(&options)?.map(|bounds| Arc::new(Tenant::new(bounds, shared.eviction.new_order())));
        let hint = choose_frames(&shared, &options)?;
        let huge_pages = match hint {
            _ if tenant.as_ref().is_some_and(|tenant| !HugePages::fit(tenant.pages_max())) => HugePages::Never,
            FrameHint::Stream if installs_spans(&shared) => unless_recorded(&shared, HugePages::Always),
            FrameHint::Dynamic if access == Access::ReadOnly && installs_spans(&shared) => {
                unless_recorded(&shared, HugePages::OfSequences)
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
        let copies = SavedPages::of(&options)
            .and_then(|saved| Ok((saved, PreImages::of(&options, reserved, shared.memory.capacity_pages())?)));
        let (saved, pre_images) = copies.map_err(Error::system("reserving memory for copies of pages"))?;
        // With a larger unit, touches of its other pages would be missing in the record.
        let unit = if shared.telemetry.miss_ring.is_some() { Unit::Kib4 } else { options.unit };
        let pages = reserved / PAGE_BYTES;
        let spans = reserved.div_ceil(SPAN_BYTES) as u64;
        let build = || -> io::Result<_> {
            let tracked = matches!(hint, FrameHint::Mixed | FrameHint::SharedAddresses);
            // Huge pages can only be moved to memory that is writable: stores fault since pages are protected.
            let read_only = access == Access::ReadOnly && huge_pages == HugePages::Never;
            let prepare = |range: &mut Reservation| range.prepare_for_frames(read_only, shared.paging.locks_memory);
            // Before the range: whatever fails after that has to detach it.
            let dirty = DirtyTracking::new(spans, journaled.is_some(), saved, pre_images)?;
            let memory = PageTable::reserve(reserved)?;
            let reserve = || reserve_deactivatable(&shared, reserved, &prepare);
            let (range, deactivatable) = match tracked.then(reserve).flatten() {
                Some((range, frames)) => (range, Some(frames)),
                None => {
                    let mut range = Reservation::zeroed(reserved, GRANULE_BYTES)?;
                    prepare(&mut range)?;
                    (range, None)
                }
            };
            let views = Views::of(&range, hint == FrameHint::SharedAddresses && deactivatable.is_some());
            let table = PageTable::new(range, memory, len, unit);
            if deactivatable.is_none() {
                shared.paging.engine.attach(table.range())?;
            }
            Ok((views, table, dirty, deactivatable))
        };
        let (views, table, dirty, deactivatable) =
            build().map_err(Error::system("reserving address space for a mapping"))?;
        // A span that cannot come in as a whole comes in by as few reads as possible.
        let window = if hint == FrameHint::Stream { WINDOW_PAGES_MAX as u16 } else { 0 };
        let published = shared.telemetry.miss_ring.as_ref();
        Ok(Region {
            first_published_page: published.map_or(0, |ring| ring.number_pages(pages as u64, len)),
            shared,
            backing,
            journaled,
            access,
            verifier: options.verifier,
            on_read_error: options.on_read_error,
            table,
            dirty,
            read_ahead: ReadAhead::new(huge_pages),
            advised: Advised::new(options.priority, window),
            views,
            deactivatable,
            tenant,
            requests: OpenRequests::default(),
            calls: CallsOfRegion::default(),
            read_failures: ReadFailures::default(),
            table_pages: AtomicU32::new(0),
        })
    }

    // ---- geometry

    pub(crate) fn store_len(&self, len: u64) {
        let before = self.table.swap_len(len);
        self.shared.telemetry.mapped_bytes.fetch_add(len.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Publishes misses of some pages, if the cache records its misses.
    pub(crate) fn publish_misses(&self, pages: Range<u64>, store: bool) {
        if let Some(ring) = &self.shared.telemetry.miss_ring {
            pages.for_each(|page| ring.note(self.first_published_page + page, store));
        }
    }

    /// A reference for lists and queues.
    pub(crate) fn reference(&self) -> RegionRef {
        RegionRef::new(std::ptr::from_ref(self).cast())
    }

    /// The region that a reference leads to.
    ///
    /// # Safety
    /// The region must still exist. It lies in an Arc, and does not move.
    pub(crate) unsafe fn of<'a>(reference: RegionRef) -> &'a Region {
        // SAFETY: references are made by `reference` only; the rest is the caller's to ensure.
        unsafe { &*reference.address().cast::<Region>() }
    }

    /// The region that a queued span belongs to.
    ///
    /// # Safety
    /// A region that still exists must have queued the span. (The eviction gate, held for reading, keeps the region.)
    pub(crate) unsafe fn of_span<'a>(span: SpanRef) -> (&'a Region, u64) {
        let (region, number) = span.get().region_and_number();
        // SAFETY: owners are set in `queue_span` only, to the address of a region in an Arc, which does not move.
        (unsafe { &*region.cast::<Region>() }, number)
    }

    /// The views at which pages of a span may be mapped.
    pub(crate) fn views_of(&self, span: u64) -> ViewSet {
        if self.views.shares_addresses { self.table.span(span).views.ready() } else { ViewSet::OWN }
    }

    // ---- frames

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

    /// Waits until the engine has served the region's faults. The engine finds no new ones.
    pub(crate) fn detach(&self) {
        self.shared.paging.engine.detach(self.table.range());
    }

    // ---- dirtiness

    /// The present sync epoch; of an atomic mapping, the epoch of the present commit.
    pub(crate) fn epoch(&self) -> bool {
        match &self.journaled {
            Some(backing) => epoch_of(backing.present_commit()),
            None => self.dirty.epoch(),
        }
    }

    /// Announces that a page of ours (its word is busy) is about to become writable; returns the epoch in which it is
    /// dirty. A sync that does not see the mark began before this epoch; one that does waits for the busy word.
    /// So a store by any thread, from the instant the frame is writable, belongs to the right sync.
    pub(crate) fn announce_dirty(&self, page: u64) -> bool {
        self.dirty.spans.insert(span_of(page));
        self.epoch()
    }

    /// Counts a page whose word has just become Dirty.
    pub(crate) fn count_dirty(&self, page: u64) {
        self.table.span(span_of(page)).add_dirty();
        self.shared.add_dirty();
    }

    /// Settles a page whose write has ended, well or not; false if the write failed.
    pub(crate) fn settle_write(&self, page: u64, error: Option<io::Error>, destination: Destination) -> bool {
        let Some(error) = error else {
            self.table.word(page).finish_write(None);
            return true;
        };
        self.shared.telemetry.count(cpu::current(), Counter::WriteErrors, 1);
        self.shared.write_back.note_error(&error);
        let end = {
            // One step for a sync: it either counts the failure as its own, or finds the page dirty and the span marked. (A sync
            // that finds the page still in flight could clear an earlier mark.)
            let mut failures = self.dirty.failures();
            failures.note_write(page, error);
            let end = self.table.word(page).finish_write(Some(destination.epoch().unwrap_or_else(|| self.epoch())));
            self.dirty.spans.insert(span_of(page));
            end
        };
        match (end, destination) {
            (WriteEnd::DirtyAgain, _) => self.count_dirty(page),
            (WriteEnd::Overtaken, Destination::Spill(commit)) => self.note_lost_image(commit),
            _ => {}
        }
        false
    }

    /// Turns the copy of a page into the bytes for the device.
    pub(super) fn prepare_copy(&self, page: u64, copy: &mut [u8]) {
        self.clear_behind_end(page, copy);
        if let Some(verifier) = &self.verifier {
            let _verifier_may_panic = AbortOnUnwind::new();
            verifier.seal(page * PAGE_BYTES as u64, copy);
        }
    }

    /// Clears the bytes of a copy behind the end of the file: bytes that the program stored there are part of neither the file
    /// nor a checksum. (The end of the file, not of the mapping: a cut that the mapping has begun may yet fail.)
    pub(super) fn clear_behind_end(&self, page: u64, copy: &mut [u8]) {
        let offset = page * PAGE_BYTES as u64;
        if let Some(tail) = copy.get_mut(self.backing.len().saturating_sub(offset) as usize..) {
            tail.fill(0);
        }
    }

    // ---- eviction

    /// The order in which evictors find its spans.
    pub(crate) fn order(&self) -> &EvictionOrder {
        self.tenant.as_ref().map_or(&self.shared.eviction.order, |tenant| &tenant.order)
    }

    /// The tenant, if this many more pages would take it over its ceiling.
    #[inline]
    pub(crate) fn at_ceiling(&self, more: u32) -> Option<&Tenant> {
        self.tenant.as_deref().filter(|tenant| tenant.over(more) > 0)
    }

    /// Ends the eviction of a page, whose frame is gone. The page was evicted at `time`.
    pub(crate) fn finish_evict(&self, page: u64, time: u8) {
        let (word, order) = (self.table.word(page), self.order());
        let before = word.load();
        if before.is_inactive() {
            order.inactive_spans.add_pages(-1);
        }
        order.count_page(cpu::current(), before.frequency(), -1);
        word.finish_evict(time);
        if let Some(tenant) = &self.tenant {
            tenant.remove(1);
        }
        self.remove_resident(span_of(page), 1);
    }

    /// Takes its pages out of the counts of its order, in which no evictor finds its spans any more.
    pub(crate) fn leave_order(&self) {
        let words = self.table.occupied(0..self.table.pages()).map(|page| self.table.word(page).load());
        self.order().remove_pages(words.filter(|word| word.is_resident()));
    }

    // ---- failures

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
