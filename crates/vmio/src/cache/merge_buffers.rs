//! Merge buffers: write-back copies dirty pages to them before it writes.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmio_core::page::SPAN_PAGES;

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// Pages of a worker's merge buffer (2 MiB).
pub(crate) const BATCH_PAGES: usize = SPAN_PAGES;
/// Pages of the merge buffer of a thread that has to evict for itself, and so the pages that it evicts at a time.
pub(crate) const DIRECT_PAGES: usize = 64;
/// The most workers whose merge buffers a device may have registered: the default number of workers on the largest machines.
pub(super) const SHARED_BATCHES_MAX: usize = 16;

/// The buffers that most of write-back uses. They lie one behind the other, so that a device can register them as one
/// range.
pub(crate) struct MergeBuffers {
    memory: Reservation,
    slots: Box<[Slot]>,
}

struct Slot {
    /// Where the slot lies in the memory, in pages.
    pages: Range<usize>,
    taken: AtomicBool,
}

impl MergeBuffers {
    /// Buffers of these sizes in pages. They cost nothing until they are touched.
    pub(crate) fn new(sizes: impl IntoIterator<Item = usize>) -> io::Result<Self> {
        let mut end = 0;
        let slot = |pages| {
            let start = end;
            end += pages;
            Slot { pages: start..end, taken: AtomicBool::new(false) }
        };
        let slots = sizes.into_iter().map(slot).collect();
        Ok(MergeBuffers { memory: reserve(end)?, slots })
    }

    /// The range of addresses of all buffers.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.memory.addresses()
    }

    /// Takes a buffer of exactly this many pages. If all buffers of that size are in use, the caller gets one with
    /// memory of its own.
    pub(crate) fn take(self: &Arc<Self>, pages: usize) -> io::Result<MergeBuffer> {
        let fits = |slot: &Slot| slot.pages.len() == pages && !slot.taken.swap(true, Ordering::Acquire);
        let home = match self.slots.iter().position(fits) {
            Some(slot) => Home::Shared(Arc::clone(self), slot),
            None => Home::Own(reserve(pages)?),
        };
        Ok(MergeBuffer { home, pages })
    }
}

fn reserve(pages: usize) -> io::Result<Reservation> {
    let mut memory = Reservation::zeroed(pages * PAGE_BYTES, PAGE_BYTES)?;
    // A forked child that shared the memory copy-on-write could take the pages that the device sees with it.
    memory.leave_out_on_fork()?;
    Ok(memory)
}

/// A buffer for some pages. It belongs to one owner until it is dropped.
pub(crate) struct MergeBuffer {
    home: Home,
    pages: usize,
}

enum Home {
    Shared(Arc<MergeBuffers>, usize),
    Own(Reservation),
}

impl MergeBuffer {
    /// How many pages fit.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// The address of a page in the buffer.
    pub(crate) fn slot(&self, page: usize) -> *mut u8 {
        debug_assert!(page < self.pages);
        let (memory, first) = match &self.home {
            Home::Shared(buffers, slot) => (&buffers.memory, buffers.slots[*slot].pages.start),
            Home::Own(memory) => (memory, 0),
        };
        memory.base().wrapping_add((first + page) * PAGE_BYTES)
    }
}

impl Drop for MergeBuffer {
    fn drop(&mut self) {
        if let Home::Shared(buffers, slot) = &self.home {
            buffers.slots[*slot].taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_in_one_hand_at_a_time() {
        let buffers = Arc::new(MergeBuffers::new([4, 1, 4]).unwrap());
        let place = |buffer: &MergeBuffer| (buffer.slot(0) as usize).checked_sub(buffers.addresses().start);
        let taken: Vec<_> = [4, 4, 1].map(|pages| buffers.take(pages).unwrap()).into();
        let places: Vec<_> = taken.iter().map(|buffer| place(buffer).map(|bytes| bytes / PAGE_BYTES)).collect();
        assert_eq!(places, [Some(0), Some(5), Some(4)]);
        assert_eq!(buffers.addresses().len(), 9 * PAGE_BYTES);
        // Two more, and of a size that there is none of.
        for pages in [4, 1, 2] {
            let own = buffers.take(pages).unwrap();
            assert_eq!(own.pages(), pages);
            assert!(!buffers.addresses().contains(&(own.slot(0) as usize)));
        }
        drop(taken);
        assert_eq!(place(&buffers.take(1).unwrap()), Some(4 * PAGE_BYTES));
    }
}
