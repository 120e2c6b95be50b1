//! fjall: an LSM tree with a journal that goes to the page cache, and to the device when asked to sync.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, KeyspaceCreateOptions, PersistMode};
use vmio_measure::kv::{Engine, Keyspace, Setup};

/// A database of fjall, with a keyspace of its own for each keyspace of the setup.
pub struct FjallEngine {
    database: Database,
    keyspaces: Vec<FjallKeyspace>,
}

struct FjallKeyspace {
    records: fjall::Keyspace,
    /// Present if a write is durable when it returns.
    database: Option<Database>,
}

/// The smallest memtable that fjall works with.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;

impl FjallEngine {
    pub fn open(setup: &Setup) -> Result<Self> {
        // The rest of the memory is for the page cache, through which tables and journal are read and written.
        let database = Database::builder(&setup.folder).cache_size(setup.memory_bytes / 3).open()?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size((setup.memory_bytes / 8 / u64::from(setup.keyspaces)).max(MEMTABLE_BYTES_MIN))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        };
        let mut keyspaces = Vec::new();
        for name in setup.keyspace_names() {
            let records = database.keyspace(&name, options)?;
            keyspaces.push(FjallKeyspace { records, database: setup.sync_writes.then(|| database.clone()) });
        }
        Ok(Self { database, keyspaces })
    }
}

impl FjallKeyspace {
    fn written(&self) -> Result<()> {
        Ok(self.database.as_ref().map_or(Ok(()), |database| database.persist(PersistMode::SyncData))?)
    }
}

impl Engine for FjallEngine {
    fn keyspace(&self, number: u32) -> &dyn Keyspace {
        &self.keyspaces[number as usize]
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn flush(&self) -> Result<()> {
        for keyspace in &self.keyspaces {
            keyspace.records.rotate_memtable_and_wait()?;
        }
        // A compaction may begin when the one before has ended: idle means idle for a moment.
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

impl Keyspace for FjallKeyspace {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records.insert(key, value)?;
        self.written()
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.records.get(key)?;
        Ok(value.map(|value| read(&value)).is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.records.remove(key)?;
        self.written()
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
}
