//! Key-value stores behind one trait, so that vmio-kv and others are measured by the same code, and who can open them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The stores that a program can open.
pub trait Stores: Sync {
    /// Whether an engine is among them; an error that says where to find it if not.
    fn check(&self, engine: EngineKind) -> Result<()>;

    /// Opens the store in a folder that is there, or creates it; fails as [`Self::check`] does.
    fn open(&self, engine: EngineKind, setup: &Setup) -> Result<Box<dyn Engine>>;
}

/// A store that is open. Any threads may use it.
pub trait Engine: Send + Sync {
    /// One of the keyspaces (tables, column families) that it was opened with, by its number from 0 on.
    fn keyspace(&self, number: u32) -> &dyn Keyspace;

    /// Returns once all writes that have returned are durable.
    fn sync(&self) -> Result<()>;

    /// Brings all that is in memory to its place on the device, and returns when that is durable and the engine has nothing
    /// left to do in the background.
    fn flush(&self) -> Result<()>;

    /// Closes it; everything is durable.
    fn close(self: Box<Self>) -> Result<()>;

    /// How full its memtables are, 1 where writers have to wait; `None` where it has none or does not tell.
    fn memory_fill(&self) -> Option<f64> {
        None
    }

    /// What opening has read back of its log; `None` where it has none or does not tell.
    fn replayed(&self) -> Option<Replayed> {
        None
    }
}

/// Keys and values of a store that is open. Any threads may use them.
///
/// A write is durable when it returns where [`Setup::sync_writes`] says so, and otherwise after [`Engine::sync`].
pub trait Keyspace {
    /// Sets a key's value.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Has `read` see a key's value where the engine has it, and tells whether there is one.
    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Has a key have no value.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Has `read` see up to so many keys and values in order, from the first key that is not less on, and tells how many
    /// there were.
    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;
}

/// What opening a store has read back of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Writes.
    pub records: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EngineKind {
    /// vmio-kv.
    Vmio,
    /// The same over the kernel module.
    VmioKernel,
    /// LMDB.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
    /// RocksDB, tuned for the memory, without compression.
    Rocksdb,
    /// The same with LZ4.
    RocksdbLz4,
    /// RocksDB as it comes.
    RocksdbDefault,
}

impl EngineKind {
    /// All that there are, whether or not a program has them.
    pub const ALL: [EngineKind; 8] = [
        Self::Vmio,
        Self::VmioKernel,
        Self::Lmdb,
        Self::Redb,
        Self::Fjall,
        Self::Rocksdb,
        Self::RocksdbLz4,
        Self::RocksdbDefault,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmio => "vmio",
            Self::VmioKernel => "vmio-kernel",
            Self::Lmdb => "lmdb",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Rocksdb => "rocksdb",
            Self::RocksdbLz4 => "rocksdb-lz4",
            Self::RocksdbDefault => "rocksdb-default",
        }
    }

    /// What cargo has to be told, beside the package, for a vmio-bench that has it.
    pub fn cargo_options(self) -> &'static str {
        match self {
            Self::Vmio | Self::VmioKernel | Self::Lmdb => "",
            Self::Redb | Self::Fjall | Self::Rocksdb | Self::RocksdbLz4 | Self::RocksdbDefault => " --features peers",
        }
    }

    /// Whether it runs only where the kernel module is loaded.
    pub const fn needs_module(self) -> bool {
        matches!(self, Self::VmioKernel)
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

/// What a store is opened with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Its folder.
    pub folder: PathBuf,
    /// All the memory that the process may have, in bytes: page cache included.
    pub memory_bytes: u64,
    /// About how many bytes of keys and values it will hold.
    pub data_bytes: u64,
    /// About how many bytes of keys and values will be written over its life.
    pub written_bytes: u64,
    /// Keyspaces (tables, column families), one at least.
    pub keyspaces: u32,
    /// Whether each write is durable when it returns.
    pub sync_writes: bool,
    /// Whether most records are put in the order of their keys.
    pub puts_in_order: bool,
    /// Bytes of its memory that vmio-kv has for filters of leaves; others have filters or not.
    pub filter_bytes: u64,
    /// Where vmio-kv is to note the pages that it touches; others do not.
    pub page_trace: Option<PathBuf>,
}

impl Setup {
    /// The names of the keyspaces.
    pub fn keyspace_names(&self) -> impl Iterator<Item = String> {
        (0..self.keyspaces).map(|number| format!("keyspace{number}"))
    }
}
