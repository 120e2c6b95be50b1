//! A span: 512 neighbouring pages (2 MiB) that are queued, protected and evicted together.

use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering};

use crate::futex_lock::FutexLock;
use crate::page::new_pages::NewPages;
use crate::page::occupancy::{Occupancy, PriorityChange};
use crate::page::reuse::Reuse;
use crate::page::sequence::Sequence;
use crate::page::views::SpanViews;

const QUEUED: u32 = 1 << 0;
const ALL_FRESH: u32 = 1 << 1;
const HAS_WINDOW: u32 = 1 << 3;
const INACTIVE_QUEUED: u32 = 1 << 4;
const CHARGED: u32 = 1 << 5;
const FORGOTTEN: u32 = 1 << 6;
const HUGE: u32 = 1 << 7;
const HAS_MARKS: u32 = 1 << 8;
const WINDOW_SHIFT: u32 = 16;
const WINDOW_MASK: u32 = 0xfff << WINDOW_SHIFT;
const REUSE_SHIFT: u32 = 28;
const REUSE_MASK: u32 = 0b11 << REUSE_SHIFT;
const HAS_REUSE: u32 = 1 << 30;

/// The state of a span; all zeros is a span that nobody has touched. One cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Span {
    lock: FutexLock,
    flags: AtomicU32,
    resident: Occupancy,
    dirty: AtomicU32,
    /// The region's handle, set before the span is first queued. Its type belongs to a layer above.
    region: AtomicPtr<()>,
    /// Addresses of 57 bits hold spans of 36, of which the kernel hands out 26 unless asked.
    number: AtomicU32,
    /// As [`NewPages`].
    new_pages: AtomicU32,
    /// Link of the policy's queues to the next span; the policy alone uses it.
    pub next: AtomicPtr<Span>,
    /// Link of the policy's queues to the span before; the policy alone uses it.
    pub previous: AtomicPtr<Span>,
    /// The policy's number of the queue that it stands in; the policy alone uses this.
    pub queue: AtomicU16,
    /// The sequence whose last miss ended here.
    sequence: AtomicU16,
    /// The views that show it, if its region has several addresses.
    pub views: SpanViews,
    /// Link of the inactive queue, which alone uses it.
    pub next_inactive: AtomicPtr<Span>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Span>() == 64);

// SAFETY: integers and null pointers: zero is valid and nothing needs a drop.
#[cfg(not(loom))]
unsafe impl crate::zero_init::ZeroInit for Span {}

impl Span {
    /// Remembers the region and the number of the span. Without a priority of its own the span takes the region's.
    #[inline]
    pub fn set_region(&self, region: *const (), number: u64, priority: u8) -> PriorityChange {
        debug_assert!(number <= u64::from(u32::MAX), "span {number}");
        self.number.store(number as u32, Ordering::Relaxed);
        let moved = self.resident.inherit_priority(priority);
        self.region.store(region.cast_mut(), Ordering::Release);
        moved
    }

    /// The region and the number, as given to [`Self::set_region`].
    #[inline]
    pub fn region_and_number(&self) -> (*const (), u64) {
        (self.region.load(Ordering::Acquire).cast_const(), u64::from(self.number.load(Ordering::Relaxed)))
    }

    /// Counts one more page in memory or on its way in; returns the priority that it counts under. Waits while the span's
    /// memory is given back.
    #[inline]
    pub fn enter(&self) -> u8 {
        self.resident.enter()
    }

    /// Counts this many fewer pages in memory; returns the priority that they counted under.
    #[inline]
    pub fn leave(&self, pages: u32) -> u8 {
        self.resident.leave(pages)
    }

    /// Pages in memory or on their way in.
    #[inline]
    pub fn resident(&self) -> u32 {
        self.resident.count()
    }

    /// Closes the span, if no page is in memory or on its way in.
    #[inline]
    pub fn try_close(&self) -> bool {
        self.resident.try_close()
    }

    /// Whether a thread waits to be let in.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.resident.is_awaited()
    }

    /// Opens the span again that [`Self::try_close`] has closed.
    #[inline]
    pub fn open(&self) {
        self.resident.open();
    }

    /// Notes that the budget is charged for its page tables and words; false if another thread did so before. The caller is
    /// counted in the span: as long as any thread is, the charge stays.
    #[inline]
    pub fn claim_charged(&self) -> bool {
        self.flags.fetch_or(CHARGED, Ordering::SeqCst) & CHARGED == 0
    }

    /// Whether the budget is charged for it.
    #[inline]
    pub fn is_charged(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & CHARGED != 0
    }

    /// Ends the charge; returns whether there was one. The span is closed.
    #[inline]
    pub fn clear_charged(&self) -> bool {
        self.flags.fetch_and(!CHARGED, Ordering::SeqCst) & CHARGED != 0
    }

    /// Counts one more dirty page.
    #[inline]
    pub fn add_dirty(&self) {
        self.dirty.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts this many fewer dirty pages.
    #[inline]
    pub fn remove_dirty(&self, pages: u32) {
        self.dirty.fetch_sub(pages, Ordering::SeqCst);
    }

    /// Dirty pages; may lag behind the words for an instant, in both directions.
    #[inline]
    pub fn dirty(&self) -> u32 {
        // A page is counted after its word says Dirty, so the thread that writes back may subtract first.
        (self.dirty.load(Ordering::SeqCst) as i32).max(0) as u32
    }

    /// Claims the right to put the span into the policy's queues; true for one claimant until the mark is cleared.
    #[inline]
    pub fn claim_queued(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & QUEUED == 0 && self.flags.fetch_or(QUEUED, Ordering::SeqCst) & QUEUED == 0
    }

    /// Notes that the span has left the policy's queues.
    #[inline]
    pub fn clear_queued(&self) {
        let before = self.flags.fetch_and(!QUEUED, Ordering::SeqCst);
        debug_assert!(before & QUEUED != 0, "it was not queued");
    }

    /// Claims the right to put the span into the inactive queue; true for one claimant until the mark is cleared.
    #[inline]
    pub fn claim_inactive_queued(&self) -> bool {
        self.flags.fetch_or(INACTIVE_QUEUED, Ordering::SeqCst) & INACTIVE_QUEUED == 0
    }

    /// Notes that the span has left the inactive queue.
    #[inline]
    pub fn clear_inactive_queued(&self) {
        let before = self.flags.fetch_and(!INACTIVE_QUEUED, Ordering::SeqCst);
        debug_assert!(before & INACTIVE_QUEUED != 0, "it was not in the inactive queue");
    }

    /// Notes that the device holds garbage for its pages, except those known to have been touched.
    #[inline]
    pub fn set_all_fresh(&self) {
        self.set_flags(|flags| flags & !FORGOTTEN | ALL_FRESH);
    }

    /// Notes that some of its pages, touched or not, have a Fresh mark of their own.
    #[inline]
    pub fn note_fresh_marks(&self) {
        self.flags.fetch_or(HAS_MARKS, Ordering::SeqCst);
    }

    /// Whether [`Self::note_fresh_marks`] was ever called.
    #[inline]
    pub fn has_fresh_marks(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & HAS_MARKS != 0
    }

    /// Notes that nobody knows any more which of its pages were touched.
    #[inline]
    pub fn forget_which_were_touched(&self) {
        self.flags.fetch_or(FORGOTTEN, Ordering::SeqCst);
    }

    /// Whether [`Self::forget_which_were_touched`] came after the last [`Self::set_all_fresh`].
    #[inline]
    pub fn has_forgotten_touched(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & FORGOTTEN != 0
    }

    /// Whether [`Self::set_all_fresh`] was called.
    #[inline]
    pub fn all_fresh(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & ALL_FRESH != 0
    }

    /// Notes whether the span came in as one huge page, and no page of it by itself since.
    #[inline]
    pub fn set_huge(&self, huge: bool) {
        self.set_flags(|flags| if huge { flags | HUGE } else { flags & !HUGE });
    }

    /// Whether [`Self::set_huge`] has noted so, and all pages of it are still in memory.
    #[inline]
    pub fn is_whole_huge_page(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & HUGE != 0 && self.resident() == super::SPAN_PAGES as u32
    }

    /// Gives the span a priority of its own.
    #[inline]
    pub fn set_priority(&self, priority: u8) -> PriorityChange {
        self.resident.set_priority(priority)
    }

    /// Its own priority, or the one that it took from its owner.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.resident.priority()
    }

    /// The sequence whose last miss ended here. A hint: of two misses at the same time, the span may forget one.
    #[inline]
    pub fn sequence(&self) -> Sequence {
        Sequence::from_bits(self.sequence.load(Ordering::Relaxed))
    }

    /// Remembers a sequence.
    #[inline]
    pub fn set_sequence(&self, sequence: Sequence) {
        self.sequence.store(sequence.bits(), Ordering::Relaxed);
    }

    /// Gives the span a read-ahead window of its own, in pages, less than 4096. With 0 the cache finds the window out.
    #[inline]
    pub fn set_window(&self, pages: u16) {
        debug_assert!(u32::from(pages) << WINDOW_SHIFT <= WINDOW_MASK);
        self.set_flags(|flags| flags & !WINDOW_MASK | HAS_WINDOW | u32::from(pages) << WINDOW_SHIFT & WINDOW_MASK);
    }

    /// The window from [`Self::set_window`], if there is one.
    #[inline]
    pub fn window(&self) -> Option<u16> {
        let flags = self.flags.load(Ordering::SeqCst);
        (flags & HAS_WINDOW != 0).then_some(((flags & WINDOW_MASK) >> WINDOW_SHIFT) as u16)
    }

    /// Remembers how often its pages are wanted.
    #[inline]
    pub fn set_reuse(&self, reuse: Reuse) {
        self.set_flags(|flags| flags & !REUSE_MASK | HAS_REUSE | u32::from(reuse.bits()) << REUSE_SHIFT);
    }

    /// The advice from [`Self::set_reuse`], if there is any.
    #[inline]
    pub fn reuse(&self) -> Option<Reuse> {
        let flags = self.flags.load(Ordering::SeqCst);
        (flags & HAS_REUSE != 0).then(|| Reuse::from_bits(((flags & REUSE_MASK) >> REUSE_SHIFT) as u8))
    }

    /// Notes that new pages have come in: nobody is known to want them again. Call it after their words say so.
    #[inline]
    pub fn add_new_pages(&self, new: NewPages) {
        if self.new_pages.load(Ordering::SeqCst) & new.0 != new.0 {
            self.new_pages.fetch_or(new.0, Ordering::SeqCst);
        }
    }

    /// Whether the span may hold an active page that is new.
    #[inline]
    pub fn has_new_pages(&self) -> bool {
        self.new_pages.load(Ordering::SeqCst) != 0
    }

    /// Takes the marks away, and returns where they were. Call it before looking for new pages.
    #[inline]
    pub fn take_new_pages(&self) -> NewPages {
        NewPages(if self.has_new_pages() { self.new_pages.swap(0, Ordering::SeqCst) } else { 0 })
    }

    /// Whether it was given a priority of its own.
    #[inline]
    pub fn has_priority(&self) -> bool {
        self.resident.has_own_priority()
    }

    /// Whether it was ever queued.
    #[inline]
    pub fn was_queued(&self) -> bool {
        !self.region.load(Ordering::Acquire).is_null()
    }

    fn set_flags(&self, next: impl Fn(u32) -> u32) {
        let _ = self.flags.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |flags| Some(next(flags)));
    }

    /// The right to protect pages of the span, if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<SpanGuard<'_>> {
        self.lock.try_acquire().then(|| SpanGuard { span: self })
    }

    /// Waits for the right to protect pages of the span. Never on the trap path.
    #[inline]
    pub fn lock(&self) -> SpanGuard<'_> {
        self.lock.acquire();
        SpanGuard { span: self }
    }
}

/// The right to protect pages of a span.
pub struct SpanGuard<'a> {
    span: &'a Span,
}

impl Drop for SpanGuard<'_> {
    fn drop(&mut self) {
        self.span.lock.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_advised_of_a_span_is_kept_apart() {
        let span = Span::default();
        assert_eq!((span.window(), span.reuse()), (None, None));
        span.set_reuse(Reuse::Often);
        span.set_window(32);
        span.add_new_pages(NewPages::of(40));
        span.add_new_pages(NewPages::of(41));
        let _ = span.set_priority(255);
        span.set_reuse(Reuse::Once);
        assert_eq!((span.window(), span.reuse(), span.priority()), (Some(32), Some(Reuse::Once), 255));
        assert!(span.has_new_pages());
        assert_eq!((span.take_new_pages(), span.take_new_pages()), (NewPages::of(40), NewPages::NONE));
        span.set_reuse(Reuse::Unknown);
        assert_eq!((span.has_new_pages(), span.window(), span.reuse()), (false, Some(32), Some(Reuse::Unknown)));
    }

    #[test]
    fn a_failed_attempt_leaves_the_lock_with_its_holder() {
        let span = Span::default();
        let held = span.try_lock();
        assert!(held.is_some());
        assert!(span.try_lock().is_none());
        assert!(span.try_lock().is_none(), "the failed attempt before has released it");
        drop(held);
        assert!(span.try_lock().is_some());
    }
}
