//! Memory-mapped I/O for fast storage: reach data larger than memory with loads and stores, and control what is resident, when
//! dirty pages are written, and what is durable.
//!
//! A [`Cache`] is a budget of memory. A [`Mapping`] is a file, device or other [`Backing`](backing::Backing) as a range of
//! addresses over a cache. [`MappingOptions`] set up the mapping, [`Advice`] prepares the cache for coming accesses, and
//! [`Mapping::sync`] makes stores durable. With a [`Journal`](journal::Journal) the stores to several files become durable together
//! ([`Mapping::commit`]).
//!
//! ```
//! use vmio::backing::FileBacking;
//! use vmio::{Advice, Cache, Mapping, MappingOptions};
//!
//! fn main() -> vmio::Result<()> {
//!     let path = std::env::temp_dir().join("vmio-example.bin");
//!     let cache = Cache::builder().capacity(64 << 20).build()?;
//!     let file = FileBacking::create(&path, 1 << 30)?;
//!     let map = Mapping::open(&cache, file, MappingOptions::new())?;
//!     map.advise(0..4096, Advice::Priority(0))?;         // keep the first page
//!     map.write_at(1_000_000_000, b"hello")?;            // or store through map.as_mut_ptr()
//!     map.sync()?;                                       // durable from here on
//!     println!("{:?}", cache.stats());
//!     map.close()
//! }
//! ```
//!
//! With any [`Engine`], a hit costs no more than a load or store of ordinary memory. The engines differ in how they handle a miss:
//!
//! | | [`Sigbus`] (default) | [`ReaderThread`] | [`Managed`] | [`Kernel`] |
//! |---|---|---|---|---|
//! | a miss is handled by | the thread that misses, in a SIGBUS handler | a thread of the cache | Linux mmap | vmio.ko |
//! | a miss costs, beside its I/O | some 3 µs | 5 to 34 µs more | what Linux takes | what the module takes |
//! | needs | userfaultfd | Linux 6.6, a right (a) | nothing | vmio.ko, `/dev/vmio` |
//! | threads may block SIGBUS | no | yes | yes | yes (b) |
//! | pointers for system calls | to pinned pages | yes (c) | yes | yes (b) |
//! | what can be mapped | any backing | any backing | files, block devices | those with direct I/O |
//! | other processes | many readers, or one writer | many readers, or one writer | many readers and writers | many readers, or one writer |
//! | the budget holds | at every instant | at every instant | within milliseconds (d) | at every instant, reserved at the start |
//! | written and evicted by | vmio | vmio | vmio, and Linux as it likes | vmio.ko |
//! | a page that cannot be read | SIGBUS, or poison | SIGBUS, poison, or EFAULT | SIGBUS | SIGBUS, or poison |
//! | a page that cannot be written | stays dirty | stays dirty | may be lost (e) | stays dirty |
//! | page verifier, poison | yes | yes | no | yes; one that seals: read-only mappings |
//! | atomic mappings | yes | yes | no | no |
//! | floors and ceilings | yes | yes | no | no |
//! | views | `SharedAddresses` | `SharedAddresses` | no | yes, without verifier or poison |
//! | frames, units, policies | yes | yes, no `Stream` | no effect | no effect |
//! | priorities are kept by | 2 MiB | 2 MiB | runs of up to 2 MiB (f) | page |
//! | read-ahead is set for | 2 MiB | 2 MiB | on or off | the whole mapping |
//! | [`Advice::Fresh`], [`Advice::Free`] | yes | yes | no effect | yes |
//! | [`Advice::Reuse`], [`Advice::Cold`] | yes | yes | `Cold` | no effect |
//! | a pin takes | nothing | nothing | mlock (RLIMIT_MEMLOCK) | a file descriptor |
//! | [`LockMemory::Require`] | yes | yes | no | never swapped |
//! | [`Stats`] has | everything | everything | estimates, no misses | what the module counts |
//!
//! - (a) The right to handle faults of system calls: CAP_SYS_PTRACE, the sysctl `vm.unprivileged_userfaultfd` at 1, or read and
//!   write access to `/dev/userfaultfd`.
//! - (b) Not for pages of a mapping with a verifier or poison: see [`Kernel`].
//! - (c) Two kinds of system call still need a pinned range: see [`ReaderThread`].
//! - (d) A burst of misses may exceed the budget for some milliseconds: see [`Managed`].
//! - (e) Linux may mark a page as clean although it failed to write that page. After a failed sync every later one fails too
//!   ([`Error::Flush`]), and the file must be reopened.
//! - (f) Eviction takes the oldest pages first, except those that were touched between their unmapping and their eviction.
//!
//! A request that the engine does not support fails with [`Error::Unsupported`].
//!
//! [`Sigbus`]: Engine::Sigbus
//! [`ReaderThread`]: Engine::ReaderThread
//! [`Managed`]: Engine::Managed
//! [`Kernel`]: Engine::Kernel

pub mod backing;
mod cache;
mod elastic;
mod engine;
mod error;
mod file_user;
pub mod journal;
mod kernel_engine;
mod managed;
mod mapped_file;
mod mapping;
mod open;
mod options;
mod policy;
pub mod probe;
mod program_map;
#[cfg(target_arch = "x86_64")]
pub mod ring0;
mod shared_map;
mod sys;
pub mod telemetry;

pub use backing::Access;
pub use cache::refusal::{Unavailable, WhyUnavailable, fault_again};
pub use elastic::AvailableMemory;
pub use error::{Error, Result, UnsupportedBy};
pub use mapped_file::{Advice, SyncHandle, Usage};
pub use mapping::{Fetch, Mapping, Pin, Residency, View};
pub use open::{Cache, CacheBuilder, LockMemory};
pub use options::{Engine, FrameHint, MappingOptions, OnReadError, PageVerifier};
pub use policy::EvictionPolicy;
pub use program_map::{MapsHeldStill, ProgramMap};
pub use shared_map::{NotThere, SharedMap};
pub use sys::PAGE_BYTES;
pub use sys::fork::OfProcess;
pub use sys::signal::{SignalsBlocked, on_unresolved_sigbus, sigbus_action};
pub use telemetry::{MissTime, Stats};
#[doc(inline)]
pub use vmio_core::page::{reuse::Reuse, unit::Unit};
