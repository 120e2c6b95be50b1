//! The misses of a cache, one word each, in memory that other processes read while the cache goes on: the newest of them.
//!
//! The memory is an array of little-endian 64-bit words: a page that says what it is, then the slots. The miss of number n
//! is in slot n modulo their number, with the lap that it belongs to: a reader sees what it has lost.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// By which others find it.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is open for others"))]
    file: OwnedFd,
}

impl MissRing {
    /// No misses yet, published.
    pub(crate) fn new(cache_number: u64) -> io::Result<Self> {
        let (file, memory) = publish(FILE_NAME, (FIRST_SLOT + SLOTS as usize) * WORD_BYTES)?;
        let ring = MissRing { words: SparseArray::over(memory), pages: AtomicU64::new(0), file };
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

    /// Gives a mapping so many page numbers of its own; returns the first.
    pub(crate) fn number_pages(&self, pages: u64) -> u64 {
        self.pages.fetch_add(pages, Ordering::Relaxed)
    }

    /// Notes a miss. Async-signal-safe.
    pub(crate) fn note(&self, page: u64, store: bool) {
        let miss = self.words.get(Header::Misses as usize).fetch_add(1, Ordering::Relaxed);
        let slot = u64::from(lap_of(miss)) << LAP_SHIFT | if store { STORE } else { 0 } | page & (STORE - 1);
        self.words.get(FIRST_SLOT + (miss % SLOTS) as usize).store(slot, Ordering::Relaxed);
    }
}
