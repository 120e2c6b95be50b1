//! Key-value stores behind one trait, so that the same code measures vmio-kv and others, and the stores that a program can open.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The stores that a program can open.
pub trait Stores: Sync {
    /// Fails with advice if an engine is not among them.
    fn check(&self, engine: EngineKind) -> Result<()>;

    /// Opens or creates the store in an existing folder; fails as [`Self::check`] does.
    fn open(&self, engine: EngineKind, setup: &Setup) -> Result<Box<dyn Engine>>;
}

/// An open store, which threads may share.
pub trait Engine: Send + Sync {
    /// One of the keyspaces (tables, column families) of the setup, by its number from 0 on.
    fn keyspace(&self, number: u32) -> &dyn Keyspace;

    /// Returns once all writes that have returned are durable.
    fn sync(&self) -> Result<()>;

    /// Writes everything in memory to its place on the device; returns when that is durable and no background work is left.
    fn flush(&self) -> Result<()>;

    /// Closes the store; everything is durable.
    fn close(self: Box<Self>) -> Result<()>;

    /// How full the memtables are, 1 where writers have to wait; `None` if the engine has none or does not report it.
    fn memory_fill(&self) -> Option<f64> {
        None
    }

    /// The log that opening has read; `None` if the engine has none or does not report it.
    fn replayed(&self) -> Option<Replayed> {
        None
    }
}

/// A keyspace of an open store, which threads may share.
///
/// A write is durable when it returns if [`Setup::sync_writes`] is set, and otherwise after [`Engine::sync`].
pub trait Keyspace {
    /// Sets a key's value.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Shows `read` a key's value in place; returns whether there is one.
    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Deletes a key.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Shows `read` at most `records` keys and values in order, from `from` on. Returns their number.
    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;
}

/// The log that opening a store has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Number of writes.
    pub records: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// The engines, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EngineKind {
    /// vmio-kv.
    Vmio,
    /// vmio-kv with the reader-thread engine.
    VmioReaderThread,
    /// vmio-kv over the kernel module.
    VmioKernel,
    /// vmio-kv with faults handled in guest mode at ring 0.
    VmioRing0,
    /// LMDB.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
    /// RocksDB, tuned for the memory, without compression.
    Rocksdb,
    /// The same with LZ4 compression.
    RocksdbLz4,
    /// RocksDB with its defaults.
    RocksdbDefault,
}

impl EngineKind {
    /// All engines, whether or not a program has them.
    pub const ALL: [EngineKind; 10] = [
        Self::Vmio,
        Self::VmioReaderThread,
        Self::VmioKernel,
        Self::VmioRing0,
        Self::Lmdb,
        Self::Redb,
        Self::Fjall,
        Self::Rocksdb,
        Self::RocksdbLz4,
        Self::RocksdbDefault,
    ];

    /// The engine's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmio => "vmio",
            Self::VmioReaderThread => "vmio-reader-thread",
            Self::VmioKernel => "vmio-kernel",
            Self::VmioRing0 => "vmio-ring0",
            Self::Lmdb => "lmdb",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Rocksdb => "rocksdb",
            Self::RocksdbLz4 => "rocksdb-lz4",
            Self::RocksdbDefault => "rocksdb-default",
        }
    }

    /// Cargo options for a vmio-bench with this engine.
    pub fn cargo_options(self) -> &'static str {
        match self {
            Self::Redb | Self::Fjall | Self::Rocksdb | Self::RocksdbLz4 | Self::RocksdbDefault => " --features peers",
            _ => "",
        }
    }

    /// How vmio-kv is to serve its faults, if it is the store.
    pub const fn faults(self) -> Option<vmio_kv::Engine> {
        match self {
            Self::Vmio => Some(vmio_kv::Engine::Auto),
            Self::VmioReaderThread => Some(vmio_kv::Engine::ReaderThread),
            Self::VmioKernel => Some(vmio_kv::Engine::Kernel),
            Self::VmioRing0 => Some(vmio_kv::Engine::Ring0),
            _ => None,
        }
    }

    /// Whether the engine is measured only if it is named: vmio-kv with another engine than its own choice.
    pub const fn is_asked_for(self) -> bool {
        matches!(self, Self::VmioReaderThread | Self::VmioKernel | Self::VmioRing0)
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("{text:?} is no engine: there are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl TryFrom<String> for EngineKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<EngineKind> for String {
    fn from(kind: EngineKind) -> Self {
        kind.name().to_owned()
    }
}

/// The setup of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The store's folder.
    pub folder: PathBuf,
    /// The memory of the process, in bytes, including page cache.
    pub memory_bytes: u64,
    /// About how many bytes of keys and values the store will hold.
    pub data_bytes: u64,
    /// About how many bytes of keys and values will be written over its life.
    pub written_bytes: u64,
    /// Keyspaces (tables, column families), at least one.
    pub keyspaces: u32,
    /// Whether each write is durable when it returns.
    pub sync_writes: bool,
    /// Whether most records are put in the order of their keys.
    pub puts_in_order: bool,
    /// Memory for vmio-kv's leaf filters, in bytes; other engines choose their own.
    pub filter_bytes: u64,
    /// The file in which vmio-kv records the pages that it touches; other engines record none.
    pub page_trace: Option<PathBuf>,
}

impl Setup {
    /// The names of the keyspaces.
    pub fn keyspace_names(&self) -> impl Iterator<Item = String> {
        (0..self.keyspaces).map(|number| format!("keyspace{number}"))
    }
}
