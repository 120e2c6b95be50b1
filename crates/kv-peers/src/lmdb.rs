//! LMDB: one transaction for each write, through a writable map that is synced when asked.

use std::ops::Bound;

use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, PutFlags};
use vmio_measure::kv::{Engine, Keyspace, Setup};

/// An environment with a database for each keyspace in it.
pub struct LmdbEngine {
    env: Env,
    keyspaces: Vec<LmdbKeyspace>,
}

struct LmdbKeyspace {
    env: Env,
    records: Database<Bytes, Bytes>,
    /// Appends records whose keys are greater than all others: leaves become full instead of half full.
    appends: bool,
}

impl LmdbEngine {
    pub fn open(setup: &Setup) -> Result<Self> {
        // Address space, not memory: half-full leaves, and pages that wait for reuse.
        let map_bytes = (6 * setup.data_bytes + (1 << 30)).next_multiple_of(1 << 20);
        // Changed pages are written in place in the map, which is LMDB's fastest way.
        let mut flags = EnvFlags::WRITE_MAP;
        if !setup.sync_writes {
            // Commits return without a flush, as the other engines' do; a power cut may then damage the map.
            flags |= EnvFlags::NO_SYNC;
        }
        if setup.data_bytes > setup.memory_bytes / 2 {
            // As its documentation advises for data larger than memory.
            flags |= EnvFlags::NO_READ_AHEAD;
        }
        let mut options = EnvOpenOptions::new();
        options.map_size(map_bytes as usize);
        if setup.keyspaces > 1 {
            options.max_dbs(setup.keyspaces);
        }
        // SAFETY: the benchmark is the only user of these files, and what a crash leaves of them is never opened.
        unsafe { options.flags(flags) };
        // SAFETY: the folder belongs to this run, and its files change only through this environment.
        let env = unsafe { options.open(&setup.folder) }.context("cannot open the LMDB environment")?;
        let mut transaction = env.write_txn()?;
        let mut keyspaces = Vec::new();
        for name in setup.keyspace_names() {
            let name = (setup.keyspaces > 1).then_some(name);
            let records = env.create_database(&mut transaction, name.as_deref())?;
            keyspaces.push(LmdbKeyspace { env: env.clone(), records, appends: setup.puts_in_order });
        }
        transaction.commit()?;
        Ok(Self { env, keyspaces })
    }
}

impl Engine for LmdbEngine {
    fn keyspace(&self, number: u32) -> &dyn Keyspace {
        &self.keyspaces[number as usize]
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn flush(&self) -> Result<()> {
        self.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()?;
        drop(self.keyspaces);
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

impl Keyspace for LmdbKeyspace {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        let appended = match self.appends {
            true => self.records.put_with_flags(&mut transaction, PutFlags::APPEND, key, value),
            false => Err(MdbError::KeyExist.into()),
        };
        match appended {
            Err(heed::Error::Mdb(MdbError::KeyExist)) => self.records.put(&mut transaction, key, value)?,
            other => other?,
        }
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let transaction = self.env.read_txn()?;
        let value = self.records.get(&transaction, key)?;
        Ok(value.map(read).is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        self.records.delete(&mut transaction, key)?;
        Ok(transaction.commit()?)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let transaction = self.env.read_txn()?;
        let mut seen = 0;
        for record in self.records.range(&transaction, &(Bound::Included(from), Bound::Unbounded))?.take(records) {
            let (key, value) = record?;
            read(key, value);
            seen += 1;
        }
        Ok(seen)
    }
}
