//! Options of caches and mappings.

use std::fmt;
use std::sync::Arc;

use vmio_core::page::unit::Unit;

use crate::backing::{Access, Backing};
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::sys::address_table::GRANULE_BYTES;

/// Checks pages as they arrive from the device, and prepares pages for their write.
///
/// vmio calls both methods with its locks held. `verify` runs in a signal handler of the faulting thread, in a thread that handles
/// the faults of others, or in the thread of a call. Both methods must be async-signal-safe: no allocation, no lock, no access to
/// mapped memory.
///
/// # Examples
///
/// ```
/// use vmio::backing::MemoryBacking;
/// use vmio::{Cache, Mapping, MappingOptions, PageVerifier};
///
/// /// The last 8 bytes of each page hold the sum of the others.
/// struct Summed;
///
/// fn sum_of(page: &[u8]) -> [u8; 8] {
///     let words = page[..page.len() - 8].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
///     words.fold(0, u64::wrapping_add).to_le_bytes()
/// }
///
/// impl PageVerifier for Summed {
///     fn verify(&self, _offset: u64, page: &[u8]) -> bool {
///         page[page.len() - 8..] == sum_of(page)
///     }
///
///     fn seal(&self, _offset: u64, page: &mut [u8]) {
///         let sum = sum_of(page);
///         let at = page.len() - 8;
///         page[at..].copy_from_slice(&sum);
///     }
/// }
///
/// # fn main() -> vmio::Result<()> {
/// let cache = Cache::builder().capacity(16 << 20).build()?;
/// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
/// let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new().verifier(Summed))?;
/// map.write_at(0, b"sealed when it is written")?;
/// map.sync()
/// # }
/// ```
pub trait PageVerifier: Send + Sync {
    /// Returns whether the page at byte `offset` reads as it was written.
    ///
    /// The program cannot access the page yet. Bytes behind the end of the file are zeros.
    fn verify(&self, offset: u64, page: &[u8]) -> bool;

    /// Prepares the copy of a page for its write to byte `offset`, for example with a checksum. The page in memory does not change.
    fn seal(&self, offset: u64, page: &mut [u8]);

    /// Returns whether `seal` changes anything.
    ///
    /// [`crate::Engine::Kernel`] does not call `seal`: it supports verifiers that seal only on read-only mappings.
    ///
    /// # Default
    ///
    /// True.
    fn seals(&self) -> bool {
        true
    }
}

/// The answer to a load of a page that cannot be read or does not verify.
///
/// # Default
///
/// [`OnReadError::Sigbus`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnReadError {
    /// SIGBUS with the address of the access, as with Linux mmap.
    ///
    /// (With [`crate::Engine::ReaderThread`] a system call that touches the page fails with EFAULT.)
    #[default]
    Sigbus,
    /// A page filled with this pattern, for a program that checks its data.
    ///
    /// [`crate::Mapping::take_read_error`] returns the error. A store to such a page is still a SIGBUS, and so is a store that
    /// misses the page.
    Poison([u8; 8]),
}

/// How page faults reach a cache. The [table of the crate](crate) compares the engines.
///
/// # Default
///
/// [`Engine::Auto`].
///
/// # Examples
///
/// ```
/// # fn main() -> vmio::Result<()> {
/// use vmio::{Cache, Engine};
///
/// let cache = Cache::builder().engine(Engine::Auto).capacity(16 << 20).build()?;
/// println!("Auto is {:?} here", cache.engine());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// [`Engine::Sigbus`] where userfaultfd works, else [`Engine::Managed`].
    ///
    /// userfaultfd may be denied (EPERM, as in most containers), missing (ENOSYS) or too old. A warning then names the reason and
    /// the cost. [`crate::Cache::engine`] returns the engine in use.
    #[default]
    Auto,
    /// The faulting thread handles its own fault, in a SIGBUS handler that the cache installs. No privilege is needed.
    ///
    /// A thread that touches mapped memory must not block SIGBUS: its first miss would kill it. Pass system calls only pointers to
    /// pinned ranges ([`crate::Mapping::pin`]): they fail with EFAULT on an absent page.
    Sigbus,
    /// The faulting thread sleeps in the kernel until a reader thread of the cache has handled its fault.
    ///
    /// System calls (`read`, `write`, futexes) accept pointers into the mapping, threads may block any signal, and there is no
    /// signal handler.
    ///
    /// A miss costs 5 µs (two threads that miss) to 34 µs (one thread) more than with [`Engine::Sigbus`]: the kernel has to
    /// schedule two threads. Without the right to handle faults of system calls, building the cache is an
    /// [`Error::KernelFaultsDenied`].
    ///
    /// A page that cannot be read is a SIGBUS for a load or store, and EFAULT for a system call. That answer stands for a tenth of
    /// a second. The next access after that time tries again; `read_at`, `pin` and growth of the mapping try again at once.
    ///
    /// Two kinds of system call still need a pinned range:
    ///
    /// - Calls that write to memory past its page tables: direct I/O into the mapping, registered buffers, `process_vm_writev`. An
    ///   eviction during the call would lose the bytes.
    /// - Calls that read or write the mapped file itself. The kernel may hold the file's lock while the call waits for the page,
    ///   and vmio cannot read the page before that lock is free.
    ReaderThread,
    /// Linux's own mmap takes the faults.
    ///
    /// A background reclaimer keeps the resident pages within the capacity, before the kernel has to reclaim, and starts the writes
    /// of dirty pages. Several processes may map the same file and see each other's stores.
    ///
    /// The reclaimer keeps the budget by observation. A burst of misses may exceed it for some milliseconds. A program that stores
    /// faster than the device writes may exceed it until the kernel's own limits (a cgroup, `vm.dirty_ratio`) slow the program
    /// down. With [`crate::CacheBuilder::hold_back_bursts`] the budget holds for bursts as well.
    ///
    /// The budget counts the pages that this process has mapped. Of these, pages that another process maps too stay in memory. In a
    /// memory cgroup with less space for page cache than the capacity, that space is the budget. Files on tmpfs cannot be evicted:
    /// they are memory.
    ///
    /// The kernel writes and evicts as well, at any time: a dirty page may reach the device before its sync.
    Managed,
    /// The kernel module vmio.ko takes the faults, evicts and writes.
    ///
    /// System calls, direct I/O and debuggers accept pointers into the mapping, without a pin. There is no signal handler and no
    /// userfaultfd.
    ///
    /// Building the cache reserves the whole capacity, charged to the memory cgroup. The kernel never swaps this memory. A forked
    /// child that goes on without exec keeps it reserved. Without the module, or the right to open `/dev/vmio`, building the cache
    /// is an [`Error::NoKernelModule`].
    ///
    /// With a verifier or [`OnReadError::Poison`] there is a signal handler, and a system call fails with EFAULT on a page that is
    /// not in memory: pin the range, or call [`crate::Mapping::ensure`] first.
    ///
    /// The kernel raises SIGBUS for a load of a page that cannot be read. It does so too for a store where three quarters of the
    /// cache are dirty pages of a device that fails, and for a miss where system calls, devices or pipes hold all of the cache for
    /// ten seconds.
    ///
    /// A transfer of a system call or device over more of a mapping than the cache holds ends after a second or more: short, or
    /// with EFAULT. [`crate::Mapping::read_at`] and `write_at` hold one page at a time.
    ///
    /// Write-back begins when half of the cache is dirty, and writes by age alone. It overwrites bytes that another process appends
    /// to the last page of a file while that page is dirty.
    Kernel,
    /// Experimental: not all of vmio's own tests pass with it yet. The faulting thread handles its own fault at ring 0 of a virtual
    /// machine that is the process's own, without a switch to the kernel. Needs KVM on x86-64, with hardware virtualisation.
    /// [`Engine::Auto`] never stands for it.
    ///
    /// A thread enters the machine when it first touches mapped memory, or by [`crate::ring0::enter`]. System calls of threads inside are forwarded,
    /// at some microseconds each, and may be given any pointer to mapped memory; those of threads outside only pointers to pinned pages. Memory that
    /// the kernel uses after the call (io_uring, io_submit, vmsplice) must be pinned as well. Threads that a thread inside starts are outside, and
    /// handlers of signals run outside. There is a signal handler, of SIGSEGV: build the cache after the program has installed its own. Without KVM,
    /// building the cache is an [`Error::NoRing0`](crate::Error::NoRing0).
    Ring0,
}

/// The kind of memory that holds a mapping's resident pages, chosen by the use of the mapping.
///
/// | | first store after a load costs | views | huge pages | needs |
/// |---|---|---|---|---|
/// | [`ReadMostly`](FrameHint::ReadMostly) | a trap and a TLB shootdown | no | no | nothing |
/// | [`Mixed`](FrameHint::Mixed) | 1 µs | no | no | Linux 6.7, or [`Engine::Ring0`] |
/// | [`SharedAddresses`](FrameHint::SharedAddresses) | 1 µs | yes | no | Linux 6.7, or [`Engine::Ring0`] |
/// | [`Stream`](FrameHint::Stream) | (read-only) | no | always | Linux 6.8, [`Engine::Sigbus`] |
/// | [`Dynamic`](FrameHint::Dynamic) | a trap and a TLB shootdown | no | for scans | Linux 6.8, [`Engine::Sigbus`] |
///
/// Without the kernel or engine in the last column a hint acts as `ReadMostly`, with a warning. So do `Stream` and `Dynamic` in a
/// cache with locked memory ([`crate::LockMemory`]).
///
/// # Default
///
/// [`FrameHint::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameHint {
    /// The hint of the cache ([`crate::CacheBuilder::frames`]); if that is `Auto` as well, `ReadMostly`.
    ///
    /// Atomic mappings and those with [`OnReadError::Poison`] get `ReadMostly`.
    #[default]
    Auto,
    /// Private anonymous pages: the cheapest to bring in and to evict.
    ReadMostly,
    /// Pages of a memory file whose stores the kernel tracks; with [`Engine::Ring0`] the processor.
    ///
    /// Pages are inactive for a while before their eviction: a touch then reactivates them without I/O.
    ///
    /// A sync may write stores that came after it began. [`OnReadError::Poison`] is not supported.
    Mixed,
    /// As `Mixed`, for a file accessed at several ranges of addresses: [`crate::Mapping::view`] maps each further range.
    ///
    /// A page is in memory once, whichever range the program touches. Each view takes a page of page tables in every 2 MiB.
    SharedAddresses,
    /// Private anonymous pages that come and go as huge pages of 2 MiB, read ahead by the workers: for scans of read-only mappings.
    ///
    /// Other mappings are an [`Error::BadOption`]. Every miss reads 2 MiB. A store is a SIGBUS, not a SIGSEGV.
    Stream,
    /// As `ReadMostly`, and scans of read-only mappings ([`crate::Access::ReadOnly`]) as with `Stream`.
    ///
    /// A miss reads 4 KiB. It reads 2 MiB where misses in a row reach a new 2 MiB, or under [`crate::Advice::Sequential`] with its
    /// largest window. Workers read ahead as far as the scan has come, up to 16 MiB.
    ///
    /// There are no huge pages in a cache of less than 16 MiB, nor in read-write mappings. A store to a read-only mapping is a
    /// SIGBUS.
    Dynamic,
}

/// Options of a mapping.
///
/// # Examples
///
/// ```
/// # fn main() -> vmio::Result<()> {
/// use vmio::backing::MemoryBacking;
/// use vmio::{Cache, Mapping, MappingOptions, Unit};
///
/// let cache = Cache::builder().capacity(16 << 20).build()?;
/// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
/// let options = MappingOptions::new().priority(10).unit(Unit::Kib16).reserve(4 << 30);
/// let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, options)?;
/// assert_eq!(map.len(), 1 << 20);
/// # Ok(())
/// # }
/// ```
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
    /// The priority of ranges without advice.
    pub const DEFAULT_PRIORITY: u8 = 128;

    /// Makes options with the default of each method.
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

    /// Sets whether the mapping is read-only or read-write.
    ///
    /// # Default
    ///
    /// The access of the backing ([`Backing::access`]).
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets the priority of the whole mapping, 0 (keep) to 255 (evict first): see [`crate::Advice::Priority`].
    ///
    /// # Default
    ///
    /// [`Self::DEFAULT_PRIORITY`].
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Reserves address space, so that the file can grow to this length in place. The reservation takes no memory.
    ///
    /// # Default
    ///
    /// The file's length, rounded up to a multiple of 1 GiB. A smaller reservation has no effect.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve_bytes = Some(bytes);
        self
    }

    /// Sets a verifier, which checks every page as it arrives and prepares it as it leaves.
    ///
    /// # Default
    ///
    /// None.
    pub fn verifier(mut self, verifier: impl PageVerifier + 'static) -> Self {
        self.verifier = Some(Arc::new(verifier));
        self
    }

    /// Sets the answer to a load of a page that cannot be read.
    ///
    /// # Default
    ///
    /// [`OnReadError::Sigbus`].
    pub fn on_read_error(mut self, what: OnReadError) -> Self {
        self.on_read_error = what;
        self
    }

    /// Sets the kind of memory that holds the resident pages.
    ///
    /// No effect with [`crate::Engine::Managed`] and [`crate::Engine::Kernel`].
    ///
    /// # Default
    ///
    /// [`FrameHint::Auto`].
    pub fn frames(mut self, hint: FrameHint) -> Self {
        self.frames = hint;
        self
    }

    /// Sets how many bytes a miss reads, which then stay or go together.
    ///
    /// No effect with [`crate::Engine::Managed`] and [`crate::Engine::Kernel`].
    ///
    /// # Default
    ///
    /// [`Unit::Kib4`].
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Lets changes reach the file by commits alone ([`crate::Mapping::commit`]).
    ///
    /// After a crash the file is exactly as the last acknowledged commit left it. Closing the last handle discards uncommitted
    /// stores. The file joins the journal, and a commit covers all mappings of the journal.
    ///
    /// The journal must have space for the pages that are dirty between two commits: its
    /// [`crate::journal::JournalOptions::commit_reserve`] should be no smaller than the cache. Without that space the cache cannot
    /// evict dirty pages, and in the end a store that misses is a SIGBUS.
    ///
    /// # Default
    ///
    /// No journal: write-back brings stores to the file, and [`crate::Mapping::sync`] makes them durable.
    ///
    /// # Errors
    ///
    /// Opening the mapping fails with [`Error::BadOption`] for frames other than [`FrameHint::Auto`] and [`FrameHint::ReadMostly`],
    /// and with [`Error::Unsupported`] for [`crate::Engine::Managed`] and [`crate::Engine::Kernel`].
    pub fn atomic(mut self, journal: &Journal) -> Self {
        self.journal = Some(journal.clone());
        self
    }

    /// Sets the memory of the cache that the mapping keeps once it has it, in bytes of pages and their page tables.
    ///
    /// As long as other mappings have pages above their own floors, they take no pages from this one. A floor gives way only where
    /// all other pages are pinned or unwritable.
    ///
    /// # Default
    ///
    /// 0.
    ///
    /// # Errors
    ///
    /// Opening the mapping fails with [`Error::FloorsTooHigh`] unless the floors of all open mappings leave 1.125 MiB and a
    /// thirty-second of the cache (128 MiB at most). The same holds when the cache shrinks ([`crate::Cache::resize`]). Opening
    /// fails with [`Error::Unsupported`] for [`crate::Engine::Managed`] and [`crate::Engine::Kernel`].
    pub fn floor(mut self, bytes: u64) -> Self {
        self.floor_bytes = bytes;
        self
    }

    /// Sets the most memory of the cache that the mapping takes, in bytes of pages and their page tables.
    ///
    /// A miss of a mapping at its ceiling first evicts from that mapping itself: the excess, and up to 64 pages or a sixteenth of
    /// the ceiling, whichever is less. Pins may hold three quarters of the ceiling. Concurrent misses may exceed the ceiling for a
    /// moment, each by 2 pages for page tables and the rest of its unit or huge page. Where none of the mapping's pages can go, a
    /// page comes in over the ceiling: a ceiling never makes an access fail.
    ///
    /// # Default
    ///
    /// All of the cache.
    ///
    /// # Errors
    ///
    /// Opening the mapping fails with [`Error::BadOption`] for less than 1 MiB or than the floor, and with [`Error::Unsupported`] for
    /// [`crate::Engine::Managed`] and [`crate::Engine::Kernel`].
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
