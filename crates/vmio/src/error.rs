//! Errors: each names the wrong value and the remedy.

use std::fmt;
use std::io;
use std::ops::Range;

use crate::file_user::{FileUser, Holder};

/// The result of a vmio operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel denies userfaultfd, or its userfaultfd lacks a feature that vmio needs.
    #[error("userfaultfd is not available: {reason} (`vmio doctor` says what to change)")]
    NoUserfaultfd {
        /// The kernel's answer and its meaning.
        reason: String,
    },
    /// The process may not handle page faults inside system calls, which [`crate::Engine::ReaderThread`] needs.
    #[error("the reader-thread engine may not handle page faults inside system calls: {reason}")]
    KernelFaultsDenied {
        /// The rights, of which one is needed, and the way to get one.
        reason: String,
    },
    /// There is no kernel module for [`crate::Engine::Kernel`].
    #[error("the kernel module is not available: {reason}")]
    NoKernelModule {
        /// The missing part, and the remedy.
        reason: String,
    },
    /// The process cannot have a virtual machine for [`crate::Engine::Ring0`].
    #[error("guest mode is not available: {reason}")]
    NoRing0 {
        /// The missing feature, and the way to get it.
        reason: String,
    },
    /// A system call that vmio needs failed.
    #[error("{operation} failed")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// An option makes no sense or contradicts another.
    #[error("option {option} is {value}: {expected}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// The value that was set.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The backing could not be opened.
    #[error("cannot open {path}")]
    Open {
        /// The path as given.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The file is not on persistent memory, or its file system does not map that memory itself (MAP_SYNC).
    #[error(
        "{path} cannot be mapped past the page cache (MAP_SYNC): put it on ext4 or xfs mounted with `-o dax=always` from \
         persistent memory in fsdax mode (`ndctl create-namespace -m fsdax`), or open it with FileBacking"
    )]
    NotDax {
        /// The path as given.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Another process has mapped the file in a way that excludes this mapping: the cached pages of one process would miss the
    /// stores of the other.
    #[error("{backing} is in use: {holder}; {}", wanted.way_round(*holder))]
    InUse {
        /// The description of the backing.
        backing: String,
        /// The holder of the lock.
        holder: Holder,
        /// How this process wanted to map it.
        wanted: FileUser,
    },
    /// This process already maps the file: through another cache or engine, read-only, or without the journal.
    #[error("{backing} is already mapped in this process {how}")]
    AlreadyMapped {
        /// The description of the backing.
        backing: String,
        /// How the existing mapping differs.
        how: &'static str,
    },
    /// The engine, or the kind of mapping, does not support the request.
    #[error("{by} does not support {what}: {why}")]
    Unsupported {
        /// The engine or kind of mapping.
        by: UnsupportedBy,
        /// The request.
        what: &'static str,
        /// The reason, and an alternative.
        why: &'static str,
    },
    /// A commit of a mapping without a journal.
    #[error("{backing} has no journal to commit to: open it with MappingOptions::atomic")]
    NotAtomic {
        /// The description of the backing.
        backing: String,
    },
    /// A view of a mapping whose frames can be mapped at one range of addresses only.
    #[error(
        "{backing} is mapped at one range of addresses only: \
         open it first with FrameHint::SharedAddresses, on Linux 6.7 or later"
    )]
    OneAddress {
        /// The description of the backing.
        backing: String,
    },
    /// A view of a mapping that already has the most views allowed.
    #[error("{backing} has {limit} views, which is the limit: drop one")]
    TooManyViews {
        /// The description of the backing.
        backing: String,
        /// The limit of views at a time.
        limit: u64,
    },
    /// A range lies outside the mapping.
    #[error("bytes {}..{} lie outside the mapping of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// The range as given.
        range: Range<u64>,
        /// The mapping's length.
        len: u64,
    },
    /// A write to a read-only mapping.
    #[error("the mapping of {backing} is read-only")]
    ReadOnly {
        /// The description of the backing.
        backing: String,
    },
    /// A page could not be read from the backing.
    #[error("cannot read the page at byte {offset} of {backing}")]
    Read {
        /// The description of the backing.
        backing: String,
        /// The offset of the page.
        offset: u64,
        /// The error of the read.
        #[source]
        source: io::Error,
    },
    /// The mapping's verifier rejects a page's contents.
    #[error("the page at byte {offset} of {backing} does not verify: its contents are not what was written")]
    Corrupt {
        /// The description of the backing.
        backing: String,
        /// The offset of the page.
        offset: u64,
    },
    /// Dirty pages could not be written. They stay dirty in memory, and the next sync tries again.
    #[error("cannot write {failed_pages} page(s) of {backing}, the first at byte {offset}; they stay dirty in memory")]
    Write {
        /// The description of the backing.
        backing: String,
        /// The offset of the first of these pages.
        offset: u64,
        /// The number of these pages.
        failed_pages: u64,
        /// The error of the first page.
        #[source]
        source: io::Error,
    },
    /// Closing the last handle could not write dirty pages, and no later sync tries again. To keep such pages, sync first, and
    /// close after the sync has succeeded.
    #[error(
        "{lost_pages} page(s) of {backing} could not be written when it was closed, the first at byte {offset}: what was stored to them is lost"
    )]
    Lost {
        /// The description of the backing.
        backing: String,
        /// The offset of the first of these pages.
        offset: u64,
        /// The number of these pages.
        lost_pages: u64,
        /// The error of the first page.
        #[source]
        source: io::Error,
    },
    /// The device could not be flushed. It stays unknown which of the earlier writes are durable.
    #[error("flushing {backing} failed; what was written since the last good sync may be lost: reopen it")]
    Flush {
        /// The description of the backing.
        backing: String,
        /// The kernel's answer at the first failure.
        #[source]
        source: io::Error,
    },
    /// The cache cannot evict any page: all are pinned, or dirty and unwritable.
    #[error("the cache of {capacity_pages} pages has none to give up: {why}")]
    CacheExhausted {
        /// The capacity of the cache.
        capacity_pages: u64,
        /// The reason that the pages stay.
        why: &'static str,
    },
    /// Pins would exceed their limit, three quarters of the cache, and leave too little to the rest of the program. The limit is
    /// half of the cache with [`crate::Engine::Kernel`], and three quarters of the mapping's ceiling if it has one.
    #[error(
        "pinning {wanted_pages} more pages would exceed the limit of {limit_pages}; drop pins or enlarge the cache"
    )]
    TooManyPins {
        /// The pages of this request.
        wanted_pages: u64,
        /// The limit of pinned pages.
        limit_pages: u64,
    },
    /// The floors of the open mappings would leave less of the cache than it needs.
    #[error(
        "a floor of {floor_bytes} bytes beside the {others_bytes} bytes of other mappings exceeds the {limit_bytes} bytes \
         that the cache may promise: lower it, or enlarge the cache"
    )]
    FloorsTooHigh {
        /// The floor of this mapping, rounded up to whole pages.
        floor_bytes: u64,
        /// The sum of the floors of the open mappings.
        others_bytes: u64,
        /// The limit for the sum of all floors.
        limit_bytes: u64,
    },
    /// The cache could not shrink. Its capacity has not changed.
    #[error("the cache cannot shrink to {wanted_bytes} bytes of pages: {why}")]
    NotShrunk {
        /// The capacity asked for, in bytes of pages.
        wanted_bytes: u64,
        /// The obstacle, and how to remove it.
        why: &'static str,
    },
    /// The file cannot grow beyond its reserved address space.
    #[error("{requested} bytes exceed the {reserved} bytes reserved for this mapping: see MappingOptions::reserve")]
    BeyondReservation {
        /// The length asked for.
        requested: u64,
        /// The bytes reserved at the opening.
        reserved: u64,
    },
    /// The length of the backing could not be changed.
    #[error("cannot change the length of {backing} to {requested} bytes")]
    Resize {
        /// The description of the backing.
        backing: String,
        /// The length asked for.
        requested: u64,
        /// The error of the backing.
        #[source]
        source: io::Error,
    },
    /// The file is no journal, this version cannot read it, or its owner or permissions let others write to it.
    #[error("{journal} is no journal that vmio can use: {reason}")]
    NotAJournal {
        /// The journal's path.
        journal: String,
        /// The defect.
        reason: String,
    },
    /// A durable part of the journal is damaged, which no crash does. Nothing was changed.
    #[error("{journal} is damaged at byte {offset}: {what}; `vmio journal verify` says what can still be read")]
    JournalDamaged {
        /// The journal's path.
        journal: String,
        /// The offset of the damage.
        offset: u64,
        /// The defect.
        what: &'static str,
    },
    /// The journal has no space for the uncommitted pages. Nothing is lost: they stay dirty in memory, or spilled.
    #[error(
        "{journal} is full: {uncommitted_bytes} of its {capacity_bytes} bytes are not committed; commit more often, or make a larger journal"
    )]
    JournalFull {
        /// The journal's path.
        journal: String,
        /// The length of the log.
        capacity_bytes: u64,
        /// The bytes appended since the last commit.
        uncommitted_bytes: u64,
    },
    /// The journal could not be read or written. A commit that fails in this way is not acknowledged, and its pages are part of the
    /// next one.
    #[error("{operation} the journal {journal} failed")]
    Journal {
        /// The journal's path.
        journal: String,
        /// The operation that failed.
        operation: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The journal could not be flushed. The next commit writes everything again that may not be durable.
    #[error("flushing the journal {journal} failed; the commit is not acknowledged, and the next one tries again")]
    JournalFlush {
        /// The journal's path.
        journal: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Committed pages could not be written to their file. The journal keeps them and tries again.
    #[error("cannot write committed pages to {file}; they stay in the journal")]
    Checkpoint {
        /// The file's path.
        file: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file of a journal is missing, or is not the one that joined.
    #[error("{path}, a file of the journal {journal}: {reason}")]
    JournaledFile {
        /// The journal's path.
        journal: String,
        /// The file's path.
        path: String,
        /// The defect, and the remedy.
        reason: &'static str,
    },
    /// A forked child used a mapping or cache of its parent.
    #[error("this mapping belongs to the parent process: open the file anew in the child")]
    Forked,
}

/// The engine or kind of mapping that does not support a request: see [`Error::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnsupportedBy {
    /// A cache with [`crate::Engine::Managed`].
    ManagedEngine,
    /// A cache with [`crate::Engine::Kernel`].
    KernelEngine,
    /// A cache with [`crate::Engine::ReaderThread`].
    ReaderThreadEngine,
    /// A mapping without a cache ([`crate::Mapping::open_direct`]).
    DirectMapping,
    /// A mapping with a journal ([`crate::MappingOptions::atomic`]).
    AtomicMapping,
}

impl fmt::Display for UnsupportedBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            UnsupportedBy::ManagedEngine => "the managed engine",
            UnsupportedBy::KernelEngine => "the kernel module's engine",
            UnsupportedBy::ReaderThreadEngine => "the reader-thread engine",
            UnsupportedBy::DirectMapping => "a direct mapping",
            UnsupportedBy::AtomicMapping => "an atomic mapping",
        })
    }
}

impl Error {
    /// The error for closing the last handle: the mapping takes unwritten dirty pages with it.
    pub(crate) fn at_the_end(self) -> Self {
        match self {
            Error::Write { backing, offset, failed_pages, source } => {
                Error::Lost { backing, offset, lost_pages: failed_pages, source }
            }
            other => other,
        }
    }

    pub(crate) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { operation, source }
    }
}
