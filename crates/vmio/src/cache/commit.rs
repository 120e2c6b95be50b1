//! Commits of regions whose changes reach the file by commits only: how a commit treats their pages, and when stores wait.
//!
//! A dirty page has the epoch of the commit that it belongs to. To take its point in time, a commit keeps all threads from making
//! pages writable, protects every dirty page, and increments the number of the present commit. From then on these pages are
//! frozen.

use std::io;
use std::ops::Range;

use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::word::PinOutcome;
use vmio_core::page::{SPAN_PAGES, span_of};
use vmio_core::store_gate::Passing;

use crate::cache::collect::Select;
use crate::cache::copy_slots::Slot;
use crate::cache::destination::Destination;
use crate::cache::region::Region;
use crate::cache::region::dirty_spans::DirtySpans;
use crate::cache::saved_pages::SavedPage;
use crate::cache::write_batch::WriteBatch;
use crate::error::{Error, Result};
use crate::journal::{CommitDeltas, Participant, RecordKind};
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// Pages that are copied at a time, with the span's lock held.
const PART_PAGES: usize = SPAN_PAGES / 4;
/// Two system calls protect dirty pages that are further apart: looking at the entries between them would cost as much as the
/// second call.
const GAP_PAGES: u64 = 64;

/// The right to make some pages writable, until it is dropped: by then their words say Dirty.
pub(super) struct StorePermit<'a> {
    /// The epoch of dirty pages that are no part of a commit under way; `None` without a journal.
    pub(super) epoch: Option<bool>,
    _opens: Option<Opens<'a>>,
}

/// Pages that a thread inside the store gate makes writable.
struct Opens<'a> {
    spans: &'a DirtySpans,
    pages: Range<u64>,
    _passing: Passing<'a>,
}

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        // Not before the pages are writable: a commit that protects in advance takes the mark away. And before this thread leaves
        // the gate: after that the commit looks for the last time. The pages lie in two spans at most.
        self.spans.insert(span_of(self.pages.start));
        self.spans.insert(span_of(self.pages.end - 1));
    }
}

impl Region {
    /// The right to make pages writable; `None` while a commit takes its point in time.
    pub(super) fn permit_store(&self, pages: Range<u64>) -> Option<StorePermit<'_>> {
        let (Some(backing), Some(spans)) = (&self.journaled, &self.dirty.open_spans) else {
            return Some(StorePermit { epoch: None, _opens: None });
        };
        let _passing = backing.store_gate().try_enter(cpu::current())?;
        // The epoch does not change while we are inside the gate.
        Some(StorePermit { epoch: Some(self.epoch()), _opens: Some(Opens { spans, pages, _passing }) })
    }

    /// Like [`Self::permit_store`], for a page in memory. `None` tells the caller to look again: this call has waited, for a
    /// commit's point in time or for the copy of a frozen page, or it has made that copy and the page writable.
    pub(super) fn permit_store_to(&self, page: u64) -> Option<StorePermit<'_>> {
        let word = self.table.word(page);
        let Some(permit) = self.permit_store(page..page + 1) else {
            self.shared.telemetry.count(cpu::current(), Counter::FaultWaits, 1);
            self.journaled.iter().for_each(|backing| backing.store_gate().wait());
            return None;
        };
        match permit.epoch {
            Some(epoch) if word.load().is_frozen(epoch) => {
                let is_saved = self.save_frozen(page, epoch);
                drop(permit);
                if is_saved {
                    return None;
                }
                self.shared.telemetry.count(cpu::current(), Counter::FaultWaits, 1);
                word.wait_while(|seen| seen.is_frozen(epoch));
                None
            }
            _ => Some(permit),
        }
    }

    /// Copies a frozen page for the commit and makes it writable, if a slot is free. The caller has a permit to store.
    fn save_frozen(&self, page: u64, present: bool) -> bool {
        let word = self.table.word(page);
        let Some((saved, mut copy)) = self.dirty.saved.as_ref().and_then(|saved| Some((saved, saved.slots.take()?)))
        else {
            return false;
        };
        if word.begin_save(present).is_err() {
            saved.slots.give_back(copy);
            return false;
        }
        let core = cpu::current();
        self.shared.telemetry.count(core, Counter::WriteProtectFaults, 1);
        self.shared.telemetry.count(core, Counter::ShootdownsStore, 1);
        let bytes = saved.slots.bytes(&mut copy);
        bytes.copy_from_slice(self.table.bytes_of(page));
        // The file may have grown by the time the copy is written: bytes behind the present end are no part of it.
        self.clear_behind_end(page, bytes);
        // The page gets no new pre-image: the copy's bytes are not yet in the journal, and may never be.
        let pre_image = self.dirty.pre_images.as_ref().and_then(|pre_images| pre_images.take(page));
        // Queued before the word is released: a thread that finds no frozen page left finds all copies.
        saved.push(SavedPage { page, copy, pre_image });
        self.announce_dirty(page);
        // A failure leaves the page protected: the next store traps again, and gets the error.
        let _ = self.frames().unprotect(self.table.address(page), PAGE_BYTES);
        word.finish_save(present);
        true
    }

    /// Writes the copies that stores have made so far.
    fn write_saved(&self, deltas: &mut CommitDeltas<'_>) -> Result<()> {
        let Some(saved) = &self.dirty.saved else { return Ok(()) };
        let destination = Destination::Commit(deltas.commit());
        loop {
            deltas.make_room()?;
            let Some(SavedPage { page, mut copy, pre_image }) = saved.next() else { return Ok(()) };
            let bytes = saved.slots.bytes(&mut copy);
            self.prepare_copy(page, bytes);
            let is_written = match self.add_delta(deltas, page, pre_image, bytes) {
                Some(0) => self.settle_write(page, None, destination),
                Some(_) => true,
                None => self.settle_write(page, self.write(destination, &|_| page, bytes).err(), destination),
            };
            saved.slots.give_back(copy);
            if !is_written {
                return Err(self.why_not_written());
            }
        }
    }

    /// Adds the bytes that differ from a page's pre-image to the deltas of the commit, if the page has a pre-image and few bytes
    /// differ. The page's write ends with the write of the deltas; with 0 bytes there is no write. There must be room for the
    /// delta.
    fn add_delta(
        &self,
        deltas: &mut CommitDeltas<'_>,
        page: u64,
        pre_image: Option<Slot>,
        after: &[u8],
    ) -> Option<usize> {
        let (Some(backing), Some(pre_images), Some(mut pre_image)) =
            (&self.journaled, &self.dirty.pre_images, pre_image)
        else {
            return None;
        };
        let added = deltas.add(backing.joined(), page, pre_images.bytes(&mut pre_image), after);
        pre_images.give_back(pre_image);
        self.shared.telemetry.count(cpu::current(), Counter::WrittenBytes, added.unwrap_or(0) as u64);
        added
    }

    /// Keeps a page of ours as its own pre-image, before the program stores to it. The content of a page in flight, or never
    /// read, may be neither in the journal nor in the file: such a page gets none.
    pub(super) fn keep_pre_image(&self, page: u64, before: Snapshot) {
        let is_known = before.state() == State::Clean && !before.in_flight() && !before.is_fresh();
        if let Some(pre_images) = self.dirty.pre_images.as_ref().filter(|_| is_known) {
            pre_images.keep(page, |copy| {
                copy.copy_from_slice(self.table.bytes_of(page));
                // Bytes stored behind the end are in memory alone: neither the journal nor the file has them.
                self.clear_behind_end(page, copy);
            });
        }
    }

    /// Chooses where the copies of selected pages go. The caller must hand back a ticket that comes with it.
    pub(super) fn draw_destination(&self, select: Select) -> Destination {
        match (&self.journaled, select) {
            (_, Select::Frozen(commit)) => Destination::Commit(commit),
            (Some(backing), _) => Destination::Spill(backing.draw()),
            (None, _) => Destination::Backing,
        }
    }

    pub(super) fn hand_back(&self, commit: u64) {
        self.journaled.iter().for_each(|backing| backing.hand_back(commit));
    }

    pub(super) fn note_lost_image(&self, commit: u64) {
        self.journaled.iter().for_each(|backing| backing.note_lost_image(commit));
    }

    /// Writes pages, in the order of their numbers. They are neighbours unless they go to the journal.
    pub(super) fn write(&self, destination: Destination, number: &dyn Fn(usize) -> u64, data: &[u8]) -> io::Result<()> {
        match (destination, &self.journaled) {
            (Destination::Spill(commit), Some(backing)) => backing.append(RecordKind::Spill, commit, number, data),
            (Destination::Commit(commit), Some(backing)) => backing.append(RecordKind::Batch, commit, number, data),
            _ => self.backing.write_at(number(0) * PAGE_BYTES as u64, data),
        }
    }

    /// Protects the dirty pages of a span, with one shootdown for pages that are close to each other. Evictors that had the
    /// span's lock before have let their pages go.
    fn freeze_span(&self, number: u64) -> io::Result<()> {
        let _held = self.table.span(number).lock();
        let is_dirty = |page: &u64| self.table.word(*page).load().state() == State::Dirty;
        let mut dirty = self.table.pages_of_span(number).filter(is_dirty).peekable();
        while let Some(first) = dirty.next() {
            let mut last = first;
            while let Some(next) = dirty.next_if(|next| next - last <= GAP_PAGES) {
                last = next;
            }
            self.shared.telemetry.count(cpu::current(), Counter::ShootdownsWriteBack, 1);
            self.frames().protect(self.table.address(first), (last + 1 - first) as usize * PAGE_BYTES)?;
        }
        Ok(())
    }

    fn write_frozen(&self, batch: &mut WriteBatch, deltas: &mut CommitDeltas<'_>) -> Result<()> {
        let mut from = 0;
        while let Some(number) = self.dirty.spans.next_from(from) {
            from = number + 1;
            // Only a commit clears the mark, before it looks at the pages: a page that becomes dirty later sets it again.
            self.dirty.spans.remove(number);
            let written = self.write_frozen_span(batch, number, deltas);
            if written.is_err() || self.table.pages_of_span(number).any(|page| self.needs_another_look(page)) {
                self.dirty.spans.insert(number);
            }
            written?;
            self.write_saved(deltas)?;
        }
        self.write_batch(batch)?;
        self.write_saved(deltas)
    }

    fn write_frozen_span(&self, batch: &mut WriteBatch, number: u64, deltas: &mut CommitDeltas<'_>) -> Result<()> {
        let select = Select::Frozen(deltas.commit());
        loop {
            let pages = self.table.pages_of_span(number);
            self.write_frozen_deltas(pages.clone(), deltas)?;
            for start in pages.clone().step_by(PART_PAGES) {
                if batch.room() < PART_PAGES {
                    self.write_batch(batch)?;
                }
                let part = start..pages.end.min(start + PART_PAGES as u64);
                let collected = batch.collect(self, part, select, &self.table.span(number).lock());
                collected.map_err(Error::system("write-protecting dirty pages"))?;
            }
            // A page that was stored to again while an older image was in flight can be taken once that image has landed.
            let mut left = pages.filter(|page| select.wants(self.table.word(*page).load())).peekable();
            if left.peek().is_none() {
                return Ok(());
            }
            self.write_batch(batch)?;
            left.for_each(|page| self.table.word(page).wait_while(|seen| select.wants(seen) && seen.in_flight()));
        }
    }

    /// Adds deltas for the frozen pages that have a pre-image.
    fn write_frozen_deltas(&self, pages: Range<u64>, deltas: &mut CommitDeltas<'_>) -> Result<()> {
        let Some(pre_images) = &self.dirty.pre_images else { return Ok(()) };
        let destination = Destination::Commit(deltas.commit());
        // Bytes behind the end are no part of the file.
        let whole = self.backing.len() / PAGE_BYTES as u64;
        for page in pages.filter(|page| pre_images.has(*page) && *page < whole) {
            // This may wait, so it comes before a page is ours.
            deltas.make_room()?;
            let word = self.table.word(page);
            let Ok(before) = word.begin_protect(destination.epoch()) else { continue };
            // A frozen page is protected already.
            let added = self.add_delta(deltas, page, pre_images.take(page), self.table.bytes_of(page));
            // A thread that has the page pinned may have copied a store that was taken back since. Only a new version tells it
            // so.
            let Some(bytes) = added.filter(|bytes| *bytes > 0 || before.pins() == 0) else {
                // Frozen as before, to be written whole.
                word.fail_protect();
                continue;
            };
            word.finish_protect();
            self.table.span(span_of(page)).remove_dirty(1);
            self.shared.write_back.remove_dirty(1);
            if bytes == 0 {
                word.finish_write(None);
            }
        }
        Ok(())
    }

    fn write_batch(&self, batch: &mut WriteBatch) -> Result<()> {
        batch.write(&self.shared);
        let failed = batch.failed();
        batch.clear();
        if failed == 0 {
            return Ok(());
        }
        Err(self.why_not_written())
    }

    fn why_not_written(&self) -> Error {
        let source = self.dirty.failures().first_write.take().map(|(_, source)| source);
        let source = source.unwrap_or_else(|| io::ErrorKind::StorageFull.into());
        match &self.journaled {
            Some(backing) => backing.commit_error(source),
            None => Error::system("writing a page of a commit")(source),
        }
    }
}

impl Participant for Region {
    fn protect(&self) -> Result<()> {
        let Some(open) = &self.dirty.open_spans else { return Ok(()) };
        let mut from = 0;
        while let Some(number) = open.next_from(from) {
            from = number + 1;
            // Before the look: a thread that makes a page writable later marks the span again.
            open.remove(number);
            self.freeze_span(number).map_err(|error| {
                open.insert(number);
                Error::system("write-protecting dirty pages")(error)
            })?;
        }
        Ok(())
    }

    fn write(&self, deltas: &mut CommitDeltas<'_>) -> Result<()> {
        self.dirty.failures().first_write = None;
        let mut batch = self.shared.write_back.take_sync_batch().map_err(Error::system("allocating a merge buffer"))?;
        let written = self.write_frozen(&mut batch, deltas);
        // After an error, pages in the batch are still in flight.
        let rest = self.write_batch(&mut batch);
        self.shared.write_back.return_sync_batch(batch);
        written.and(rest)
    }

    fn settle(&self, page: u64, commit: u64, written: io::Result<()>) {
        self.settle_write(page, written.err(), Destination::Commit(commit));
    }

    fn copy_clean(&self, page: u64, target: &mut [u8], is_newest: &dyn Fn() -> bool) -> bool {
        // A verifier seals copies, so the file does not have the bytes that are in memory.
        if self.verifier.is_some() || page >= self.table.pages() {
            return false;
        }
        let word = self.table.word(page);
        let is_clean = || {
            let seen = word.load();
            seen.state() == State::Clean && !seen.in_flight() && !seen.is_poisoned() && !seen.is_fresh()
        };
        if !is_clean() || word.pin(false) != PinOutcome::Pinned {
            return false;
        }
        self.table.copy_pinned(page, target);
        // If the page was stored to meanwhile and is clean again, it has another version, since it is pinned.
        let is_copied = is_clean() && is_newest();
        word.unpin();
        is_copied
    }

    fn pass_on(&self, _commit: u64) {
        let present = self.epoch();
        let give_up = || {
            // The pages of these copies are newer, and stay dirty.
            let Some(saved) = &self.dirty.saved else { return };
            while let Some(SavedPage { page, copy, pre_image }) = saved.next() {
                saved.slots.give_back(copy);
                if let (Some(pre_images), Some(pre_image)) = (&self.dirty.pre_images, pre_image) {
                    pre_images.give_back(pre_image);
                }
                self.table.word(page).finish_write(None);
            }
        };
        give_up();
        let mut from = 0;
        while let Some(number) = self.dirty.spans.next_from(from) {
            from = number + 1;
            self.table.pages_of_span(number).for_each(|page| {
                let word = self.table.word(page);
                let is_saved_now = |seen: Snapshot| seen.state() == State::Upgrading;
                loop {
                    // A store may be copying the page. It has queued the copy by the time it lets the page go.
                    word.wait_while(is_saved_now);
                    word.thaw(present);
                    // Unless another copy has begun in between, the page is no longer frozen, and no copy begins.
                    if !is_saved_now(word.load()) {
                        break;
                    }
                }
            });
        }
        give_up();
    }
}
