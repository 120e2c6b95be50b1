//! A version of a keyspace: the contents that readers see at one moment.

use std::sync::Arc;

use crate::format::catalogue::{LEVELS, LevelRoots, Root};
use crate::format::pointer::Pointer;
use crate::keyspace::memtable::{Memtable, NEWEST};
use crate::volume::epoch::ReclamationEpoch;

/// The contents of a keyspace at one moment.
pub(crate) struct Version {
    /// The mutable memtable.
    pub(crate) memtable: Arc<Memtable>,
    /// The immutable memtable, which is being flushed.
    pub(crate) immutable: Option<Arc<Memtable>>,
    /// The trees of the levels on the device, from 1 on. Row 0 stays empty: the format has it for checkpoints of the memtable.
    pub(crate) levels: [LevelRoots; LEVELS],
    /// The commit that made it.
    pub(crate) epoch: u64,
    /// Protects what the trees refer to from reuse.
    pub(crate) reclamation_epoch: Arc<ReclamationEpoch>,
}

impl Version {
    /// The newest of a key's records in memory with numbers below `before`.
    pub(crate) fn in_memory(&self, key: &[u8], before: u64) -> Option<Pointer> {
        // An empty memtable is known without its lock, for which readers on other cores would have to wait.
        let newest = if self.memtable.bytes() == 0 { None } else { self.memtable.get(key, before) };
        newest.or_else(|| self.immutable.as_ref()?.get(key, NEWEST))
    }

    /// The trees, the newest first.
    pub(crate) fn roots(&self) -> impl Iterator<Item = Root> + '_ {
        self.levels[1..].iter().flat_map(|level| [level.active, level.compacting]).flatten()
    }
}
