//! fjall: an LSM tree with a journal that goes to the page cache, and to the device when asked to sync.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::{Engine, Setup};

/// A database with one keyspace in it.
pub struct FjallEngine {
    database: Database,
    records: Keyspace,
}

/// The least that it works in.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;

impl FjallEngine {
    pub fn open(setup: &Setup) -> Result<Self> {
        // Its tables and its journal are read and written through the page cache, which has the rest.
        let database = Database::builder(&setup.folder).cache_size(setup.memory_bytes / 3).open()?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size((setup.memory_bytes / 8).max(MEMTABLE_BYTES_MIN))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        };
        let records = database.keyspace("records", options)?;
        Ok(Self { database, records })
    }
}

impl Engine for FjallEngine {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.records.insert(key, value)?)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.records.get(key)?;
        Ok(value.map(|value| read(&value)).is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.records.remove(key)?)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for record in self.records.range(from..).take(records) {
            let (key, value) = record.into_inner()?;
            read(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn flush(&self) -> Result<()> {
        self.records.rotate_memtable_and_wait()?;
        // A compaction may begin when the one before has ended: idle is what stays so for a moment.
        let is_busy = || self.database.active_compactions() > 0 || self.database.outstanding_flushes() > 0;
        let mut idle = 0;
        while idle < 5 {
            thread::sleep(Duration::from_millis(2));
            idle = if is_busy() { 0 } else { idle + 1 };
        }
        self.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}
