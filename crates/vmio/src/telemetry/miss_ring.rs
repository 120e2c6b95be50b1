//! The misses of a cache, one word each, in memory that other processes read while the cache goes on: the newest of them.
//!
//! The memory is an array of little-endian 64-bit words: a page that says what it is and which mappings there are, then the slots. The miss of number n
//! is in slot n modulo their number, with the lap that it belongs to: a reader sees what it has lost.

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
/// As many misses are kept: seconds of them, at the pace of a fast device.
pub(super) const SLOTS: u64 = 1 << 20;
/// The word of the first slot.
pub(super) const FIRST_SLOT: usize = PAGE_BYTES / WORD_BYTES;

/// Mappings beyond this number are not told apart.
pub(super) const MAPPINGS_MAX: usize = 128;
/// The first word of the first mapping. Each has two: the page number behind its last one, 0 if there is no such mapping
/// yet, and the bytes that its file had when it was opened. They may be out of order.
pub(super) const FIRST_MAPPING: usize = 128;

const _: () = assert!(FIRST_MAPPING + 2 * MAPPINGS_MAX <= FIRST_SLOT);

/// The words before the slots.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Header {
    /// [`MAGIC`]; written last.
    Magic,
    /// The process that the cache belongs to, as it knows itself.
    ProcessId,
    /// As in the stat page.
    CacheNumber,
    /// Misses so far; on a cache line of its own.
    Misses = 64,
}

const PAGE_BITS: u32 = 47;
const STORE: u64 = 1 << PAGE_BITS;
const LAP_SHIFT: u32 = PAGE_BITS + 1;

/// The lap of the miss of that number, as its slot says it; none is 0 before the memory has been in use for long.
pub(super) fn lap_of(miss: u64) -> u16 {
    (miss / SLOTS + 1) as u16
}

/// What a slot holds.
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
    /// Pages that the mappings so far have to themselves.
    pages: AtomicU64,
    mappings: AtomicUsize,
    /// By which others find it.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is open for others"))]
    file: OwnedFd,
}

impl MissRing {
    /// No misses yet, published.
    pub(crate) fn new(cache_number: u64) -> io::Result<Self> {
        let (file, memory) = publish(FILE_NAME, (FIRST_SLOT + SLOTS as usize) * WORD_BYTES)?;
        let words = SparseArray::over(memory);
        let ring = MissRing { words, pages: AtomicU64::new(0), mappings: AtomicUsize::new(0), file };
        ring.words.get(Header::ProcessId as usize).store(u64::from(process::id()), Ordering::Relaxed);
        ring.words.get(Header::CacheNumber as usize).store(cache_number, Ordering::Relaxed);
        ring.words.get(Header::Magic as usize).store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// The file that others find.
    #[cfg(test)]
    pub(super) fn descriptor(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.file)
    }

    /// Gives a mapping of a file of `len` bytes this many page numbers of its own, and publishes which; returns the first.
    pub(crate) fn number_pages(&self, pages: u64, len: u64) -> u64 {
        let first = self.pages.fetch_add(pages, Ordering::Relaxed);
        let mapping = self.mappings.fetch_add(1, Ordering::Relaxed);
        if mapping < MAPPINGS_MAX {
            let end = FIRST_MAPPING + 2 * mapping;
            self.words.get(end + 1).store(len, Ordering::Relaxed);
            // Whoever sees it sees the length.
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
