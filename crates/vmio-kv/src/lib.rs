//! A persistent key-value store on memory-mapped I/O: Kreon's design, made safe against crashes.
//!
//! Keys and values are appended to a log. An index of several levels says where: one in memory, the others B-trees on the
//! device, each larger than the one above. When a level is full its entries are merged into the next one (a *spill*): keys'
//! fronts and pointers move, values never do. Nodes and records are read by loads through a [`vmio::Mapping`]; there is
//! no other cache.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("store");
//! use vmio_kv::{Db, Options};
//!
//! let db = Db::open_or_create(&path, Options::new().memory_bytes(64 << 20).max_volume_bytes(256 << 20))?;
//! db.put(b"answer", b"42")?;
//! assert_eq!(db.get(b"answer")?.as_deref(), Some(&b"42"[..]));
//! db.close()?;
//! # Ok(())
//! # }
//! ```

mod check;
mod db;
mod device;
mod error;
mod extents;
mod format;
mod key_range;
mod log;
mod options;
mod region;
mod sparse_words;
mod streak_lock;
mod tree;
mod volume;
mod write_batch;

pub use check::{Event, Field, Finding, Found, Report, Structure, check, check_on, dump};
pub use db::{
    DEFAULT_REGION, Db, KEY_BYTES_MAX, Keys, Readers, Recovery, RegionHandle, RegionSnapshot, Scan, SegmentHandle,
    SegmentStats, Snapshot, Stats, VALUE_LENGTH_MAX, ValueReader,
};
pub use error::{Damage, Error, FullPlace, Result};
pub use key_range::KeyRange;
pub use options::{Durability, Options};
pub use vmio::Engine;
pub use write_batch::WriteBatch;

/// The README's examples, of this crate and of those below it, are compiled and run with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct ReadmeExamples;

/// So are the guides' examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/library.md")]
#[doc = include_str!("../../../docs/guides/kv.md")]
pub struct GuideExamples;
