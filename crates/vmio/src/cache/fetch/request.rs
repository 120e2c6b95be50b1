//! Requests for pages, on their way to the thread that fetches these.

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::cache::fault_error::FaultError;
use crate::cache::fetch::outcome::{Failure, Outcome};
use crate::cache::region::Region;

/// A region that stays open while a thread without a handle works on it: see [`OpenRequests::end`](crate::cache::open_requests::OpenRequests::end).
pub(crate) struct FetchedRegion(NonNull<Region>);

// SAFETY: a Region is shared between threads through atomics and locks; a thread that closes it waits until this is dropped.
unsafe impl Send for FetchedRegion {}

impl FetchedRegion {
    /// Counts a request for the region, to which the caller has a handle.
    pub(crate) fn new(region: &Region) -> Self {
        region.requests.begin_one();
        FetchedRegion(NonNull::from(region))
    }

    /// Whether a thread waits to close the region: work that has not begun need not begin.
    pub(crate) fn is_closing(&self) -> bool {
        self.requests.must_end()
    }
}

impl Deref for FetchedRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: the region is counted, and whoever closes it waits for that to end.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for FetchedRegion {
    fn drop(&mut self) {
        // The thread that fetches has a reference of its own, so this is never the last one.
        let shared = Arc::clone(&self.shared);
        self.requests.end_one();
        shared.reads.ended_requests.note_one();
    }
}

/// How to go on where the cache has no free page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A future waits for the pages: give up others for them.
    Wanted,
    /// Like `Wanted`, after so long a wait that the pages may come in over their mapping's ceiling.
    Overdue,
    /// The pages are a guess: do without them.
    Guessed,
}

/// Some pages of a region, and how far the work on them has come.
pub(crate) struct Request {
    region: Option<FetchedRegion>,
    ranges: Vec<Range<u64>>,
    /// The index of the next range, whose start is the next page.
    next: usize,
    pub(crate) urgency: Urgency,
    /// Reads under way.
    pub(crate) reads: u32,
    /// Rounds in a row in which its mapping, at its ceiling, had nothing to give up.
    pub(crate) rounds_at_ceiling: u32,
    failure: Option<(u64, FaultError)>,
    outcome: Option<Arc<Outcome>>,
}

impl Request {
    /// For whole ranges of pages. Without an outcome nobody learns the result.
    pub(crate) fn new(
        region: FetchedRegion,
        ranges: Vec<Range<u64>>,
        urgency: Urgency,
        outcome: Option<Arc<Outcome>>,
    ) -> Self {
        Request {
            region: Some(region),
            ranges,
            next: 0,
            urgency,
            reads: 0,
            rounds_at_ceiling: 0,
            failure: None,
            outcome,
        }
    }

    /// The region, until the request is finished.
    pub(crate) fn region(&self) -> Option<&FetchedRegion> {
        self.region.as_ref()
    }

    /// The next page to look at, and how many follow it in its range, itself included.
    pub(crate) fn next_pages(&mut self) -> Option<(u64, u64)> {
        while let Some(range) = self.ranges.get(self.next) {
            if !range.is_empty() {
                return Some((range.start, range.end - range.start));
            }
            self.next += 1;
        }
        None
    }

    /// The page of a request for a single page, if nobody has looked at it.
    pub(crate) fn only_page(&self) -> Option<u64> {
        match &self.ranges[..] {
            [pages] if pages.end - pages.start == 1 => Some(pages.start),
            _ => None,
        }
    }

    /// Notes that this many pages have been looked at.
    pub(crate) fn advance(&mut self, pages: u64) {
        if let Some(range) = self.ranges.get_mut(self.next) {
            range.start += pages;
        }
    }

    /// Gives up the pages that have not been looked at.
    pub(crate) fn abandon(&mut self) {
        self.next = self.ranges.len();
    }

    /// Notes that a page could not be brought in; the first such page counts.
    pub(crate) fn fail(&mut self, page: u64, why: FaultError) {
        self.failure.get_or_insert((page, why));
    }

    /// Lets the region go and tells the outcome. Frees nothing but what a waker of the program's may free.
    pub(crate) fn finish(&mut self) {
        drop(self.region.take());
        if let Some(outcome) = &self.outcome {
            outcome.finish_part(self.failure.map(|(page, why)| Failure::Page(page, why)));
        }
    }
}
