//! Elastic memory: the capacity of a cache that takes all it can get. `cgroup` and `observer` look at memory, `governor` decides, and
//! the thread of `follower` changes the capacity.
//!
//! docs/design/elastic-memory.md says why it is so.

mod available;
mod cgroup;
mod follower;
mod governor;
mod observer;

pub use available::AvailableMemory;
pub(crate) use cgroup::MemoryCgroups;
pub(crate) use follower::Follower;
pub(crate) use governor::Governor;
pub(crate) use observer::Observer;
