//! Other key-value stores behind the benchmark's trait, so that `vmio-bench kv` measures all stores with the same code.
//!
//! No crate that users link depends on this one. LMDB is always included; RocksDB, redb and fjall are features.

#[cfg(feature = "fjall")]
mod fjall;
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use anyhow::Result;
use vmio_measure::kv::{Engine, EngineKind, OwnStores, Setup, Stores};

/// vmio-kv, and the other stores of this build.
#[derive(Clone, Copy, Debug)]
pub struct Peers;

impl Stores for Peers {
    fn check(&self, engine: EngineKind) -> Result<()> {
        let is_there = match engine {
            EngineKind::Lmdb => true,
            EngineKind::Redb => cfg!(feature = "redb"),
            EngineKind::Fjall => cfg!(feature = "fjall"),
            EngineKind::Rocksdb | EngineKind::RocksdbLz4 | EngineKind::RocksdbDefault => cfg!(feature = "rocksdb"),
            own => own.faults().is_some(),
        };
        if is_there { Ok(()) } else { Err(NotBuilt { engine }.into()) }
    }

    fn open(&self, engine: EngineKind, setup: &Setup) -> Result<Box<dyn Engine>> {
        match engine {
            EngineKind::Lmdb => Ok(Box::new(lmdb::LmdbEngine::open(setup)?)),
            #[cfg(feature = "redb")]
            EngineKind::Redb => Ok(Box::new(redb::RedbEngine::open(setup)?)),
            #[cfg(feature = "fjall")]
            EngineKind::Fjall => Ok(Box::new(fjall::FjallEngine::open(setup)?)),
            #[cfg(feature = "rocksdb")]
            EngineKind::Rocksdb => Ok(Box::new(rocksdb::RocksdbEngine::open_tuned(setup, "kNoCompression")?)),
            #[cfg(feature = "rocksdb")]
            EngineKind::RocksdbLz4 => Ok(Box::new(rocksdb::RocksdbEngine::open_tuned(setup, "kLZ4Compression")?)),
            #[cfg(feature = "rocksdb")]
            EngineKind::RocksdbDefault => Ok(Box::new(rocksdb::RocksdbEngine::open_default(setup)?)),
            missing if missing.faults().is_none() => Err(NotBuilt { engine: missing }.into()),
            own => OwnStores.open(own, setup),
        }
    }
}

/// An engine that this build lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this vmio-bench was built without {engine}: run `make bench-kv`, or install librocksdb-dev and build by \
     `cargo build --release -p vmio-bench --features peers`"
)]
pub struct NotBuilt {
    /// The engine that was asked for.
    pub engine: EngineKind,
}
