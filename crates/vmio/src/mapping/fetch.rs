//! Fetches pages in the background.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::cache::fetch::{Outcome, Urgency};
use crate::error::Result;
use crate::mapped_file::touched_pages;
use crate::mapping::Mapping;

impl Mapping {
    /// Begins to fetch every page that some ranges touch, and returns at once a future that is ready when all of them are resident.
    ///
    /// Any executor can poll it. The reads are under way from the call on, with or without polls.
    ///
    /// The future keeps the mapping open. Dropping it does not stop the fetch. Nothing holds the pages once they are resident: the
    /// cache may evict pages fetched beyond its capacity, or long before their use. [`crate::CacheBuilder::pages_in_flight`] limits
    /// the pages under way. The rest waits for them, and also while the cache is full of dirty pages.
    ///
    /// Threads of the cache fetch the pages and call the future's waker. Wakers must neither touch mapped memory, nor advise, nor
    /// drop a mapping. Where a signal handler of the program touches mapped memory, block its signal in threads that poll fetches.
    /// Else the handler could interrupt the executor while it holds a lock which its waker takes.
    ///
    /// # Errors
    ///
    /// The future returns the first error, one of those of [`Self::ensure`]. The fetch still brings in the other pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// futures::executor::block_on(map.fetch([0..64 << 10, 512 << 10..576 << 10]))?;
    /// assert!(map.is_resident(0) && map.is_resident(512 << 10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn fetch(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Fetch {
        let fetch = |state| Fetch { mapping: self.clone(), state };
        let begun = self.absent_pages(ranges).and_then(|pages| match pages.is_empty() {
            true => Ok(None),
            false => self.file().fetch(pages, Urgency::Wanted).map(Some),
        });
        match begun {
            Ok(Some(outcome)) => fetch(State::Begun(outcome)),
            Ok(None) => fetch(State::Ended(Ok(()))),
            Err(error) => fetch(State::Ended(Err(error))),
        }
    }

    /// Begins to fetch pages that the program may need soon, and returns at once.
    ///
    /// A prefetch is a guess, and takes little from others: a call brings in at most an eighth of the cache, from the first ranges.
    ///
    /// The cache keeps a reserve of free pages for misses, and refills it by evicting the coldest pages. A prefetch gives up where
    /// it would need the last half of that reserve: 1 in 128 pages of the cache, but at least 8 pages and at most 8192. An
    /// unreadable page is an error only of the access that needs it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), or [`Error::System`](crate::Error::System) if no thread can be started.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// map.prefetch([0..64 << 10, 512 << 10..576 << 10])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefetch(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<()> {
        let mut pages = self.absent_pages(ranges)?;
        let mut room = self.file().guesses_max();
        for range in &mut pages {
            range.end = range.end.min(range.start + room);
            room -= range.end - range.start;
        }
        pages.retain(|range| !range.is_empty());
        if pages.is_empty() { Ok(()) } else { self.file().fetch(pages, Urgency::Guessed).map(drop) }
    }

    /// The pages of ranges of bytes, without the ranges that are in memory.
    fn absent_pages(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<Range<u64>>> {
        let mut pages = Vec::new();
        for range in ranges {
            if self.is_active(&range) {
                continue;
            }
            self.check_range(&range)?;
            if !range.is_empty() {
                pages.push(touched_pages(&range));
            }
        }
        Ok(pages)
    }
}

/// A fetch under way: see [`Mapping::fetch`].
#[must_use = "a fetch that is not awaited says nothing about the pages; `prefetch` is for that"]
pub struct Fetch {
    mapping: Mapping,
    state: State,
}

enum State {
    Begun(Arc<Outcome>),
    Ended(Result<()>),
}

impl Future for Fetch {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if let State::Begun(outcome) = &this.state {
            // The threads that fetch are the parent's.
            this.mapping.file().check_not_forked()?;
            let failure = std::task::ready!(outcome.poll(context.waker()));
            this.state = State::Ended(failure.map_or(Ok(()), |failure| Err(this.mapping.file().fetch_error(failure))));
        }
        match &mut this.state {
            State::Begun(_) => Poll::Pending,
            State::Ended(result) => Poll::Ready(std::mem::replace(result, Ok(()))),
        }
    }
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if matches!(self.state, State::Begun(_)) { "under way" } else { "ended" };
        write!(out, "Fetch from {}, {state}", self.mapping.describe())
    }
}
