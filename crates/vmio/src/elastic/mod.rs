//! How much memory there is for a cache that takes what it can get: `cgroup` and `observer` look, `governor` decides, and the thread of
//! `follower` has the cache follow.
//! docs/design/elastic-memory.md says why so.

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
