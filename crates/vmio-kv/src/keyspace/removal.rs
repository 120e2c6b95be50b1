//! A keyspace loses all that it has, at once: it is cleared, or is to be no more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::format::catalogue::{LEVELS, LevelRoots, KeyspaceEntry};
use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::pointer::PointerKind;
use crate::keyspace::memtable::Memtable;
use crate::keyspace::{Keyspace, Version};
use crate::tree::{MergeInput, Tree};
use crate::volume::epoch::Outdated;
use crate::volume::garbage::Garbage;

/// A keyspace that nobody writes to, since it is about to lose what it has.
pub(crate) struct Removal<'keyspace> {
    keyspace: &'keyspace Keyspace,
    version: Arc<Version>,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.keyspace.writing().is_removed = false;
        self.keyspace.changed.notify_all();
    }
}

/// What nothing refers to once that is committed.
#[derive(Default)]
pub(crate) struct Removed {
    /// Records of the log, newest of their keys or not known to be older.
    pub(crate) garbage: Garbage,
    /// What large values have taken that are in memory alone: no commit knows of it.
    pub(crate) extents: Vec<Extent>,
    /// That too, nodes, and what large values of the trees have taken.
    pub(crate) outdated: Vec<Freed>,
}

impl Keyspace {
    /// Has writers wait, and begins no compaction of it. What one is about to publish would come back: it has ended when this returns.
    /// No two do so at a time.
    pub(crate) fn begin_removal(&self) -> Result<Removal<'_>> {
        let mut writing = self.writing();
        if self.is_dropped() {
            return Err(self.gone());
        }
        if let Some(why) = &writing.failed {
            return Err(self.log.stopped(why));
        }
        writing.is_removed = true;
        while writing.is_compacting.contains(&true) {
            self.changed.wait(&mut writing);
        }
        Ok(Removal { keyspace: self, version: self.version() })
    }
}

impl Removal<'_> {
    /// All that it has. The leaves of its trees are read for that, and the heads of large values.
    pub(crate) fn contents(&self) -> Result<Removed> {
        let Removal { keyspace, version, .. } = self;
        let mut removed = Removed::default();
        for level in std::iter::once(&version.memtable).chain(&version.immutable) {
            // Those that were replaced there have been counted.
            each_pointer(&**level, |pointer| {
                if pointer.kind() != PointerKind::Extents {
                    removed.garbage.count(pointer);
                }
            })?;
            removed.extents.extend(level.extents());
        }
        removed.outdated.extend(removed.extents.iter().copied().map(Freed::from));
        for root in version.roots() {
            let tree = Tree::new(&keyspace.log, keyspace.number, root, version.epoch);
            removed.outdated.extend(tree.blocks()?.freed());
            each_pointer(&tree, |pointer| removed.garbage.count(pointer))?;
        }
        let dead = keyspace.extents_of_dead(removed.garbage.large())?;
        removed.outdated.extend(dead.into_iter().map(Freed::from));
        Ok(removed)
    }

    /// It is not known whether it is committed.
    pub(crate) fn fail(self, why: &str) {
        self.keyspace.fail(why);
    }

    /// Has readers see that it has nothing, which a commit of that epoch has made durable. It goes on as the entry says, or is no more.
    pub(crate) fn publish(self, epoch: u64, outdated: Vec<Freed>, goes_on: Option<&KeyspaceEntry>) {
        let Removal { keyspace, version } = &self;
        let mut writing = keyspace.writing();
        writing.has_no_space = false;
        // Who waits for them to be compacted need not wait any more.
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
        // Snapshots alone may hold it.
        version.memtable.make_immutable();
        version.memtable.flushed();
        keyspace.version.store(Arc::new(Version {
            // What is known to be empty from here on is not for views of what there was, though they see the same numbers.
            memtable: Arc::new(Memtable::new(log_sequence, log_offset, &keyspace.memtable_budget)),
            immutable: None,
            levels: [LevelRoots::default(); LEVELS],
            epoch,
            reclamation_epoch: version.reclamation_epoch.end(Outdated::new(&keyspace.log.segment.retired, outdated)),
        }));
        keyspace.tree_records.clear();
        keyspace.changed.notify_all();
    }
}

fn each_pointer(level: &dyn MergeInput, mut see: impl FnMut(crate::format::pointer::Pointer)) -> Result<()> {
    let mut source = level.source(&[])?;
    while let Some(known) = source.next()? {
        see(known.pointer);
    }
    Ok(())
}
