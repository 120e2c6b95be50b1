//! redb: one write a transaction without durability, and an empty durable one when asked to sync.

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use crate::{Engine, Setup};

const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

/// A database with one table in it.
pub struct RedbEngine {
    database: Database,
}

impl RedbEngine {
    pub fn open(setup: &Setup) -> Result<Self> {
        let mut builder = Database::builder();
        // It reads and writes through the page cache, and keeps beside its own what is not durable yet: with a half it is
        // killed for want of memory where records are updated.
        builder.set_cache_size(setup.memory_bytes as usize / 4);
        let engine = Self { database: builder.create(setup.folder.join("redb"))? };
        let transaction = engine.database.begin_write()?;
        transaction.open_table(RECORDS)?;
        transaction.commit()?;
        Ok(engine)
    }
}

impl Engine for RedbEngine {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        transaction.open_table(RECORDS)?.insert(key, value)?;
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let records = self.database.begin_read()?.open_table(RECORDS)?;
        let value = records.get(key)?;
        Ok(value.map(|value| read(value.value())).is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        transaction.open_table(RECORDS)?.remove(key)?;
        Ok(transaction.commit()?)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let table = self.database.begin_read()?.open_table(RECORDS)?;
        let mut seen = 0;
        for record in table.range(from..)?.take(records) {
            let (key, value) = record?;
            read(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.begin_write()?.commit()?)
    }

    fn flush(&self) -> Result<()> {
        self.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}
