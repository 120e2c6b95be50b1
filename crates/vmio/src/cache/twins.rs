//! What pages of an atomic mapping were before they were stored to: a commit need only write what is different.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cache::copy_slots::{CopySlots, Slot};
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::options::MappingOptions;
use crate::sys::PAGE_BYTES;
use crate::sys::sparse_array::SparseArray;

/// The most twins at a time (16 MiB).
const TWINS_MAX: u32 = 4096;
/// They take a sixteenth of what the cache takes at most.
const CAPACITY_SHARE: u32 = 16;

/// Copies of pages as the journal or the file has them, from the store that made each page dirty until it is written. As many
/// as there is room for: a page without a twin is written whole.
pub(crate) struct Twins {
    slots: CopySlots,
    /// For each page 0, or one more than the number of its twin's slot. It is changed by who owns the page's word alone.
    of_page: SparseArray<AtomicU32>,
}

impl Twins {
    /// For a mapping that may grow to so many bytes: none if changes do not go to a journal, or go there sealed by a verifier.
    pub(crate) fn of(options: &MappingOptions, bytes: usize, shared: &Shared) -> io::Result<Option<Self>> {
        if options.journal.is_none() || options.verifier.is_some() {
            return Ok(None);
        }
        let slots = (shared.capacity_pages() / CAPACITY_SHARE).clamp(1, TWINS_MAX);
        Ok(Some(Twins { slots: CopySlots::new(slots)?, of_page: SparseArray::new(bytes / PAGE_BYTES)? }))
    }

    /// Keeps what is about to be stored to, if there is room: a page of ours, which has no twin.
    pub(crate) fn keep_page(&self, region: &Region, page: u64) {
        if let Some(mut slot) = self.slots.take() {
            self.slots.copy_page(region, page, &mut slot);
            // What the program has stored behind the end is in memory alone: neither the journal nor the file has it.
            region.clear_behind_end(page, self.slots.bytes(&mut slot));
            self.set(page, slot);
        }
    }

    /// The same, of a page that is about to come into memory.
    pub(crate) fn keep(&self, page: u64, data: &[u8]) {
        if let Some(mut slot) = self.slots.take() {
            self.slots.bytes(&mut slot).copy_from_slice(&data[..PAGE_BYTES]);
            self.set(page, slot);
        }
    }

    fn set(&self, page: u64, slot: Slot) {
        debug_assert!(!self.has(page), "page {page} has a twin");
        self.of_page.get(page as usize).store(slot.number() + 1, Ordering::SeqCst);
    }

    /// Whether a page has one; may have changed by now, unless the page is ours.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.of_page.get(page as usize).load(Ordering::SeqCst) != 0
    }

    /// Takes the twin of a page of ours away, which is to be given back.
    pub(crate) fn take(&self, page: u64) -> Option<Slot> {
        let number = self.of_page.get(page as usize);
        // Most pages have none: that costs no more than a look.
        let slot = number.load(Ordering::SeqCst).checked_sub(1)?;
        number.store(0, Ordering::SeqCst);
        Some(Slot::of_number(slot))
    }

    /// The bytes of a twin.
    pub(crate) fn bytes<'a>(&'a self, twin: &'a mut Slot) -> &'a [u8] {
        self.slots.bytes(twin)
    }

    /// Gives a twin back.
    pub(crate) fn give_back(&self, twin: Slot) {
        self.slots.give_back(twin);
    }

    /// A page of ours is written whole.
    pub(crate) fn forget(&self, page: u64) {
        if let Some(twin) = self.take(page) {
            self.give_back(twin);
        }
    }
}
