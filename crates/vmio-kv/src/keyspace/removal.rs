//! Removal of all keys of a keyspace, which is cleared or dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::format::catalogue::{KeyspaceEntry, LEVELS, LevelRoots};
use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::pointer::PointerKind;
use crate::keyspace::{Keyspace, Version};
use crate::tree::{MergeInput, Tree};
use crate::volume::epoch::RetiredBlocks;
use crate::volume::garbage::Garbage;

/// A keyspace without writers, which is about to lose all keys.
pub(crate) struct Removal<'keyspace> {
    keyspace: &'keyspace Keyspace,
    version: Arc<Version>,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.keyspace.writing().is_being_emptied = false;
        self.keyspace.changed.notify_all();
    }
}

/// Blocks without a reference once the removal is committed.
#[derive(Default)]
pub(crate) struct Removed {
    /// Records of the log that were not counted as garbage yet.
    pub(crate) garbage: Garbage,
    /// Extents of large values that only memtables refer to: no commit has them.
    pub(crate) extents: Vec<Extent>,
    /// Those extents, nodes, and extents of large values that trees refer to.
    pub(crate) retired: Vec<Freed>,
}

impl Keyspace {
    /// Stops writers, flushes and compactions. It returns once running ones have ended, since their results would bring keys back. The
    /// caller does not remove twice at a time.
    pub(crate) fn begin_removal(&self) -> Result<Removal<'_>> {
        let mut writing = self.writing();
        if self.is_dropped() {
            return Err(self.gone());
        }
        if let Some(why) = &writing.failed {
            return Err(self.log.stopped(why));
        }
        debug_assert!(!writing.is_being_emptied, "a keyspace is removed twice at a time");
        writing.is_being_emptied = true;
        while writing.is_compacting.contains(&true) {
            self.changed.wait(&mut writing);
        }
        Ok(Removal { keyspace: self, version: self.version() })
    }
}

impl Removal<'_> {
    /// All that the keyspace has. It reads the leaves of its trees, and the heads of large values.
    pub(crate) fn contents(&self) -> Result<Removed> {
        let Removal { keyspace, version, .. } = self;
        let mut removed = Removed::default();
        for level in std::iter::once(&version.memtable).chain(&version.immutable) {
            // Records that were replaced in a memtable have been counted.
            each_pointer(&**level, |pointer| {
                if pointer.kind() != PointerKind::Extents {
                    removed.garbage.count(pointer);
                }
            })?;
            removed.extents.extend(level.extents());
        }
        removed.retired.extend(removed.extents.iter().copied().map(Freed::from));
        for root in version.roots() {
            let tree = Tree::new(&keyspace.log, keyspace.number, root, version.epoch);
            removed.retired.extend(tree.blocks()?.freed());
            each_pointer(&tree, |pointer| removed.garbage.count(pointer))?;
        }
        let dead = keyspace.extents_of_dead(removed.garbage.large())?;
        removed.retired.extend(dead.into_iter().map(Freed::from));
        Ok(removed)
    }

    /// Makes all writes fail, since the removal may or may not be committed.
    pub(crate) fn fail(self, why: &str) {
        self.keyspace.fail(why);
    }

    /// Shows readers the removal that a commit of that epoch has made durable. The keyspace goes on as the entry says, or is dropped.
    pub(crate) fn publish(self, epoch: u64, retired: Vec<Freed>, goes_on: Option<&KeyspaceEntry>) {
        let Removal { keyspace, version } = &self;
        let mut writing = keyspace.writing();
        writing.has_no_space = false;
        // A wait for its memtables to be flushed ends.
        writing.flushed_memtables += u64::from(version.immutable.is_some()) + u64::from(!version.memtable.is_empty());
        let (log_offset, log_sequence) = match goes_on {
            Some(entry) => (entry.log_offset, entry.log_sequence),
            None => {
                keyspace.is_dropped.store(true, Ordering::Release);
                (version.memtable.log_offset, version.memtable.first_sequence)
            }
        };
        if let Some(immutable) = &version.immutable {
            immutable.flushed();
        }
        // Only snapshots may hold it now.
        version.memtable.make_immutable();
        version.memtable.flushed();
        keyspace.version.store(Arc::new(Version {
            memtable: Arc::new(version.memtable.following_removal(log_sequence, log_offset)),
            immutable: None,
            levels: [LevelRoots::default(); LEVELS],
            epoch,
            reclamation_epoch: version
                .reclamation_epoch
                .end(RetiredBlocks::new(&keyspace.log.segment.reclaimable, retired)),
        }));
        keyspace.tree_records.clear();
        keyspace.changed.notify_all();
    }
}

fn each_pointer(level: &dyn MergeInput, mut see: impl FnMut(crate::format::pointer::Pointer)) -> Result<()> {
    let mut source = level.source(&[])?;
    while let Some(entry) = source.next()? {
        see(entry.key.pointer);
    }
    Ok(())
}
