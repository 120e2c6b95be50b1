//! Sync: when a sync returns, everything that was dirty when it began is on the device and durable.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::cache::collect::Select;
use crate::cache::region::Region;
use crate::cache::region::dirty_tracking::SyncGuard;
use crate::cache::write_batch::WriteBatch;
use crate::error::{Error, Result};
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;
use crate::telemetry::counters::Timed;
use crate::telemetry::layout::Latency;

/// A sync protects and copies this many pages at a time. A thread that stores to one of them meanwhile waits for at
/// most this many copies (50 µs). A quarter of a span costs four shootdowns in place of one, little beside writing it.
const PART_PAGES: usize = SPAN_PAGES / 4;

/// A sync that has begun, and the pages that belong to it.
pub(crate) struct BegunSync {
    select: Select,
    failures_before: u64,
    pages: Range<u64>,
    whole: bool,
    started: Instant,
}

impl Region {
    /// Begins a sync of the whole mapping: pages that become dirty from now on are not part of it.
    pub(crate) fn begin_sync(&self, _lock: &SyncGuard<'_>) -> BegunSync {
        let failures_before = {
            let mut failures = self.dirty.failures();
            failures.first_write = None;
            failures.writes
        };
        // A failed sync may have left pages of either epoch. Where the kernel notes stores, it does not say when they
        // came.
        let select = match self.dirty.sync_is_incomplete.swap(true, Ordering::SeqCst) || self.deactivatable().is_some()
        {
            true => Select::All,
            false => Select::Epoch(self.dirty.flip_epoch()),
        };
        BegunSync { select, failures_before, pages: 0..self.table.pages(), whole: true, started: Instant::now() }
    }

    /// Begins a sync of some pages. It does not end the epoch: pages outside the range would then pass for pages of the
    /// epoch after.
    pub(crate) fn begin_sync_of(&self, pages: Range<u64>, _lock: &SyncGuard<'_>) -> BegunSync {
        let mut failures = self.dirty.failures();
        failures.first_write = None;
        BegunSync {
            select: Select::All,
            failures_before: failures.writes,
            pages,
            whole: false,
            started: Instant::now(),
        }
    }

    /// Writes the pages that were dirty when the sync began, waits for every write of such a page in flight, and
    /// flushes the device. A sync of the whole mapping neither writes nor holds up pages that became dirty after it
    /// began (kmmap's msync, Kreon §3.3.1). The caller has signals blocked.
    pub(crate) fn finish_sync(&self, begun: BegunSync, _lock: SyncGuard<'_>) -> Result<()> {
        let _timed = Timed::since(begun.started, &self.shared.telemetry.counters, Latency::Sync);
        let mut batch = self.shared.write_back.take_sync_batch().map_err(Error::system("allocating a merge buffer"))?;
        let written = self.write_selected(&mut batch, begun.pages, begun.select);
        batch.clear();
        self.shared.write_back.return_sync_batch(batch);
        written.map_err(Error::system("write-protecting dirty pages"))?;
        self.flush_device()?;
        let failure = {
            let failures = self.dirty.failures();
            debug_assert!(failures.writes >= begun.failures_before);
            let count = failures.writes - begun.failures_before;
            failures.first_write.as_ref().filter(|_| count > 0).map(|(page, source)| (count, *page, copy_of(source)))
        };
        if let Some((failed_pages, page, source)) = failure {
            let offset = page * PAGE_BYTES as u64;
            return Err(Error::Write { backing: self.backing.describe(), offset, failed_pages, source });
        }
        if begun.whole {
            self.dirty.sync_is_incomplete.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Syncs the whole mapping, or some pages of it.
    pub(crate) fn sync_pages(&self, part: Option<Range<u64>>) -> Result<()> {
        let _signals = SignalsBlocked::new();
        let lock = self.dirty.lock_sync();
        let begun = match part {
            Some(pages) => self.begin_sync_of(pages, &lock),
            None => self.begin_sync(&lock),
        };
        self.finish_sync(begun, lock)
    }

    /// The error for this many pages of a range that could not be written. The caller has signals blocked.
    pub(crate) fn write_error(&self, pages: &Range<u64>, failed_pages: u64) -> Error {
        let failures = self.dirty.failures();
        // A sync that has begun since has forgotten the reason.
        let first = failures.first_write.as_ref();
        let page = first.map(|(page, _)| *page).filter(|page| pages.contains(page)).unwrap_or(pages.start);
        let source = first.map_or_else(|| io::Error::other("the next sync says why"), |(_, source)| copy_of(source));
        Error::Write { backing: self.backing.describe(), offset: page * PAGE_BYTES as u64, failed_pages, source }
    }

    fn write_selected(&self, batch: &mut WriteBatch, pages: Range<u64>, select: Select) -> io::Result<()> {
        let mut in_flight = Vec::new();
        let mut from = span_of(pages.start);
        while let Some(number) = self.dirty.spans.next_from(from) {
            if number * SPAN_PAGES as u64 >= pages.end {
                break;
            }
            from = number + 1;
            // Only a sync clears the mark, before it looks at the pages: a page that becomes dirty later sets it again.
            self.dirty.spans.remove(number);
            let written = self.write_span(batch, number, select, &mut in_flight);
            if written.is_err() || self.table.pages_of_span(number).any(|page| self.needs_another_look(page)) {
                self.dirty.spans.insert(number);
            }
            if written.is_err() {
                // The pages in the batch are in flight already.
                batch.write(&self.shared);
                batch.clear();
            }
            written?;
        }
        batch.write(&self.shared);
        batch.clear();
        // Pages that other threads had in flight when we looked.
        for page in in_flight {
            self.table.word(page).wait_while(Snapshot::in_flight);
        }
        Ok(())
    }

    /// Adds the selected pages of a span to the batch, and writes the batch whenever it is full.
    fn write_span(
        &self,
        batch: &mut WriteBatch,
        number: u64,
        select: Select,
        in_flight: &mut Vec<u64>,
    ) -> io::Result<()> {
        // A page that is on its way in or being un-protected may be part of this sync in an instant. Its thread may
        // need pages that our batch holds, or the span's lock: we keep neither meanwhile.
        let arriving = |word: Snapshot| matches!(word.state(), State::Loading | State::Upgrading);
        if self.table.pages_of_span(number).any(|page| arriving(self.table.word(page).load())) {
            batch.write(&self.shared);
            batch.clear();
            self.table.pages_of_span(number).for_each(|page| self.table.word(page).wait_while(arriving));
        }
        self.collect_parts(batch, number, select)?;
        // A page that another thread had in flight and that was stored to again can be taken only after that write.
        // Once is enough: a write that begins after this has the bytes that the sync wants, and the sync waits for it
        // below.
        let left = || self.table.pages_of_span(number).filter(|page| select.wants(self.table.word(*page).load()));
        if left().next().is_some() {
            batch.write(&self.shared);
            batch.clear();
            left().for_each(|page| self.table.word(page).wait_while(Snapshot::in_flight));
            self.collect_parts(batch, number, select)?;
        }
        // Last, since an evictor may have put a page in flight until we had the lock.
        in_flight.extend(self.table.pages_of_span(number).filter(|page| self.table.word(*page).load().in_flight()));
        Ok(())
    }

    /// Collects a span part by part, and writes the batch whenever it has no room for a part.
    fn collect_parts(&self, batch: &mut WriteBatch, number: u64, select: Select) -> io::Result<()> {
        let pages = self.table.pages_of_span(number);
        for start in pages.clone().step_by(PART_PAGES) {
            if batch.room() < PART_PAGES {
                batch.write(&self.shared);
                batch.clear();
            }
            let part = start..pages.end.min(start + PART_PAGES as u64);
            batch.collect(self, part, select, &self.table.span(number).lock())?;
        }
        Ok(())
    }

    /// Whether the next sync must look at a page: it is dirty or may become so, or an evictor has put it in flight
    /// since this sync looked.
    pub(super) fn needs_another_look(&self, page: u64) -> bool {
        let word = self.table.word(page).load();
        let may_be_dirty = [State::Dirty, State::Loading, State::Upgrading, State::Protecting].contains(&word.state());
        may_be_dirty || word.in_flight() || self.deactivatable().is_some() && word.is_resident()
    }

    /// Flushes the device. A failed flush is for good: nobody can tell which of the writes before it the device has
    /// lost.
    fn flush_device(&self) -> Result<()> {
        let failed_before = self.dirty.failures().flush;
        let result = match failed_before {
            Some(kind) => Err(kind.into()),
            None => self.backing.flush(),
        };
        result.map_err(|source| {
            self.dirty.failures().flush.get_or_insert(source.kind());
            Error::Flush { backing: self.backing.describe(), source }
        })
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
