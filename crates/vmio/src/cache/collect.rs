//! Write-back of a batch, up to the write: protect pages, copy them into a merge buffer, and let them go.
//!
//! A page stays readable throughout, and a thread that stores to it waits for the copy at most, never for the device.

use std::io;
use std::ops::Range;
use std::ptr;

use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::span::SpanGuard;
use vmio_core::page::span_of;
use vmio_core::page::visit::Visit;

use crate::backing::Access;
use crate::cache::destination::{Destination, epoch_of};
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::cache::view_tables::InSpan;
use crate::cache::write_batch::{BatchPage, Ticket, WriteBatch};
use crate::engine::DeactivatableFrames;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// Which dirty pages to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    /// Pages that the evictor may write and then evict, on such a visit.
    ToEvict(Visit),
    /// Pages that can be taken at once.
    Available,
    /// All dirty pages, for a sync of a range.
    All,
    /// Pages that became dirty in the sync epoch of this parity.
    Epoch(bool),
    /// Pages that the commit of this number has protected.
    Frozen(u64),
}

impl Select {
    fn epoch(self) -> Option<bool> {
        match self {
            Select::Epoch(epoch) => Some(epoch),
            Select::Frozen(commit) => Some(epoch_of(commit)),
            Select::ToEvict(_) | Select::Available | Select::All => None,
        }
    }

    /// Whether to write pages pinned for writing, too.
    fn includes_pinned(self) -> bool {
        matches!(self, Select::All | Select::Epoch(_) | Select::Frozen(_))
    }

    /// Whether a page with this word is selected.
    pub(crate) fn wants(self, word: Snapshot) -> bool {
        word.needs_write() && self.epoch().is_none_or(|epoch| epoch == word.epoch())
    }
}

impl BatchPage {
    /// The page's region.
    pub(super) fn region(&self) -> &Region {
        // SAFETY: a batch is filled and written by one call, whose caller keeps the region alive: an evictor through
        // the eviction gate, a syncing thread through its own handle.
        unsafe { Region::of(self.region) }
    }
}

impl WriteBatch {
    /// Empties it for the next round.
    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        for ticket in self.tickets.drain(..) {
            // SAFETY: a batch is filled and emptied by one call, whose caller keeps the region alive.
            unsafe { Region::of(ticket.region) }.hand_back(ticket.commit);
        }
    }

    /// Adds the selected dirty pages among some pages of a span, as far as the batch has room and the mapping reaches: from now
    /// on each is Clean with its write in flight. For a sync, also adds copies of pages pinned for writing, which stay dirty.
    /// The caller holds the span's lock. Returns the number of added pages. After an error the
    /// caller writes the batch all the same: over frames whose stores do not trap, it may hold pages in flight.
    pub(crate) fn collect(
        &mut self,
        region: &Region,
        pages: Range<u64>,
        select: Select,
        held: &SpanGuard<'_>,
    ) -> io::Result<usize> {
        let pages = region.table.pages_left_of(pages, held);
        if let Some(frames) = region.deactivatable() {
            return self.collect_tracked(region, frames, pages, select);
        }
        let start = self.pages.len();
        let span = span_of(pages.start);
        // Drawn before the first page is taken: so we take no page of a later commit, and the commit of these pages does not
        // end until we hand the ticket back.
        let destination = region.draw_destination(select);
        for page in pages {
            if self.room() == 0 {
                break;
            }
            // Most pages of a large file.
            if region.table.word(page).load().state() == State::Absent {
                continue;
            }
            let Some(pinned) = begin_write(region, page, select, destination) else { continue };
            self.pages.push(BatchPage { region: region.reference(), page, pinned, destination });
        }
        // Frozen pages are protected already.
        let protected = if let Select::Frozen(_) = select { Ok(()) } else { self.protect(region, start) };
        if let Err(error) = protected {
            for added in self.pages.drain(start..) {
                if added.pinned {
                    region.table.word(added.page).finish_write(None);
                } else {
                    region.table.word(added.page).fail_protect();
                }
            }
            // Not earlier: the commit must find the pages as they were. Nor later: nothing keeps the region for a batch without
            // pages.
            if let Destination::Spill(commit) = destination {
                region.hand_back(commit);
            }
            return Err(error);
        }
        if let Destination::Spill(commit) = destination {
            match self.pages.len() > start {
                true => self.tickets.push(Ticket { region: region.reference(), commit }),
                false => region.hand_back(commit),
            }
        }
        for slot in start..self.pages.len() {
            self.copy(region, slot);
        }
        let added = &self.pages[start..];
        let cleaned = added.iter().filter(|added| !added.pinned).count();
        region.table.span(span).remove_dirty(cleaned as u32);
        region.shared.write_back.remove_dirty(cleaned);
        Ok(added.len())
    }

    /// Protects from the first to the last added page, with one shootdown for each run. Pages pinned for writing are left out
    /// and end a run, since system calls would fail on them. Their number cannot grow while the span is locked.
    fn protect(&self, region: &Region, start: usize) -> io::Result<()> {
        let mut protected = self.pages[start..].iter().filter(|added| !added.pinned).map(|added| added.page);
        let Some(first) = protected.next() else { return Ok(()) };
        let last = protected.next_back().unwrap_or(first);
        let mut from = first;
        for page in first..=last + 1 {
            if page > last || region.table.word(page).load().is_pinned_for_writing() {
                if page > from {
                    let len = (page - from) as usize * PAGE_BYTES;
                    region.shared.telemetry.count(cpu::current(), Counter::ShootdownsWriteBack, 1);
                    region.shared.paging.frames.protect(region.table.address(from), len)?;
                }
                from = page + 1;
            }
        }
        Ok(())
    }

    /// Like [`Self::collect`], over frames whose stores the kernel notes. Takes the kernel's notes, and marks the words of
    /// stored pages that cannot be written now. Threads may store meanwhile: the copy may hold stores that came after the
    /// notes, and the kernel notes these anew. An error leaves all pages dirty that may be.
    fn collect_tracked(
        &mut self,
        region: &Region,
        frames: &dyn DeactivatableFrames,
        pages: Range<u64>,
        select: Select,
    ) -> io::Result<usize> {
        let start = self.pages.len();
        let takes_active = !matches!(select, Select::ToEvict(_)) && region.access == Access::ReadWrite;
        // The span may have no page in memory. Its page tables, where the notes are, must not go meanwhile.
        let inside = takes_active.then(|| InSpan::of(region, span_of(pages.start)));
        let asked = if takes_active { self.take_notes(region, frames, &pages) } else { Ok(()) };
        for page in pages.clone() {
            let word = region.table.word(page);
            let was_stored = takes_active && self.stored.contains((page - pages.start) as usize);
            let takes = asked.is_ok() && self.room() > 0 && (takes_active || word.load().is_inactive());
            match takes.then(|| begin_write_tracked(region, page, select, was_stored)).flatten() {
                Some(pinned) => self.pages.push(BatchPage {
                    region: region.reference(),
                    page,
                    pinned,
                    destination: Destination::Backing,
                }),
                None if was_stored => word.note_store(),
                None => {}
            }
        }
        drop(inside);
        asked?;
        self.copy_tracked(region, frames, start)?;
        Ok(self.pages.len() - start)
    }

    /// Takes the kernel's notes of stores to pages of a span, at each of the span's views.
    fn take_notes(&mut self, region: &Region, frames: &dyn DeactivatableFrames, pages: &Range<u64>) -> io::Result<()> {
        let len = (pages.end - pages.start) as usize * PAGE_BYTES;
        self.stored.clear();
        for view in region.views_of(span_of(pages.start)).iter() {
            region.shared.telemetry.count(cpu::current(), Counter::ShootdownsWriteBack, 1);
            let address = region.views.address_at(Place { view, page: pages.start });
            frames.stored_and_protect(address, len, &mut self.stored)?;
        }
        Ok(())
    }

    /// Copies added pages out of the memory file, active or inactive, neighbours together.
    fn copy_tracked(&mut self, region: &Region, frames: &dyn DeactivatableFrames, start: usize) -> io::Result<()> {
        let mut slot = start;
        while slot < self.pages.len() {
            let first = self.pages[slot].page;
            let run = self.pages[slot..].iter().zip(first..).take_while(|(added, page)| added.page == *page).count();
            // SAFETY: the slots are ours alone until a run made of them is queued.
            let target = unsafe { std::slice::from_raw_parts_mut(self.buffer.slot(slot), run * PAGE_BYTES) };
            if let Err(error) = frames.read(region.table.address(first), target) {
                for left in self.pages.drain(slot..) {
                    match left.pinned {
                        true => _ = region.table.word(left.page).finish_write(None),
                        false => {
                            region.table.word(left.page).fail_copy();
                            region.count_dirty(left.page);
                        }
                    }
                }
                return Err(error);
            }
            (slot..slot + run).for_each(|slot| self.finish_copy(region, slot));
            slot += run;
        }
        Ok(())
    }

    fn copy(&mut self, region: &Region, slot: usize) {
        debug_assert!(region.table.word(self.pages[slot].page).load().is_resident());
        // SAFETY: the slot is ours alone until a run made of it is queued; the source page is resident (Protecting,
        // or pinned) and readable. Where it is pinned for writing, a system call may change it meanwhile: the copy is
        // then torn, and the page is written again after the pin ends, since it stays Dirty.
        unsafe {
            let source = region.table.address(self.pages[slot].page) as *const u8;
            ptr::copy_nonoverlapping(source, self.buffer.slot(slot), PAGE_BYTES);
        }
        self.finish_copy(region, slot);
    }

    /// Turns the copy into the bytes for the device, and lets the page go.
    fn finish_copy(&mut self, region: &Region, slot: usize) {
        let added = self.pages[slot];
        // SAFETY: the slot is ours alone until a run made of it is queued, and a page long.
        let copy = unsafe { std::slice::from_raw_parts_mut(self.buffer.slot(slot), PAGE_BYTES) };
        region.prepare_copy(added.page, copy);
        region.dirty.pre_images.iter().for_each(|pre_images| pre_images.forget(added.page));
        if !added.pinned {
            region.table.word(added.page).finish_protect();
        }
    }
}

/// Makes a selected page ours to copy; true if the page is pinned for writing, and stays as it is. Leaves out a page that
/// another thread has in flight, wanted or not.
fn begin_write(region: &Region, page: u64, select: Select, destination: Destination) -> Option<bool> {
    let word = region.table.word(page);
    let only_epoch = destination.epoch().or(select.epoch());
    loop {
        let begun = match select {
            Select::ToEvict(visit) => word.begin_protect_to_evict(only_epoch, visit),
            _ => word.begin_protect(only_epoch),
        };
        let seen = match begun {
            Ok(_) => return Some(false),
            Err(_) if !select.includes_pinned() => return None,
            Err(seen) => seen,
        };
        if seen.state() == State::Upgrading {
            // A store trapped on a page that may be part of the sync: it is ready in an instant.
            word.wait_while(Snapshot::is_busy);
        } else if !select.wants(seen) || seen.in_flight() {
            return None;
        } else if word.begin_write_while_pinned(region.epoch()).is_ok() {
            return Some(true);
        }
        // Else the word has changed meanwhile, for example since a pin has ended: look again.
    }
}

/// Like [`begin_write`], over frames whose stores the kernel notes.
fn begin_write_tracked(region: &Region, page: u64, select: Select, was_stored: bool) -> Option<bool> {
    let word = region.table.word(page);
    loop {
        let seen = match word.begin_write_tracked(was_stored) {
            Ok(before) => {
                if before.state() == State::Dirty {
                    region.table.span(span_of(page)).remove_dirty(1);
                    region.shared.write_back.remove_dirty(1);
                }
                return Some(false);
            }
            Err(_) if !select.includes_pinned() => return None,
            Err(seen) => seen,
        };
        if seen.state() == State::Upgrading {
            // The page is being reactivated, or made dirty for a pin: it is ready in an instant.
            word.wait_while(Snapshot::is_busy);
        } else if seen.in_flight() || !(seen.needs_write() && seen.is_pinned_for_writing()) {
            return None;
        } else if word.begin_write_while_pinned(region.epoch()).is_ok() {
            return Some(true);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::backing::MemoryBacking;
    use crate::cache::region::REGIONS;
    use crate::journal::{Journal, JournalOptions};
    use crate::{Cache, Mapping, MappingOptions};

    /// A ticket that stayed would point to the region for as long as the batch is kept, and the next commit would wait for it.
    #[test]
    fn a_ticket_is_handed_back_if_pages_cannot_be_protected() {
        let journal = Journal::create(MemoryBacking::new(1 << 20).unwrap(), JournalOptions::new()).unwrap();
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let backing = MemoryBacking::new(PAGE_BYTES as u64).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new().atomic(&journal)).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        // SAFETY: the byte lies in the mapping.
        unsafe { AtomicU8::from_ptr(map.as_mut_ptr()) }.store(1, Ordering::Relaxed);
        // SAFETY: the page is the mapping's, and nobody looks at it any more. The engine does not know the new one.
        let other = unsafe {
            libc::mmap(
                map.as_mut_ptr().cast(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_eq!(other, map.as_mut_ptr().cast());
        let mut batch = WriteBatch::new(1, &region.shared.write_back.merge_buffers).unwrap();
        assert!(batch.collect(region, 0..1, Select::Available, &region.table.span(0).lock()).is_err());
        assert!(batch.pages().is_empty() && region.table.word(0).load().needs_write());
        assert!(batch.tickets.is_empty(), "it has a ticket for no page");
        // A page that is not protected cannot be committed either; but the commit does not hang.
        assert!(map.commit().is_err());
    }
}
