//! vmio-kv itself.

use anyhow::Result;
use vmio_kv::{Db, Durability, Options};

use crate::{Engine, Setup};

const BESIDE_BYTES_MIN: u64 = 16 << 20;

/// A store in a file of the folder.
pub struct VmioEngine {
    db: Db,
}

impl VmioEngine {
    pub fn open(setup: &Setup) -> Result<Self> {
        // The program, its stacks, page tables and what the allocator holds back come beside the store's memory.
        let memory_bytes = setup.memory_bytes - (setup.memory_bytes / 8).max(BESIDE_BYTES_MIN);
        // Sparse, so that room which is not used costs nothing. The log keeps all that is written for the time being.
        let volume_bytes = 3 * setup.written_bytes + 2 * setup.data_bytes + (1 << 30);
        let options =
            Options::new().memory_bytes(memory_bytes).max_volume_bytes(volume_bytes).durability(Durability::None);
        Ok(Self { db: Db::open_or_create(setup.folder.join("volume"), options)? })
    }
}

impl Engine for VmioEngine {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put(key, value)?)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get(key)?;
        if let Some(value) = &value {
            read(value);
        }
        Ok(value.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete(key)?)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for record in self.db.scan(from..).take(records) {
            let (key, value) = record?;
            read(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.sync()?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}
