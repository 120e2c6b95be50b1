//! Memory-mapped I/O for fast storage: reach data larger than memory with loads and stores, and keep control of what
//! is resident, when dirty pages are written, and what is durable.
//!
//! ```
//! use vmio::backing::{Access, FileBacking};
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
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod atomic;
mod budget;
mod page;

#[cfg(not(loom))]
pub mod backing;
#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod elastic;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod file_user;
#[cfg(not(loom))]
pub mod journal;
#[cfg(not(loom))]
mod kernel_engine;
#[cfg(not(loom))]
mod managed;
#[cfg(not(loom))]
mod mapped_file;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod policy;
#[cfg(not(loom))]
pub mod probe;
#[cfg(not(loom))]
mod shared_map;
mod store_gate;
mod sys;
#[cfg(not(loom))]
pub mod telemetry;

#[cfg(not(loom))]
pub use backing::Access;
#[cfg(not(loom))]
pub use cache::refusal::{Unavailable, WhyUnavailable, fault_again};
#[cfg(not(loom))]
pub use cache::{Cache, CacheBuilder, LockMemory};
#[cfg(not(loom))]
pub use elastic::AvailableMemory;
#[cfg(not(loom))]
pub use error::{Error, Result, UnsupportedBy};
#[cfg(not(loom))]
pub use mapped_file::{Advice, SyncHandle, Usage};
#[cfg(not(loom))]
pub use mapping::{Fetch, Mapping, Pin, Residency, View};
#[cfg(not(loom))]
pub use options::{Engine, FrameHint, MappingOptions, OnReadError, PageVerifier};
#[cfg(not(loom))]
pub use page::reuse::Reuse;
#[cfg(not(loom))]
pub use page::unit::Unit;
#[cfg(not(loom))]
pub use policy::EvictionPolicy;
#[cfg(not(loom))]
pub use shared_map::{NotThere, SharedMap};
#[cfg(not(loom))]
pub use sys::PAGE_BYTES;
#[cfg(not(loom))]
pub use sys::fork::OfProcess;
#[cfg(not(loom))]
pub use sys::signal::{SignalsBlocked, on_unresolved_sigbus, sigbus_action};
#[cfg(not(loom))]
pub use telemetry::{MissTime, Stats};
