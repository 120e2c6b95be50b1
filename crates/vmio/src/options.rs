//! How a file is mapped.

use std::fmt;
use std::sync::Arc;

use crate::backing::{Access, Backing};
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::page::unit::Unit;
use crate::sys::address_table::GRANULE_BYTES;

/// Checks pages as they arrive from the device and prepares them as they leave.
///
/// `verify` and `seal` are called with vmio's locks held, `verify` in a signal handler of the faulting thread, in a thread
/// that all faults wait for, or in that of a call: they must be async-signal-safe (no allocation, no lock, no access to mapped memory).
pub trait PageVerifier: Send + Sync {
    /// Whether the page that was read from byte `offset` is what was written there. The program cannot see it yet.
    /// Bytes behind the end of the file are zeros.
    fn verify(&self, offset: u64, page: &[u8]) -> bool;

    /// Called with the copy of a page that is about to be written to byte `offset`, for example to put a checksum in.
    /// The page in memory is not changed.
    fn seal(&self, offset: u64, page: &mut [u8]);

    /// Whether `seal` changes anything. [`crate::Engine::Kernel`] does not call it: it refuses verifiers that seal, unless the
    /// mapping is read-only.
    fn seals(&self) -> bool {
        true
    }
}

/// What a plain load of a page gets that cannot be read, or does not verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnReadError {
    /// SIGBUS with the address of the access, as with Linux mmap. (A system call that [`crate::Engine::ReaderThread`]
    /// lets touch it fails with EFAULT.)
    #[default]
    Sigbus,
    /// A page filled with this pattern, for a program that checks what it reads; [`crate::Mapping::take_read_error`]
    /// tells what happened. A store to such a page is a SIGBUS all the same, and so is a store that misses it.
    Poison([u8; 8]),
}

/// What a mapping will be used for, by which its frames are chosen; docs/design/frames.md has the costs of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameHint {
    /// What the cache was built with ([`crate::CacheBuilder::frames`]); if that is `Auto` as well, `ReadMostly`.
    #[default]
    Auto,
    /// Private anonymous pages. Cheapest to bring in and to evict; the first store to a page that was brought in by a
    /// load costs a trap and a TLB shootdown.
    ReadMostly,
    /// Pages of a memory file whose stores the kernel tracks (Linux 6.7; else as `ReadMostly`, with a warning). The
    /// first store to a page costs 1 µs and no shootdown, and pages that are about to be evicted wait out of sight,
    /// where a touch rescues them. A sync may write stores that came after it began. Not with [`OnReadError::Poison`].
    Mixed,
    /// As `Mixed`, for a file that is to be seen at several ranges of addresses: [`crate::Mapping::view`] gives each. A page
    /// is in memory once, whichever is touched, at the price of a page of page tables for each view in every 2 MiB.
    SharedAddresses,
    /// Private anonymous pages that come and go as huge pages of 2 MiB, read ahead by the workers: for scans of read-only
    /// mappings ([`crate::Access::ReadOnly`] is required). A miss reads 2 MiB wherever it is. A store is a SIGBUS, not
    /// a SIGSEGV. Without Linux 6.8, and with other engines than [`crate::Engine::Sigbus`], as `ReadMostly`, with a warning.
    Stream,
    /// As `ReadMostly`, and scans of read-only mappings ([`crate::Access::ReadOnly`]) as with `Stream`: a miss reads 4 KiB, and
    /// 2 MiB where misses in a row have come to a new 2 MiB, or [`crate::Advice::Sequential`] was given (with its largest
    /// window). Workers read ahead as far as the scan has come, up to 16 MiB. In a cache of less than 16 MiB, where mappings can
    /// be stored to, and where `Stream` has no huge pages, as `ReadMostly`. A store to a read-only mapping is a SIGBUS.
    Dynamic,
}

/// How a file is mapped: see the methods.
#[derive(Clone)]
pub struct MappingOptions {
    pub(crate) access: Option<Access>,
    pub(crate) priority: u8,
    pub(crate) reserve_bytes: Option<u64>,
    pub(crate) verifier: Option<Arc<dyn PageVerifier>>,
    pub(crate) on_read_error: OnReadError,
    pub(crate) frames: FrameHint,
    pub(crate) unit: Unit,
    pub(crate) journal: Option<Journal>,
    pub(crate) floor_bytes: u64,
    pub(crate) ceiling_bytes: Option<u64>,
}

impl MappingOptions {
    /// The priority of ranges that were not given any.
    pub const DEFAULT_PRIORITY: u8 = 128;

    /// The backing's own access, the default priority, no verifier.
    pub fn new() -> Self {
        MappingOptions {
            access: None,
            priority: Self::DEFAULT_PRIORITY,
            reserve_bytes: None,
            verifier: None,
            on_read_error: OnReadError::Sigbus,
            frames: FrameHint::Auto,
            unit: Unit::Kib4,
            journal: None,
            floor_bytes: 0,
            ceiling_bytes: None,
        }
    }

    /// Read-only or read-write; by default what the backing was opened for.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// The priority of the whole mapping, 0 (keep) to 255 (evict first); see [`crate::Advice::Priority`].
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Address space to set aside, so that the file can grow to this length in place. Costs no memory. By default,
    /// and at least, the length rounded up to 1 GiB.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve_bytes = Some(bytes);
        self
    }

    /// Has every page checked as it arrives and prepared as it leaves.
    pub fn verifier(mut self, verifier: impl PageVerifier + 'static) -> Self {
        self.verifier = Some(Arc::new(verifier));
        self
    }

    /// What plain loads get from an unreadable page.
    pub fn on_read_error(mut self, what: OnReadError) -> Self {
        self.on_read_error = what;
        self
    }

    /// The kind of memory that holds the resident pages.
    pub fn frames(mut self, hint: FrameHint) -> Self {
        self.frames = hint;
        self
    }

    /// How much is read at a miss, and kept or given up together. [`crate::Engine::Managed`] leaves that to Linux.
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Has changes reach the file by commits alone ([`crate::Mapping::commit`]): after a crash it is found exactly as the last
    /// acknowledged commit left it, and what is not committed when the last handle goes is forgotten. The file joins the
    /// journal; all mappings of a journal are committed together.
    ///
    /// The journal must have room for what is dirty between two commits: its [`crate::journal::JournalOptions::commit_reserve`]
    /// should be no smaller than the cache. Where it has none left, pages cannot be evicted, and a store that finds no page
    /// is a SIGBUS in the end.
    ///
    /// Not with [`FrameHint::Mixed`], [`FrameHint::SharedAddresses`] and [`FrameHint::Stream`] ([`Error::BadOption`]), nor
    /// with [`crate::Engine::Managed`] ([`Error::NotManaged`]) and [`crate::Engine::Kernel`] ([`Error::NotInKernel`]).
    pub fn atomic(mut self, journal: &Journal) -> Self {
        self.journal = Some(journal.clone());
        self
    }

    /// Memory of the cache that the mapping keeps once it has it, in bytes of pages, with the page tables for them: as
    /// long as other mappings have pages above their own floors, no pages of this one go for theirs. 0 by default.
    ///
    /// The floors of the open mappings must leave a thirty-second of the cache and 1.2 MiB ([`Error::FloorsTooHigh`]), also
    /// when it shrinks ([`crate::Cache::resize`]). A floor gives way only where all other pages are pinned or cannot be
    /// written. Not with [`crate::Engine::Managed`] ([`Error::NotManaged`]) and [`crate::Engine::Kernel`]
    /// ([`Error::NotInKernel`]).
    pub fn floor(mut self, bytes: u64) -> Self {
        self.floor_bytes = bytes;
        self
    }

    /// Memory of the cache that the mapping may have, in bytes of pages, with the page tables for them: 1 MiB at least, and
    /// no less than its floor ([`Error::BadOption`]). By default all of it.
    ///
    /// A miss of a mapping at its ceiling first evicts from that mapping itself, beside what is too much up to 64 pages or a
    /// sixteenth of the ceiling, whichever is less. Pins may hold three quarters of the ceiling. Misses at the same time may
    /// exceed it for a moment, each by what it brings along: 2 pages for page tables, and the rest of its unit or huge page.
    /// Where none of the mapping's pages can go, a page comes in over the ceiling: it never makes an access fail. Not with
    /// [`crate::Engine::Managed`] ([`Error::NotManaged`]) and [`crate::Engine::Kernel`] ([`Error::NotInKernel`]).
    pub fn ceiling(mut self, bytes: u64) -> Self {
        self.ceiling_bytes = Some(bytes);
        self
    }
}

impl MappingOptions {
    /// The access that a mapping of a backing gets.
    pub(crate) fn access_to(&self, backing: &dyn Backing) -> Result<Access> {
        let access = self.access.unwrap_or_else(|| backing.access());
        if access == Access::ReadWrite && backing.access() == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: backing.describe() });
        }
        Ok(access)
    }

    /// The address space that a mapping of that length gets.
    pub(crate) fn reserved_bytes(&self, len: u64) -> Result<usize> {
        let reserved = self.reserve_bytes.unwrap_or(0).max(len).max(1);
        let reserved =
            reserved.checked_next_multiple_of(GRANULE_BYTES as u64).and_then(|bytes| usize::try_from(bytes).ok());
        reserved.ok_or_else(|| Error::BadOption {
            option: "reserve",
            value: self.reserve_bytes.unwrap_or(len).to_string(),
            expected: "a length that fits the address space",
        })
    }
}

impl Default for MappingOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MappingOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MappingOptions")
            .field("access", &self.access)
            .field("priority", &self.priority)
            .field("reserve_bytes", &self.reserve_bytes)
            .field("verifies", &self.verifier.is_some())
            .field("on_read_error", &self.on_read_error)
            .field("frames", &self.frames)
            .field("unit", &self.unit)
            .field("is_atomic", &self.journal.is_some())
            .field("floor_bytes", &self.floor_bytes)
            .field("ceiling_bytes", &self.ceiling_bytes)
            .finish()
    }
}
