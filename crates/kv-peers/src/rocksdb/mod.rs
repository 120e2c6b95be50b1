//! RocksDB. Options are given as text, which its C interface parses, so that few of its functions are needed.

mod library;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use vmio_measure::kv::{Engine, Keyspace, Setup};

use self::library::{ColumnFamily, Database};

/// A database with a column family for each keyspace in it.
pub struct RocksdbEngine {
    database: Arc<Database>,
    keyspaces: Vec<RocksdbKeyspace>,
}

struct RocksdbKeyspace {
    database: Arc<Database>,
    family: ColumnFamily,
}

impl RocksdbEngine {
    /// With the default options.
    pub fn open_default(setup: &Setup) -> Result<Self> {
        Self::open(setup, "create_if_missing=true;create_missing_column_families=true")
    }

    /// With the options that its tuning guide advises for little memory: write buffers, a block cache with filters and indexes, and the
    /// rest for the page cache.
    pub fn open_tuned(setup: &Setup, compression: &str) -> Result<Self> {
        // Its guide advises another allocator; this one would otherwise waste a quarter of a small memory.
        library::limit_arenas();
        let buffer = setup.memory_bytes / 8;
        let cache = setup.memory_bytes / 3;
        // Bytes that a compaction reads ahead in each file that it merges. With the usual 2 MiB, ten files take the rest of a little
        // memory, and the process is killed.
        let read_ahead = (setup.memory_bytes / 512).min(2 << 20);
        let options = format!(
            "create_if_missing=true;create_missing_column_families=true;compression={compression};write_buffer_size={buffer};max_write_buffer_number=2;\
             target_file_size_base={buffer};max_bytes_for_level_base={};level_compaction_dynamic_level_bytes=true;\
             max_background_jobs=2;bytes_per_sync=1048576;compaction_readahead_size={read_ahead};\
             block_based_table_factory={{block_cache={cache};filter_policy=bloomfilter:10:false;\
             cache_index_and_filter_blocks=true;pin_l0_filter_and_index_blocks_in_cache=true;format_version=5}}",
            4 * buffer
        );
        Self::open(setup, &options)
    }

    fn open(setup: &Setup, options: &str) -> Result<Self> {
        // There is always one of this name.
        let first = ["default".to_owned()];
        let names: Vec<_> = first.into_iter().chain(setup.keyspace_names().skip(1)).collect();
        let database = Arc::new(Database::open(&setup.folder, options, &names, setup.sync_writes)?);
        let keyspaces =
            database.families().map(|family| RocksdbKeyspace { database: Arc::clone(&database), family }).collect();
        Ok(Self { database, keyspaces })
    }
}

impl Engine for RocksdbEngine {
    fn keyspace(&self, number: u32) -> &dyn Keyspace {
        &self.keyspaces[number as usize]
    }

    fn sync(&self) -> Result<()> {
        self.database.sync_log()
    }

    fn flush(&self) -> Result<()> {
        for keyspace in &self.keyspaces {
            self.database.flush_memtable(keyspace.family)?;
        }
        let busy =
            [c"rocksdb.mem-table-flush-pending", c"rocksdb.compaction-pending", c"rocksdb.num-running-compactions"];
        // A compaction may begin when the one before has ended: idle means idle for a moment.
        let mut idle = 0;
        while idle < 5 {
            thread::sleep(Duration::from_millis(2));
            let is_busy =
                |family| busy.iter().any(|name| self.database.property(family, name).is_none_or(|value| value > 0));
            idle = if self.database.families().any(is_busy) { 0 } else { idle + 1 };
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

impl Keyspace for RocksdbKeyspace {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.put(self.family, key, value)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.database.get(self.family, key, read)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.database.delete(self.family, key)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.database.scan(self.family, from, records, read)
    }
}
