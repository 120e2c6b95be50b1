//! Errors: each with the value that was wrong, and what to do about it.

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
    /// The kernel denies userfaultfd or lacks what vmio needs of it.
    #[error("userfaultfd is not available: {reason} (`vmio doctor` says what to change)")]
    NoUserfaultfd {
        /// The kernel's answer, and what it means.
        reason: String,
    },
    /// The process may not handle page faults inside system calls, as [`crate::Engine::ReaderThread`] has to.
    #[error("the reader-thread engine may not handle page faults inside system calls: {reason}")]
    KernelFaultsDenied {
        /// The rights of which one is needed, and how to get one.
        reason: String,
    },
    /// There is no kernel module for [`crate::Engine::Kernel`].
    #[error("the kernel module is not available: {reason}")]
    NoKernelModule {
        /// What is missing, and what to do about it.
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
        /// What was being done.
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
        /// What it was set to.
        value: String,
        /// What it may be.
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
    /// Another process has the file mapped in a way that does not go with the one that was wanted: cached pages of one process
    /// would differ from what others store.
    #[error("{backing} is in use: {holder}; {}", wanted.way_round(*holder))]
    InUse {
        /// What was to be mapped.
        backing: String,
        /// The holder of the lock.
        holder: Holder,
        /// How this process wanted to map it.
        wanted: FileUser,
    },
    /// This process already maps the file, through another cache or with other rights.
    #[error("{backing} is already mapped in this process {how}")]
    AlreadyMapped {
        /// What was to be mapped.
        backing: String,
        /// How the present mapping differs.
        how: &'static str,
    },
    /// The engine, or the kind of mapping, does not support what was asked for.
    #[error("{by} does not support {what}: {why}")]
    Unsupported {
        /// Which engine or kind of mapping.
        by: UnsupportedBy,
        /// What was asked for.
        what: &'static str,
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// A commit of a mapping without a journal.
    #[error("{backing} has no journal to commit to: open it with MappingOptions::atomic")]
    NotAtomic {
        /// What is mapped.
        backing: String,
    },
    /// A view of a mapping whose frames can be mapped at one range of addresses only.
    #[error(
        "{backing} is mapped at one range of addresses only: \
         open it first with FrameHint::SharedAddresses, on Linux 6.7 or later"
    )]
    OneAddress {
        /// What is mapped.
        backing: String,
    },
    /// A view of a mapping that has as many views as it may have.
    #[error("{backing} has {limit} views, which is the limit: drop one")]
    TooManyViews {
        /// What is mapped.
        backing: String,
        /// The most views at a time.
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
        /// What is mapped.
        backing: String,
    },
    /// A page could not be read from the backing.
    #[error("cannot read the page at byte {offset} of {backing}")]
    Read {
        /// What is mapped.
        backing: String,
        /// Where the page starts.
        offset: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A page whose contents the mapping's verifier rejects.
    #[error("the page at byte {offset} of {backing} does not verify: its contents are not what was written")]
    Corrupt {
        /// What is mapped.
        backing: String,
        /// Where the page starts.
        offset: u64,
    },
    /// Dirty pages could not be written. They stay in memory, dirty, and the next sync tries them again.
    #[error("cannot write {failed_pages} page(s) of {backing}, the first at byte {offset}; they stay dirty in memory")]
    Write {
        /// What is mapped.
        backing: String,
        /// The first of them.
        offset: u64,
        /// How many.
        failed_pages: u64,
        /// Why the first one failed.
        #[source]
        source: io::Error,
    },
    /// The last handle was closed, and dirty pages could not be written: no later sync tries them again. To keep them, sync first, and
    /// close when the sync has succeeded.
    #[error(
        "{lost_pages} page(s) of {backing} could not be written when it was closed, the first at byte {offset}: what was stored to them is lost"
    )]
    Lost {
        /// What was mapped.
        backing: String,
        /// The first of them.
        offset: u64,
        /// How many.
        lost_pages: u64,
        /// Why the first one failed.
        #[source]
        source: io::Error,
    },
    /// The device could not be flushed. Which of the earlier writes are durable is unknown, now and for good.
    #[error("flushing {backing} failed; what was written since the last good sync may be lost: reopen it")]
    Flush {
        /// What is mapped.
        backing: String,
        /// The kernel's answer at the first failure.
        #[source]
        source: io::Error,
    },
    /// No page can be given up: all are pinned, or dirty and unwritable.
    #[error("the cache of {capacity_pages} pages has none to give up: {why}")]
    CacheExhausted {
        /// Its size.
        capacity_pages: u64,
        /// What holds the pages.
        why: &'static str,
    },
    /// Pins would hold more than three quarters of the cache, and leave too little for the rest of the program.
    #[error(
        "pinning {wanted_pages} more pages would exceed the limit of {limit_pages}; drop pins or enlarge the cache"
    )]
    TooManyPins {
        /// Pages of this request.
        wanted_pages: u64,
        /// The most that may be pinned at a time.
        limit_pages: u64,
    },
    /// The floors of the open mappings would leave less of the cache than it needs.
    #[error(
        "a floor of {floor_bytes} bytes beside the {others_bytes} bytes of other mappings exceeds the {limit_bytes} bytes \
         that the cache may promise: lower it, or enlarge the cache"
    )]
    FloorsTooHigh {
        /// The floor asked for, in whole pages.
        floor_bytes: u64,
        /// The sum of the floors of the open mappings.
        others_bytes: u64,
        /// The most that all floors may be.
        limit_bytes: u64,
    },
    /// The cache could not be made smaller; its capacity is what it was.
    #[error("the cache cannot shrink to {wanted_bytes} bytes of pages: {why}")]
    NotShrunk {
        /// The bytes that its pages were to take.
        wanted_bytes: u64,
        /// What prevents it.
        why: &'static str,
    },
    /// The file cannot grow beyond the address space that was reserved for it.
    #[error("{requested} bytes exceed the {reserved} bytes reserved for this mapping: see MappingOptions::reserve")]
    BeyondReservation {
        /// The length asked for.
        requested: u64,
        /// What was reserved when it was opened.
        reserved: u64,
    },
    /// The length of the backing could not be changed.
    #[error("cannot change the length of {backing} to {requested} bytes")]
    Resize {
        /// What is mapped.
        backing: String,
        /// The length asked for.
        requested: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What was opened is no journal, or none that this version can read.
    #[error("{journal} is no journal that vmio can use: {reason}")]
    NotAJournal {
        /// The journal's path.
        journal: String,
        /// What is wrong.
        reason: String,
    },
    /// A part of the journal that had been durable is damaged, which no crash does. Nothing was changed.
    #[error("{journal} is damaged at byte {offset}: {what}; `vmio journal verify` says what can still be read")]
    JournalDamaged {
        /// The journal's path.
        journal: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The journal has no space for what is not committed. Nothing is lost: it stays dirty in memory, or spilled.
    #[error(
        "{journal} is full: {uncommitted_bytes} of its {capacity_bytes} bytes are not committed; commit more often, or make a larger journal"
    )]
    JournalFull {
        /// The journal's path.
        journal: String,
        /// Length of its log.
        capacity_bytes: u64,
        /// What was appended to it since the last commit.
        uncommitted_bytes: u64,
    },
    /// The journal could not be read or written. A commit that fails so is not acknowledged; its pages are part of the next one.
    #[error("{operation} the journal {journal} failed")]
    Journal {
        /// The journal's path.
        journal: String,
        /// What was being done.
        operation: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The journal could not be flushed. The next commit writes everything again whose durability is not known.
    #[error("flushing the journal {journal} failed; the commit is not acknowledged, and the next one tries again")]
    JournalFlush {
        /// The journal's path.
        journal: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Committed pages could not be written to their file. They are safe in the journal, which tries again.
    #[error("cannot write committed pages to {file}; they stay in the journal")]
    Checkpoint {
        /// The file's path.
        file: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file of a journal has changed since it joined.
    #[error("{path}, a file of the journal {journal}: {reason}")]
    JournaledFile {
        /// The journal's path.
        journal: String,
        /// The file's path.
        path: String,
        /// What is wrong, and what to do.
        reason: &'static str,
    },
    /// A forked child used a mapping of its parent.
    #[error("this mapping belongs to the parent process: open the file anew in the child")]
    Forked,
}

/// What does not support something: see [`Error::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnsupportedBy {
    /// A cache with [`crate::Engine::Managed`].
    ManagedEngine,
    /// A cache with [`crate::Engine::Kernel`].
    KernelEngine,
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
            UnsupportedBy::DirectMapping => "a direct mapping",
            UnsupportedBy::AtomicMapping => "an atomic mapping",
        })
    }
}

impl Error {
    /// The error of the last handle: dirty pages that could not be written are lost with the mapping.
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
