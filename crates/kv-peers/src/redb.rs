//! redb: one transaction for each write; without durability, a sync commits an empty durable transaction.

use std::sync::Arc;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use vmio_measure::kv::{Engine, Keyspace, Setup};

/// A database with a table for each keyspace in it.
pub struct RedbEngine {
    database: Arc<Database>,
    keyspaces: Vec<RedbKeyspace>,
}

struct RedbKeyspace {
    database: Arc<Database>,
    name: String,
    durability: Durability,
}

impl RedbEngine {
    pub fn open(setup: &Setup) -> Result<Self> {
        let mut builder = Database::builder();
        // It reads and writes through the page cache, and keeps non-durable changes besides its own cache: with half of the memory as
        // its cache it is killed for lack of memory where records are updated.
        builder.set_cache_size(setup.memory_bytes as usize / 4);
        let database = Arc::new(builder.create(setup.folder.join("redb"))?);
        let durability = if setup.sync_writes { Durability::Immediate } else { Durability::None };
        let keyspace = |name| RedbKeyspace { database: Arc::clone(&database), name, durability };
        let keyspaces: Vec<_> = setup.keyspace_names().map(keyspace).collect();
        let transaction = database.begin_write()?;
        for keyspace in &keyspaces {
            transaction.open_table(keyspace.table())?;
        }
        transaction.commit()?;
        Ok(Self { database, keyspaces })
    }
}

impl RedbKeyspace {
    fn table(&self) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
        TableDefinition::new(&self.name)
    }
}

impl Engine for RedbEngine {
    fn keyspace(&self, number: u32) -> &dyn Keyspace {
        &self.keyspaces[number as usize]
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

impl Keyspace for RedbKeyspace {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        transaction.open_table(self.table())?.insert(key, value)?;
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let records = self.database.begin_read()?.open_table(self.table())?;
        let value = records.get(key)?;
        Ok(value.map(|value| read(value.value())).is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        transaction.open_table(self.table())?.remove(key)?;
        Ok(transaction.commit()?)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let table = self.database.begin_read()?.open_table(self.table())?;
        let mut seen = 0;
        for record in table.range(from..)?.take(records) {
            let (key, value) = record?;
            read(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
}
