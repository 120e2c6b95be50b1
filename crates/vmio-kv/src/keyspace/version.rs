//! What a keyspace is at one moment, for those who read.

use std::sync::Arc;

use crate::format::catalogue::{LEVELS, LevelRoots, Root};
use crate::format::pointer::Pointer;
use crate::keyspace::memtable::{Memtable, NEWEST};
use crate::volume::epoch::ReclamationEpoch;

/// A keyspace at one moment.
pub(crate) struct Version {
    /// The memtable that is written to.
    pub(crate) memtable: Arc<Memtable>,
    /// The immutable one, which is being flushed, and is not written to any more.
    pub(crate) immutable: Option<Arc<Memtable>>,
    /// The trees of the levels on the device, from 1; 0 has checkpoints.
    pub(crate) levels: [LevelRoots; LEVELS],
    /// The commit since which it is the newest.
    pub(crate) epoch: u64,
    /// Keeps what the trees refer to from being used again.
    pub(crate) reclamation_epoch: Arc<ReclamationEpoch>,
}

impl Version {
    /// Of a key's records in memory with numbers below `before`, the newest.
    pub(crate) fn in_memory(&self, key: &[u8], before: u64) -> Option<Pointer> {
        // Nothing is in it: that is known without a look, for which readers of other cores would have to wait.
        let newest = if self.memtable.bytes() == 0 { None } else { self.memtable.get(key, before) };
        newest.or_else(|| self.immutable.as_ref()?.get(key, NEWEST))
    }

    /// The trees, the newest first.
    pub(crate) fn roots(&self) -> impl Iterator<Item = Root> + '_ {
        self.levels[1..].iter().flat_map(|level| [level.active, level.compacting]).flatten()
    }
}
