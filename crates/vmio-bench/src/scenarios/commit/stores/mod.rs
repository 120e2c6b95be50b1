//! The stores that are measured: each keeps the same records, and makes a few changes durable at a time.

mod file;
pub mod lmdb;
pub mod mmap;
pub mod sqlite;
pub mod vmio;

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::records::{Change, RECORDS_PER_PAGE, Record};

/// The stores by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// An atomic mapping of vmio
    Vmio,
    /// Linux mmap with msync(MS_SYNC), which is durable and not atomic
    Mmap,
    /// SQLite in WAL mode with synchronous=FULL
    Sqlite,
    /// LMDB with its default, durable commits
    Lmdb,
}

impl StoreKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vmio => "vmio",
            Self::Mmap => "mmap",
            Self::Sqlite => "sqlite",
            Self::Lmdb => "lmdb",
        }
    }

    /// Whether a crash leaves all of a commit or nothing of it.
    pub fn is_atomic(self) -> bool {
        self != Self::Mmap
    }

    /// Whether a store of its own, outside a transaction, is a thing that it has.
    pub fn has_plain_stores(self) -> bool {
        matches!(self, Self::Vmio | Self::Mmap)
    }
}

/// What a store is made with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Its folder.
    pub folder: PathBuf,
    /// Pages of records.
    pub pages: u64,
    /// Memory.
    pub cache_bytes: u64,
    /// Length of vmio's journal.
    pub journal_bytes: u64,
    /// Threads that use it.
    pub threads: u32,
}

impl Setup {
    /// The number of records.
    pub fn records(&self) -> u64 {
        self.pages * RECORDS_PER_PAGE
    }
}

/// A store that is open.
pub trait Store: Sized + Sync {
    /// What a thread works with.
    type Session<'a>: Session
    where
        Self: 'a;

    /// Makes the files of a store with all records as they begin.
    fn create(setup: &Setup) -> anyhow::Result<()>;

    /// Opens it.
    fn open(setup: &Setup) -> anyhow::Result<Self>;

    /// A thread's access.
    fn session(&self) -> anyhow::Result<Self::Session<'_>>;

    /// Brings it to where a program has it that has changed records at random for a while. Every record was read.
    fn settle(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Brings what is committed to where it stays, where that is done later than the commit.
    fn checkpoint(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The longest that a commit has kept stores from being made, in microseconds, where it does.
    fn stores_held_us_max(&self) -> Option<f64> {
        None
    }

    /// Closes it.
    fn close(self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A thread's access to a store.
pub trait Session: Send {
    /// Reads a record.
    fn read(&mut self, number: u64, record: &mut Record) -> anyhow::Result<()>;

    /// Makes changes as one; they are durable when it returns.
    fn commit(&mut self, changes: &[Change]) -> anyhow::Result<()>;

    /// Loads from a page, in the way that takes least time.
    fn load(&mut self, page: u64) -> anyhow::Result<()>;

    /// Stores to a page outside of its records, to become durable with a later commit.
    fn store(&mut self, page: u64) -> anyhow::Result<()> {
        bail!("there are no stores outside of transactions, page {page}")
    }
}
