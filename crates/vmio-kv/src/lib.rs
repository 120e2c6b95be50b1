//! A persistent, crash-safe key-value store on memory-mapped I/O, after Kreon.
//!
//! Keys and values are appended to a log. An index in levels says where each record is. The first level is a *memtable* in memory; the
//! others are B-trees on the device, each larger than the one above. A *flush* writes a full memtable into the first tree, and a
//! *compaction* merges a full tree into the next. Kreon calls both a *spill*. Flushes and compactions move prefixes of keys and pointers;
//! values stay in the log. Loads from a [`vmio::Mapping`] read nodes and records, and there is no other cache.
//!
//! A store is a volume: a file or a block device. It is divided into *segments*, each with a log of its own. A segment holds *keyspaces*,
//! which are independent sets of keys. A new store has one segment and one keyspace, [`DEFAULT_KEYSPACE`].
//!
//! # Examples
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

mod backup;
mod batching_lock;
mod check;
mod db;
mod device;
mod durability;
mod error;
mod extents;
mod format;
mod key_range;
mod keyspace;
mod log;
mod options;
mod sparse_words;
mod tree;
mod volume;

pub use backup::BackupCounts;
pub use check::{Event, Field, Finding, Found, Report, Structure, check, check_on, dump};
pub use db::{
    DEFAULT_KEYSPACE, Db, KEY_BYTES_MAX, Keys, KeyspaceHandle, KeyspaceSnapshot, Readers, Recovery, Savepoint, Scan,
    SegmentHandle, SegmentStats, Snapshot, Stats, Transaction, TransactionScan, VALUE_LENGTH_MAX, ValueReader,
    WriteBatch, restore,
};
pub use durability::Durability;
pub use error::{Damage, Error, FullPlace, Result};
pub use key_range::KeyRange;
pub use options::Options;
pub use vmio::Engine;

/// The README's examples, of this crate and of those below it, are compiled and run with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct ReadmeExamples;

/// So are the guides' examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/library.md")]
#[doc = include_str!("../../../docs/guides/kv.md")]
pub struct GuideExamples;
