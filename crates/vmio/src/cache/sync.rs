//! Sync: everything that was dirty when it began is on the device, and durable, when it returns.

use std::io;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::cache::region::Region;
use crate::cache::write_batch::{Select, WriteBatch};
use crate::error::{Error, Result};
use crate::page::word::{Snapshot, State};
use crate::page::{SPAN_PAGES, span_of};
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

/// Pages that are protected and copied at a time: a thread that stores to one of them meanwhile waits for at most so
/// many copies (50 µs). A quarter of a span costs four shootdowns in place of one, little beside writing it.
const PART_PAGES: usize = SPAN_PAGES / 4;

impl Region {
    /// Writes the pages that were dirty at the call, of the whole mapping or of `[first, end)`, waits for every write
    /// of such a page that is in flight, and flushes the device. Pages that become dirty during a sync of the whole
    /// mapping are neither written nor held up (kmmap's msync, Kreon §3.3.1).
    pub(crate) fn sync_pages(&self, part: Option<Range<u64>>) -> Result<()> {
        let _signals = SignalsBlocked::new();
        let _one_at_a_time = self.sync_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let failures_before = self.failures().writes;
        let mut batch = self.shared.take_sync_batch().map_err(Error::system("allocating a merge buffer"))?;
        let (pages, select, whole) = match part {
            // A part must not end the epoch: the pages outside it would be taken for those of the epoch after.
            Some(part) => (part, Select::All, false),
            // Of a sync that failed, pages of either epoch may be left.
            None if self.sync_is_incomplete.swap(true, Ordering::SeqCst) => (0..self.pages(), Select::All, true),
            None => (0..self.pages(), Select::Epoch(self.flip_epoch()), true),
        };
        let written = self.write_selected(&mut batch, pages, select);
        batch.clear();
        self.shared.return_sync_batch(batch);
        written.map_err(Error::system("write-protecting dirty pages"))?;
        self.flush_device()?;
        let failure = {
            let failures = self.failures();
            let count = failures.writes - failures_before;
            failures.last_write.as_ref().filter(|_| count > 0).map(|(page, source)| (count, *page, copy_of(source)))
        };
        if let Some((failed_pages, page, source)) = failure {
            let offset = page * PAGE_BYTES as u64;
            return Err(Error::Write { backing: self.backing.describe(), offset, failed_pages, source });
        }
        if whole {
            self.sync_is_incomplete.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    fn write_selected(&self, batch: &mut WriteBatch, pages: Range<u64>, select: Select) -> io::Result<()> {
        let mut in_flight = Vec::new();
        let mut from = span_of(pages.start);
        while let Some(number) = self.dirty_spans.next_from(from) {
            if number * SPAN_PAGES as u64 >= pages.end {
                break;
            }
            from = number + 1;
            // Only a sync clears the mark, before it looks: a page that becomes dirty later sets it again.
            self.dirty_spans.remove(number);
            let written = self.write_span(batch, number, select, &mut in_flight);
            if written.is_err() || self.pages_of_span(number).any(|page| self.may_be_dirty(page)) {
                self.dirty_spans.insert(number);
            }
            written?;
        }
        batch.write(&self.shared);
        batch.clear();
        // What others had in flight when we came by.
        for page in in_flight {
            self.word(page).wait_while(Snapshot::in_flight);
        }
        Ok(())
    }

    /// Adds the selected pages of a span to the batch, writing it whenever it is full.
    fn write_span(
        &self,
        batch: &mut WriteBatch,
        number: u64,
        select: Select,
        in_flight: &mut Vec<u64>,
    ) -> io::Result<()> {
        // A page that is on its way in or being un-protected may be one of ours in an instant. Its thread may need
        // pages that our batch holds, or the span's lock: neither is kept meanwhile.
        let arriving = |word: Snapshot| matches!(word.state(), State::Loading | State::Upgrading);
        if self.pages_of_span(number).any(|page| arriving(self.word(page).load())) {
            batch.write(&self.shared);
            batch.clear();
            self.pages_of_span(number).for_each(|page| self.word(page).wait_while(arriving));
        }
        self.collect_parts(batch, number, select)?;
        // A page that somebody else had in flight, and that was stored to again, can be taken after that write only.
        let left = || {
            self.pages_of_span(number).filter(|page| {
                select.wants(self.word(*page).load()) && !self.word(*page).load().is_pinned_for_writing()
            })
        };
        if left().any(|page| self.word(page).load().in_flight()) {
            batch.write(&self.shared);
            batch.clear();
            left().for_each(|page| self.word(page).wait_while(Snapshot::in_flight));
            self.collect_parts(batch, number, select)?;
        }
        // Looked for last: an evictor may have put a page in flight until we had the lock.
        in_flight.extend(self.pages_of_span(number).filter(|page| self.word(*page).load().in_flight()));
        Ok(())
    }

    /// Collects a span part by part, writing the batch whenever it has no room for one.
    fn collect_parts(&self, batch: &mut WriteBatch, number: u64, select: Select) -> io::Result<()> {
        let pages = self.pages_of_span(number);
        for start in pages.clone().step_by(PART_PAGES) {
            if batch.room() < PART_PAGES {
                batch.write(&self.shared);
                batch.clear();
            }
            let part = start..pages.end.min(start + PART_PAGES as u64);
            batch.collect(self, part, select, &self.span(number).lock())?;
        }
        Ok(())
    }

    fn may_be_dirty(&self, page: u64) -> bool {
        matches!(self.word(page).load().state(), State::Dirty | State::Loading | State::Upgrading | State::Protecting)
    }

    /// A failed flush is for good: what the device lost of the writes before it cannot be told.
    fn flush_device(&self) -> Result<()> {
        let failed_before = self.failures().flush;
        let result = match failed_before {
            Some(kind) => Err(kind.into()),
            None => self.backing.flush(),
        };
        result.map_err(|source| {
            self.failures().flush.get_or_insert(source.kind());
            Error::Flush { backing: self.backing.describe(), source }
        })
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
