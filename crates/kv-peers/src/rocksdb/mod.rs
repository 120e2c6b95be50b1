//! RocksDB: options are given as text, which its C interface reads, so that few functions of that are needed.

mod library;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use self::library::Database;
use crate::{Engine, Setup};

/// A database.
pub struct RocksdbEngine {
    database: Database,
}

impl RocksdbEngine {
    /// With options as they come.
    pub fn open_default(setup: &Setup) -> Result<Self> {
        Self::open(&setup.folder, "create_if_missing=true")
    }

    /// With what its tuning guide advises for little memory: write buffers, a block cache that has filters and indexes,
    /// and the rest for the page cache.
    pub fn open_tuned(setup: &Setup, compression: &str) -> Result<Self> {
        let buffer = setup.memory_bytes / 8;
        let cache = setup.memory_bytes / 3;
        let options = format!(
            "create_if_missing=true;compression={compression};write_buffer_size={buffer};max_write_buffer_number=2;\
             target_file_size_base={buffer};max_bytes_for_level_base={};level_compaction_dynamic_level_bytes=true;\
             max_background_jobs=2;bytes_per_sync=1048576;compaction_readahead_size=2097152;\
             block_based_table_factory={{block_cache={cache};filter_policy=bloomfilter:10:false;\
             cache_index_and_filter_blocks=true;pin_l0_filter_and_index_blocks_in_cache=true;format_version=5}}",
            4 * buffer
        );
        Self::open(&setup.folder, &options)
    }

    fn open(folder: &Path, options: &str) -> Result<Self> {
        Ok(Self { database: Database::open(folder, options)? })
    }
}

impl Engine for RocksdbEngine {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.put(key, value)
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.database.get(key, read)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.database.delete(key)
    }

    fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.database.scan(from, records, read)
    }

    fn sync(&self) -> Result<()> {
        self.database.sync_log()
    }

    fn flush(&self) -> Result<()> {
        self.database.flush_memtable()?;
        let busy =
            [c"rocksdb.mem-table-flush-pending", c"rocksdb.compaction-pending", c"rocksdb.num-running-compactions"];
        // A compaction may begin when the one before has ended: idle is what stays so for a moment.
        let mut idle = 0;
        while idle < 5 {
            thread::sleep(Duration::from_millis(2));
            idle = if busy.iter().any(|name| self.database.property(name) != Some(0)) { 0 } else { idle + 1 };
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}
