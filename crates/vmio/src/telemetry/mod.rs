//! Statistics of caches, read from another process; `vmio stat` uses them.
//!
//! A [`crate::Cache`] with [`crate::Engine::Sigbus`] or [`crate::Engine::ReaderThread`] counts in memory that other processes
//! may read. A [`Reader`] finds that memory by the process
//! ID and returns [`Snapshot`]s. It needs the right that a debugger needs: the same user, or CAP_SYS_PTRACE.

pub(crate) mod counters;
pub(crate) mod histogram;
pub(crate) mod layout;
pub(crate) mod miss_ring;
mod misses;
pub(crate) mod page;
mod reader;
mod snapshot;

pub use counters::{MissTime, Stats};
pub use histogram::Histogram;
pub use misses::{Miss, Misses, PublishedMapping};
pub use reader::{OpenPage, ReadError, Reader};
pub use snapshot::{PageError, Snapshot};
