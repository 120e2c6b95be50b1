//! The newest misses of a cache, one word each, in memory that other processes read while the cache goes on.
//!
//! The memory is an array of little-endian 64-bit words: a page with a header and the mappings, then the slots. Miss
//! number n is in slot n modulo the number of slots. A slot also has the lap of its miss, by which a reader detects the
//! misses that it has lost.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::{io, process};

use crate::sys::PAGE_BYTES;
use crate::sys::published_memory::publish;
use crate::sys::sparse_array::SparseArray;
use crate::telemetry::layout::WORD_BYTES;

/// The name of the memory file.
pub(crate) const FILE_NAME: &str = "vmio-misses";
/// The first word.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"vmiomiss");
/// The number of misses that the ring keeps: seconds of them, at the pace of a fast device.
pub(super) const SLOTS: u64 = 1 << 20;
/// The word of the first slot.
pub(super) const FIRST_SLOT: usize = PAGE_BYTES / WORD_BYTES;

/// Mappings beyond this number are not listed.
pub(super) const MAPPINGS_MAX: usize = 128;
/// The first word of the first mapping. Each mapping has two words. The first is the number of the page behind its last
/// one, or 0 if there is no such mapping yet. The second is the length of its file in bytes when it was opened. The
/// mappings may be out of order.
pub(super) const FIRST_MAPPING: usize = 128;

const _: () = assert!(FIRST_MAPPING + 2 * MAPPINGS_MAX <= FIRST_SLOT);

/// The words before the slots.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Header {
    /// [`MAGIC`]; written last.
    Magic,
    /// The ID of the process that the cache belongs to, as that process knows it.
    ProcessId,
    /// As in the stat page.
    CacheNumber,
    /// Misses so far; on a cache line of its own.
    Misses = 64,
}

const PAGE_BITS: u32 = 47;
const STORE: u64 = 1 << PAGE_BITS;
const LAP_SHIFT: u32 = PAGE_BITS + 1;

/// The lap of the miss of this number, as its slot has it. No lap is 0 until the number of laps overflows 16 bits.
pub(super) fn lap_of(miss: u64) -> u16 {
    (miss / SLOTS + 1) as u16
}

/// The contents of a slot.
#[derive(Clone, Copy)]
pub(super) struct Slot(pub(super) u64);

impl Slot {
    pub(super) fn lap(self) -> u16 {
        (self.0 >> LAP_SHIFT) as u16
    }

    pub(super) fn page(self) -> u64 {
        self.0 & (STORE - 1)
    }

    pub(super) fn is_store(self) -> bool {
        self.0 & STORE != 0
    }
}

/// The writer's side.
pub(crate) struct MissRing {
    words: SparseArray<AtomicU64>,
    /// The number of page numbers given to mappings so far.
    pages: AtomicU64,
    mappings: AtomicUsize,
    /// The memory file by which other processes find the ring.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is open for others"))]
    file: OwnedFd,
}

impl MissRing {
    /// Makes an empty ring and publishes it.
    pub(crate) fn new(cache_number: u64) -> io::Result<Self> {
        let (file, memory) = publish(FILE_NAME, (FIRST_SLOT + SLOTS as usize) * WORD_BYTES)?;
        let words = SparseArray::over(memory);
        let ring = MissRing { words, pages: AtomicU64::new(0), mappings: AtomicUsize::new(0), file };
        ring.words.get(Header::ProcessId as usize).store(u64::from(process::id()), Ordering::Relaxed);
        ring.words.get(Header::CacheNumber as usize).store(cache_number, Ordering::Relaxed);
        ring.words.get(Header::Magic as usize).store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// The memory file.
    #[cfg(test)]
    pub(super) fn descriptor(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.file)
    }

    /// Gives a mapping of a file of `len` bytes this many page numbers of its own, publishes them, and returns the
    /// first.
    pub(crate) fn number_pages(&self, pages: u64, len: u64) -> u64 {
        let first = self.pages.fetch_add(pages, Ordering::Relaxed);
        let mapping = self.mappings.fetch_add(1, Ordering::Relaxed);
        if mapping < MAPPINGS_MAX {
            let end = FIRST_MAPPING + 2 * mapping;
            self.words.get(end + 1).store(len, Ordering::Relaxed);
            // A reader that sees the end sees the length.
            self.words.get(end).store(first + pages, Ordering::Release);
        }
        first
    }

    /// Notes a miss. Async-signal-safe.
    pub(crate) fn note(&self, page: u64, store: bool) {
        let miss = self.words.get(Header::Misses as usize).fetch_add(1, Ordering::Relaxed);
        let slot = u64::from(lap_of(miss)) << LAP_SHIFT | if store { STORE } else { 0 } | page & (STORE - 1);
        self.words.get(FIRST_SLOT + (miss % SLOTS) as usize).store(slot, Ordering::Relaxed);
    }
}
