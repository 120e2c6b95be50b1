//! What a program may ask of a cache and of a mapping.

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

/// How page faults reach a cache. Hits cost the same with each: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// [`Engine::Sigbus`]; where userfaultfd is denied (EPERM, as in most containers), missing (ENOSYS) or too old,
    /// [`Engine::Managed`], with a warning that says why and what it costs. [`crate::Cache::engine`] tells which it is.
    #[default]
    Auto,
    /// The faulting thread handles its own fault, in a SIGBUS handler that the cache installs. A miss costs some 3 µs
    /// beside its I/O, and no privilege is needed.
    ///
    /// What it asks of the program: no thread that touches mapped memory blocks SIGBUS (it would be killed), and
    /// system calls get pointers into pinned ranges only ([`crate::Mapping::pin`]; other pages fail with EFAULT).
    Sigbus,
    /// The faulting thread sleeps in the kernel until a reader thread of the cache has handled its fault. So pointers
    /// into the mapping may be given to system calls (`read`, `write`, futexes), signals may be blocked, and no signal
    /// handler is installed. A miss costs 6 µs (several threads that miss) to 46 µs (one) more, since two threads
    /// take turns.
    ///
    /// Needs Linux 6.6, and the right to handle faults of system calls: CAP_SYS_PTRACE, or the sysctl
    /// `vm.unprivileged_userfaultfd` at 1, or read and write access to `/dev/userfaultfd`. Without, building the cache
    /// is an [`Error::KernelFaultsDenied`].
    ///
    /// A page that cannot be had is a SIGBUS for a load or store, and EFAULT for a system call. That answer stands for
    /// a tenth of a second; after it, the next access tries again. `read_at`, `pin` and growth of the mapping try, or
    /// end it, at once.
    ///
    /// Two kinds of system call still need a pinned range. Those that write to memory past its page tables (direct
    /// I/O into the mapping, registered buffers, `process_vm_writev`): their bytes would be lost if the page is evicted
    /// meanwhile. And reads and writes of the very file that is mapped: the kernel may hold the file's lock while it
    /// waits for the page, and the page cannot be read before it lets go.
    ReaderThread,
    /// Linux's own mmap takes the faults; a background thread keeps what is resident within the capacity from outside,
    /// before the kernel has to reclaim, and decides when dirty pages are written. Needs no userfaultfd, and any number
    /// of processes may map the same file with it and see each other's stores.
    ///
    /// What it cannot promise:
    ///
    /// - **The budget is kept by watching.** A burst of misses may exceed it for some milliseconds, and a program that
    ///   stores faster than the device writes may exceed it until the kernel's own limits (a cgroup, `vm.dirty_ratio`)
    ///   slow it down. Counted are the pages that this process has mapped; those that another process maps too
    ///   stay in memory. In a memory cgroup with less room for page cache than the capacity, that room is the budget.
    /// - **The kernel writes and evicts as well**, whenever it likes: nothing keeps a dirty page from the device
    ///   before its sync, and priorities only say what vmio gives up first.
    /// - **Priorities and the order of eviction** are kept by runs of up to 2 MiB, oldest first, except for pages that were
    ///   touched between their unmapping and their turn.
    /// - [`crate::Advice::Fresh`] and [`crate::Advice::Free`] do nothing: a fresh page is read all the same, a freed one
    ///   written, and so is what [`crate::Advice::Invalidate`] would drop. Read-ahead windows ([`crate::Advice::Sequential`]) are of the kernel's size, and
    ///   [`crate::Advice::Reuse`] makes no difference.
    /// - [`crate::Mapping::sync_begin`]: pages that become dirty while it runs may be written by it too.
    /// - **A page that the kernel failed to write is lost to it**: it may take the page for clean. So after a failed
    ///   sync every later one fails too ([`crate::Error::Flush`]) and the file must be reopened.
    /// - A load of a page that cannot be read is a SIGBUS. [`crate::MappingOptions::verifier`] and
    ///   [`crate::OnReadError::Poison`] are refused ([`crate::Error::Unsupported`]), as are backings that are neither a
    ///   file nor a block device, [`crate::LockMemory::Require`], [`crate::MappingOptions::floor`] and
    ///   [`crate::MappingOptions::ceiling`].
    /// - [`crate::Mapping::pin`] locks pages (mlock), for which RLIMIT_MEMLOCK must suffice.
    /// - [`crate::Mapping::residency`] knows the pages that this process has mapped, not what else is in the page cache.
    /// - [`crate::CacheBuilder::workers`] and [`crate::CacheBuilder::measure_misses`] have no effect. Of
    ///   [`crate::Stats`], what only the kernel knows stays zero: misses, reads, waits. Resident pages are an estimate;
    ///   dirty pages and bytes written need Linux 6.5 (cachestat), and count vmio's own writes, not the kernel's.
    /// - Files on tmpfs cannot be evicted: they are memory.
    Managed,
    /// The kernel module vmio.ko takes the faults, evicts and writes (docs/kernel.md). No signal handler and no userfaultfd;
    /// system calls, direct I/O and debuggers may be given pointers into the mapping, and nothing need be pinned for them.
    /// The capacity is reserved when the cache is built, charged to the memory cgroup, and never swapped.
    ///
    /// Needs the module, and the right to open `/dev/vmio`: else building the cache is an [`crate::Error::NoKernelModule`].
    ///
    /// What is different:
    ///
    /// - Only files and block devices with direct I/O can be mapped. [`crate::MappingOptions::atomic`],
    ///   [`crate::MappingOptions::floor`] and [`crate::MappingOptions::ceiling`] are refused, and so is a
    ///   [`crate::MappingOptions::verifier`] that seals, unless the mapping is read-only ([`crate::Error::Unsupported`]).
    /// - With a verifier or [`crate::OnReadError::Poison`] there is a signal handler, and a system call that is given pointers to pages
    ///   that are not in memory fails with EFAULT: [`crate::Mapping::ensure`] or pin them. [`crate::Mapping::view`] is refused then.
    /// - A load of a page that cannot be read is a SIGBUS of the kernel's, and so is a store where three quarters of the cache
    ///   are dirty pages of a device that fails.
    /// - Write-back begins when half of the cache is dirty, whatever [`crate::CacheBuilder::dirty_ratio`] says.
    /// - A system call or device that is given more of a mapping at a time than the cache holds ends after a second or more, with
    ///   less than was asked for or EFAULT. Where system calls, devices or pipes hold all of the cache for ten seconds, a load or store
    ///   that misses is a SIGBUS. [`crate::Mapping::read_at`] and `write_at` hold a page at a time.
    /// - What other processes append to the last page of a file while it is dirty is overwritten.
    /// - Pins may hold half of the cache; each takes a file descriptor. A pinned page may take a fault without I/O.
    /// - Read-ahead is the same for a whole mapping: [`crate::Advice::Normal`], [`crate::Advice::Random`] and
    ///   [`crate::Advice::Sequential`] of a part have no effect, nor has [`crate::Advice::Reuse`].
    /// - [`crate::Advice::Priority`] is kept by the page. What is dirty is written by age alone.
    /// - [`crate::CacheBuilder::workers`], [`crate::CacheBuilder::policy`], frames, units and
    ///   [`crate::CacheBuilder::measure_misses`] have no effect. [`crate::Stats`] has what the module counts, which is less.
    /// - A child that was forked and goes on without exec keeps the memory of the cache reserved.
    Kernel,
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
    /// first store to a page costs 1 µs and no shootdown, and pages that are about to be evicted are inactive
    /// for a while, in which a touch reactivates them without I/O. A sync may write stores that came after it began. Not with [`OnReadError::Poison`].
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
    /// with [`crate::Engine::Managed`] and [`crate::Engine::Kernel`] ([`Error::Unsupported`]).
    pub fn atomic(mut self, journal: &Journal) -> Self {
        self.journal = Some(journal.clone());
        self
    }

    /// Memory of the cache that the mapping keeps once it has it, in bytes of pages, with the page tables for them: as
    /// long as other mappings have pages above their own floors, no pages of this one go for theirs. 0 by default.
    ///
    /// The floors of the open mappings must leave a thirty-second of the cache and 1.2 MiB ([`Error::FloorsTooHigh`]), also
    /// when it shrinks ([`crate::Cache::resize`]). A floor gives way only where all other pages are pinned or cannot be
    /// written. Not with [`crate::Engine::Managed`] and [`crate::Engine::Kernel`]
    /// ([`Error::Unsupported`]).
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
    /// [`crate::Engine::Managed`] and [`crate::Engine::Kernel`] ([`Error::Unsupported`]).
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
