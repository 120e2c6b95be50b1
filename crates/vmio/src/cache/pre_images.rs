//! Pre-images: pages of an atomic mapping as they were before they were stored to. A commit writes only what differs from them.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cache::copy_slots::{CopySlots, Slot};
use crate::options::MappingOptions;
use crate::sys::PAGE_BYTES;
use crate::sys::sparse_array::SparseArray;

/// The most pre-images at a time (16 MiB).
const PRE_IMAGES_MAX: u32 = 4096;
/// Pre-images take at most one page in this many of the cache.
const CAPACITY_SHARE: u32 = 16;

/// Copies of pages as the journal or the file has them. A pre-image is kept from the store that makes its page dirty until the
/// write of the page. A page that found no free slot has no pre-image, and is written whole.
pub(crate) struct PreImages {
    slots: CopySlots,
    /// For each page 0, or the number of its pre-image's slot plus one. Only the owner of the page's word changes it.
    of_page: SparseArray<AtomicU32>,
}

impl PreImages {
    /// For a mapping that may grow to this many bytes, in a cache of this capacity. `None` if the mapping has no journal, or a
    /// verifier that seals its pages.
    pub(crate) fn of(options: &MappingOptions, bytes: usize, capacity_pages: u32) -> io::Result<Option<Self>> {
        if options.journal.is_none() || options.verifier.is_some() {
            return Ok(None);
        }
        let slots = (capacity_pages / CAPACITY_SHARE).clamp(1, PRE_IMAGES_MAX);
        Ok(Some(PreImages { slots: CopySlots::new(slots)?, of_page: SparseArray::new(bytes / PAGE_BYTES)? }))
    }

    /// Keeps the pre-image of a page that the program is about to store to, if a slot is free; `fill` writes it. The page
    /// is ours, and has no pre-image.
    pub(crate) fn keep(&self, page: u64, fill: impl FnOnce(&mut [u8])) {
        if let Some(mut slot) = self.slots.take() {
            fill(self.slots.bytes(&mut slot));
            self.set(page, slot);
        }
    }

    fn set(&self, page: u64, slot: Slot) {
        debug_assert!(!self.has(page), "page {page} has a pre-image");
        self.of_page.get(page as usize).store(slot.number() + 1, Ordering::SeqCst);
        debug_assert!(self.has(page));
    }

    /// Whether a page has a pre-image. If the page is not ours, that may have changed by now.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.of_page.get(page as usize).load(Ordering::SeqCst) != 0
    }

    /// Takes the pre-image of a page of ours. The caller gives its slot back.
    pub(crate) fn take(&self, page: u64) -> Option<Slot> {
        let number = self.of_page.get(page as usize);
        // Most pages have none, and cost one load.
        let slot = number.load(Ordering::SeqCst).checked_sub(1)?;
        number.store(0, Ordering::SeqCst);
        debug_assert!(!self.has(page), "the page is not ours");
        Some(Slot::of_number(slot))
    }

    /// The bytes of a pre-image.
    pub(crate) fn bytes<'a>(&'a self, pre_image: &'a mut Slot) -> &'a [u8] {
        self.slots.bytes(pre_image)
    }

    /// Gives back the slot of a pre-image.
    pub(crate) fn give_back(&self, pre_image: Slot) {
        self.slots.give_back(pre_image);
    }

    /// Drops the pre-image of a page of ours, which is written whole.
    pub(crate) fn forget(&self, page: u64) {
        if let Some(pre_image) = self.take(page) {
            self.give_back(pre_image);
        }
    }
}
