//! vmio-kv as an engine, for programs that link no other store.

use std::sync::Arc;

use anyhow::Result;
use vmio_kv::{Db, Durability, KeyspaceHandle, Options};

use super::engine::{Engine, EngineKind, Keyspace, Replayed, Setup, Stores};
use super::page_trace::PageTrace;

const BESIDE_BYTES_MIN: u64 = 16 << 20;
const MEMTABLE_BYTES_MIN: u64 = 64 << 10;

/// vmio-kv alone.
#[derive(Clone, Copy, Debug)]
pub struct OwnStores;

impl Stores for OwnStores {
    fn check(&self, engine: EngineKind) -> Result<()> {
        engine.faults().map(drop).ok_or_else(|| MeasuredByVmioBench { engine }.into())
    }

    fn open(&self, engine: EngineKind, setup: &Setup) -> Result<Box<dyn Engine>> {
        let faults = engine.faults().ok_or(MeasuredByVmioBench { engine })?;
        Ok(Box::new(VmioEngine::open(setup, faults)?))
    }
}

/// An engine of another program: `vmio` links no other store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} is measured by vmio-bench: cargo run --release -p vmio-bench{} -- kv --engines vmio,{engine}", .engine.cargo_options())]
pub struct MeasuredByVmioBench {
    /// The requested engine.
    pub engine: EngineKind,
}

/// A store in a file of the folder.
pub struct VmioEngine {
    keyspaces: Vec<VmioKeyspace>,
    /// The memory for two memtables of each keyspace.
    memtables_bytes: u64,
    page_trace: Option<Arc<PageTrace>>,
    db: Db,
}

struct VmioKeyspace(KeyspaceHandle);

impl VmioEngine {
    pub fn open(setup: &Setup, engine: vmio_kv::Engine) -> Result<Self> {
        // The program, its stacks, page tables and the allocator's reserves come in addition to the store's memory.
        let memory_bytes = setup.memory_bytes - (setup.memory_bytes / 10).max(BESIDE_BYTES_MIN);
        // Sparse, so that unused space costs nothing.
        let volume_bytes = 3 * setup.written_bytes + 2 * setup.data_bytes + (1 << 30);
        let durability = if setup.sync_writes { Durability::Sync } else { Durability::None };
        let keyspaces = u64::from(setup.keyspaces);
        let memtable_bytes = (memory_bytes / 8 / keyspaces).max(MEMTABLE_BYTES_MIN);
        let page_trace = setup.page_trace.as_deref().map(PageTrace::create).transpose()?.map(Arc::new);
        let mut options = Options::new()
            .engine(engine)
            .memory_bytes(memory_bytes)
            .memtable_bytes(memtable_bytes)
            .filter_bytes(setup.filter_bytes)
            .values_in_leaves(true)
            .max_volume_bytes(volume_bytes)
            .durability(durability);
        if let Some(trace) = page_trace.clone() {
            options = options.observe_pages(move |page, is_store| trace.note(page, is_store));
        }
        let db = Db::open_or_create(setup.folder.join("volume"), options)?;
        let keyspaces = match setup.keyspaces {
            1 => vec![VmioKeyspace(db.default_keyspace().clone())],
            _ => {
                let open = |name: String| db.keyspace_or_create(&name).map(VmioKeyspace);
                setup.keyspace_names().map(open).collect::<vmio_kv::Result<_>>()?
            }
        };
        Ok(Self { memtables_bytes: 2 * memtable_bytes * u64::from(setup.keyspaces), keyspaces, page_trace, db })
    }
}

impl Engine for VmioEngine {
    fn keyspace(&self, number: u32) -> &dyn Keyspace {
        &self.keyspaces[number as usize]
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.sync()?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.keyspaces);
        self.db.close()?;
        self.page_trace.map_or(Ok(()), |trace| trace.finish())
    }

    fn memory_fill(&self) -> Option<f64> {
        let stats = self.db.stats().ok()?;
        Some(stats.memtable_bytes as f64 / self.memtables_bytes as f64)
    }

    fn replayed(&self) -> Option<Replayed> {
        let recovery = self.db.recovery();
        Some(Replayed { records: recovery.records, log_bytes: recovery.log_bytes })
    }
}

impl Keyspace for VmioKeyspace {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.0.put(key, value)?)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.0.get(key)?;
        if let Some(value) = &value {
            read(value);
        }
        Ok(value.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.0.delete(key)?)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut seen = 0;
        for record in self.0.scan(from..).take(records) {
            let (key, value) = record?;
            read(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_program_that_has_an_engine() {
        for engine in EngineKind::ALL {
            let is_own = engine.name().starts_with("vmio");
            let refusal = OwnStores.check(engine).err().and_then(|error| error.downcast::<MeasuredByVmioBench>().ok());
            assert_eq!(refusal, (!is_own).then_some(MeasuredByVmioBench { engine }));
        }
        let told = MeasuredByVmioBench { engine: EngineKind::RocksdbLz4 }.to_string();
        assert_eq!(
            told,
            "rocksdb-lz4 is measured by vmio-bench: cargo run --release -p vmio-bench --features peers -- kv --engines vmio,rocksdb-lz4"
        );
    }
}
