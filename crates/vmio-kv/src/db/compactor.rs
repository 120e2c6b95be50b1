//! The threads that flush and compact, and the commits of their results.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use vmio::SignalsBlocked;

use crate::db::collector::thread::CollectorThread;
use crate::db::compaction_queue::Work;
use crate::db::open_segment::OpenSegment;
use crate::db::segments::Segments;
use crate::error::{Error, Result};
use crate::format::catalogue::{KeyspaceEntry, LEVELS};
use crate::format::geometry::ALLOCATION_UNIT_BLOCKS;
use crate::keyspace::{Compacted, Compaction, Due, Keyspace};
use crate::tree::RUN_BLOCKS_MAX;
use crate::volume::committed::Changes;

/// The compaction threads, and the collector's, which may wait for a compaction.
pub(super) struct Compactor {
    segments: Arc<Segments>,
    threads: Vec<JoinHandle<()>>,
    collector: Option<CollectorThread>,
}

impl Compactor {
    pub(super) fn start(segments: &Arc<Segments>) -> std::io::Result<Self> {
        // If a thread cannot be started, the drop ends those that were.
        let mut compactor = Compactor { segments: Arc::clone(segments), threads: Vec::new(), collector: None };
        let _signals = SignalsBlocked::new();
        for _ in 0..segments.store().merge_threads.most() {
            let its = Arc::clone(segments);
            let work = move || {
                while let Some(work) = its.store().compactions.take() {
                    its.do_work(work)
                }
            };
            compactor.threads.push(std::thread::Builder::new().name("vmio-kv-compact".to_owned()).spawn(work)?);
        }
        if !segments.store().options.reads_only() {
            compactor.collector = Some(CollectorThread::start(segments)?);
        }
        Ok(compactor)
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        let store = self.segments.store();
        store.compactions.stop();
        // Handles may outlive the store: no flush would make space for their writes.
        store.keyspaces().values().for_each(|keyspace| keyspace.fail("it was closed"));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a compaction thread has panicked");
            }
        }
        // The collector waits for no compaction now.
        self.collector = None;
    }
}

/// The result of a look for something to compact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Nothing,
    /// A flush, a compaction, or the first step of one.
    Compaction,
    /// A later step of a compaction.
    LaterStep,
}

impl Segments {
    fn do_work(&self, work: Work) {
        let store = self.store();
        match work {
            Work::Compact(keyspace) => {
                self.compact(&keyspace, Due::Full);
                store.compactions.unsettle();
                store.collector.wake();
            }
            Work::Relieve => self.rotate_largest_memtable(),
            Work::LookForCalm => self.compact_in_calm(),
            // The bottom level will have them side by side.
            Work::Reorganize(apart) if apart.keyspace.has_work_for_a_calm() => {
                drop(apart);
                self.compact_in_calm();
            }
            Work::Reorganize(apart) => {
                if let Err(error) = self.of(&apart.keyspace).reorganize(apart) {
                    tracing::debug!(%error, "records stay where they are");
                }
            }
        }
    }

    /// Compacts a keyspace until nothing is due. Between the steps of a merge into leaves other keyspaces have their turn.
    fn compact(&self, keyspace: &Arc<Keyspace>, mut due: Due) {
        let store = self.store();
        loop {
            match self.of(keyspace).compact_one(keyspace, due) {
                Ok(Did::Nothing) => return,
                Ok(Did::Compaction | Did::LaterStep) => {}
                Err(error) => {
                    tracing::error!(%error, keyspace = keyspace.name, "a compaction failed");
                    return;
                }
            }
            if store.compactions.is_stopping() {
                return;
            }
            if keyspace.is_between_steps() && store.compactions.has_keyspaces() {
                store.compactions.put(keyspace);
                return;
            }
            due = Due::Full;
        }
    }

    /// Compacts what is worth it while there are few writes.
    fn compact_in_calm(&self) {
        let store = self.store();
        if store.options.reads_only() {
            return store.compactions.settle();
        }
        let mut is_settled = true;
        for segment in self.all() {
            let is_calm = segment.is_calm();
            for keyspace in segment.keyspaces().iter().filter(|keyspace| keyspace.has_work_for_a_calm()) {
                is_settled = false;
                if is_calm {
                    self.compact(keyspace, Due::Calm);
                    store.collector.wake();
                }
            }
        }
        if is_settled {
            store.compactions.settle();
        }
    }

    /// Rotates the largest memtables as long as all of them together take too much.
    fn rotate_largest_memtable(&self) {
        let store = self.store();
        while store.memtable_budget.is_crowded() && !store.compactions.is_stopping() {
            let can_be_rotated = |keyspace: &&Arc<Keyspace>| !keyspace.has_immutable() && !keyspace.has_failed();
            let largest = {
                let keyspaces = store.keyspaces();
                keyspaces.values().filter(can_be_rotated).max_by_key(|keyspace| keyspace.memtable_bytes()).cloned()
            };
            let Some(largest) = largest.filter(|largest| largest.rotate_memtable()) else { break };
            store.compactions.put(&largest);
        }
    }
}

impl OpenSegment {
    /// Does all flushes and compactions of a keyspace that are due and that no other thread does. If there is no space, the memtable stays
    /// in memory; garbage collections try again.
    pub(super) fn compact_all(&self, keyspace: &Keyspace) -> Result<()> {
        while self.compact_one(keyspace, Due::Full)? != Did::Nothing && !self.store.compactions.is_stopping() {}
        Ok(())
    }

    /// Merges the present contents of a keyspace into one level, whatever is written meanwhile.
    pub(super) fn merge_all(&self, keyspace: &Keyspace) -> Result<()> {
        let mut left = 2 * LEVELS;
        while left > 0 {
            let did = self.compact_one(keyspace, Due::All)?;
            // The steps of a merge are as many as it takes.
            left -= usize::from(did != Did::LaterStep);
            if did != Did::Nothing {
                continue;
            }
            let is_others = keyspace.is_flushing() || keyspace.is_compacting_levels();
            // Another thread's result may have to be merged further.
            self.segment.merges.wait();
            if !is_others {
                break;
            }
        }
        Ok(())
    }

    /// Does the next flush or compaction that is due.
    fn compact_one(&self, keyspace: &Keyspace, due: Due) -> Result<Did> {
        let Some(compaction) = keyspace.begin_compaction(due) else { return Ok(Did::Nothing) };
        let (level, is_flush) = (compaction.level(), compaction.is_flush());
        let did = if compaction.is_later_step() { Did::LaterStep } else { Did::Compaction };
        match self.finish_compaction(compaction) {
            Ok(()) => Ok(did),
            Err(Error::Full { .. }) if self.grow() => Ok(Did::Compaction),
            Err(error @ Error::Full { .. }) => {
                tracing::warn!(%error, keyspace = keyspace.name, "there is no space for a compaction");
                keyspace.lack_space();
                if !is_flush {
                    keyspace.rest(level);
                }
                Ok(Did::Nothing)
            }
            Err(error) => {
                if is_flush {
                    tracing::error!(%error, keyspace = keyspace.name, "a compaction failed: the keyspace takes no more writes");
                    keyspace.fail(&error.with_causes());
                } else {
                    keyspace.rest(level);
                }
                Err(error)
            }
        }
    }

    /// Does a compaction that has begun, and commits it.
    pub(super) fn finish_compaction(&self, compaction: Compaction<'_>) -> Result<()> {
        let compacted = compaction.merge(&self.store.merge_threads)?;
        self.commit_compacted(vec![compacted], |entries| entries.first().map(|entry| self.replay_from(entry)))
    }

    /// Flushes the memtables of all keyspaces with one commit. Until then an opening may read the log back from a former owner's chunk,
    /// which does not lead to ours. So before this commit no keyspace may begin behind that chunk, and no commit may call a record behind
    /// it durable.
    pub(super) fn flush_memtables_at_once(&self) -> Result<()> {
        let keyspaces = self.keyspaces();
        let mut all = Vec::new();
        for keyspace in keyspaces.iter().filter(|keyspace| keyspace.rotate_memtable()) {
            while let Some(compaction) = keyspace.begin_compaction(Due::Full) {
                match compaction.merge(&self.store.merge_threads) {
                    Ok(compacted) => {
                        all.push(compacted);
                        break;
                    }
                    Err(Error::Full { .. }) if self.grow() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.commit_compacted(all, |_| Some(self.log.end()))
    }

    /// Commits finished compactions together. The keyspaces' new state tells the place from which an opening reads the log back.
    fn commit_compacted(
        &self,
        mut all: Vec<Compacted<'_>>,
        replay: impl FnOnce(&[KeyspaceEntry]) -> Option<(u64, u64)>,
    ) -> Result<()> {
        self.log.check_goes_on()?;
        // The levels are about to point to records, which must be durable first.
        self.log.sync_all()?;
        let _committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut changes, mut retired) = (Changes::default(), Vec::new());
        for compacted in &mut all {
            // The commit records the garbage that it makes.
            let mut allocator = self.segment.allocator();
            compacted.garbage.of_log().for_each(|(unit, bytes)| allocator.add_garbage(unit, bytes));
            drop(allocator);
            changes.keyspaces.push(compacted.entry());
            changes.taken.append(std::mem::take(&mut compacted.taken));
            changes.extents.extend(&compacted.extents);
            retired.extend(&compacted.retired);
        }
        changes.replay = replay(&changes.keyspaces);
        changes.log = Some(self.log.position());
        let epoch = self.segment.commit(changes, &retired)?;
        all.into_iter().for_each(|compacted| compacted.publish(epoch));
        self.segment.give_back()?;
        self.update_free_reserve();
        Ok(())
    }

    /// Sets the free reserve to the units that the largest concurrent compactions may take. These are the units of their nodes, the rests
    /// of the runs that they write in, and for each a begun unit of leaves and one of inner nodes.
    pub(super) fn update_free_reserve(&self) {
        self.segment.free_reserve.set_compaction_units(|| {
            let mut blocks: Vec<u64> = self.keyspaces().iter().map(|keyspace| keyspace.compaction_blocks()).collect();
            blocks.sort_unstable_by_key(|blocks| std::cmp::Reverse(*blocks));
            let compactions = self.store.merge_threads.most();
            let nodes: u64 = blocks.into_iter().take(compactions).sum();
            let runs = 2 * (compactions as u64 - 1) * RUN_BLOCKS_MAX;
            (nodes + runs).div_ceil(ALLOCATION_UNIT_BLOCKS) + 2 * compactions as u64
        });
        if !self.store.options.reads_only() {
            self.segment.allocate_free_reserve();
        }
    }
}

#[cfg(test)]
mod tests;
