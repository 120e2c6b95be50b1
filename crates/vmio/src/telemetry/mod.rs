//! Statistics of caches, read from another process: `vmio stat` is made of this.
//!
//! Every [`crate::Cache`] counts in memory that others may read. A [`Reader`] finds that memory by the number of the process, with
//! the right that a debugger needs (the same user, or CAP_SYS_PTRACE), and returns [`Snapshot`]s.

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
