//! The thread that spills, commits what it has spilled, and collects garbage in between.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::db::Store;
use crate::error::{Error, Result};
use crate::format::geometry::UNIT_BLOCKS;
use crate::region::Region;
use crate::volume::commit::Changes;

/// Regions that have something to spill.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    regions: VecDeque<Arc<Region>>,
    /// There may be garbage to collect.
    collect: bool,
    stopping: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a region spilled; once if it is waiting already.
    pub(super) fn put(&self, region: &Arc<Region>) {
        let mut waiting = self.waiting();
        if !waiting.regions.iter().any(|other| Arc::ptr_eq(other, region)) {
            waiting.regions.push_back(Arc::clone(region));
            self.changed.notify_one();
        }
    }

    /// Has the thread see whether garbage is to be collected.
    pub(super) fn collect(&self) {
        self.waiting().collect = true;
        self.changed.notify_one();
    }

    /// Whether the store is being closed.
    pub(super) fn is_stopping(&self) -> bool {
        self.waiting().stopping
    }

    fn take(&self) -> Option<Work> {
        let mut waiting = self.waiting();
        loop {
            if waiting.stopping {
                return None;
            }
            if let Some(region) = waiting.regions.pop_front() {
                return Some(Work::Spill(region));
            }
            if std::mem::take(&mut waiting.collect) {
                return Some(Work::Collect);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

enum Work {
    Spill(Arc<Region>),
    Collect,
}

/// The thread.
pub(super) struct Spiller {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Spiller {
    pub(super) fn start(store: &Arc<Store>) -> std::io::Result<Self> {
        let its = Arc::clone(store);
        let thread = std::thread::Builder::new().name("vmio-kv-spill".to_owned()).spawn(move || {
            while let Some(work) = its.spills.take() {
                let mut upkeep = its.upkeep();
                match work {
                    Work::Spill(region) => {
                        if let Err(error) = its.spill_all(&region, false) {
                            tracing::error!(%error, region = region.name, "a spill failed");
                        }
                        its.spills.collect();
                    }
                    Work::Collect => match its.collect_due(&mut upkeep) {
                        Err(Error::Stopped { .. }) | Ok(()) => {}
                        Err(error) => tracing::error!(%error, "garbage of the log could not be collected"),
                    },
                }
            }
        })?;
        Ok(Spiller { store: Arc::clone(store), thread: Some(thread) })
    }
}

impl Drop for Spiller {
    fn drop(&mut self) {
        self.store.spills.waiting().stopping = true;
        self.store.spills.changed.notify_all();
        // Handles may outlive the store: nobody would make room for them.
        self.store.regions().values().for_each(|region| region.fail("it was closed"));
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that spills has panicked");
        }
    }
}

impl Store {
    /// Spills what is due of a region, or all of it into one level. Where there is no room for that, what is in memory stays there;
    /// collections try it again. The caller holds [`Self::upkeep`].
    pub(super) fn spill_all(&self, region: &Region, merged: bool) -> Result<()> {
        let spilled = self.spill_each(region, merged);
        if let Err(error) = &spilled
            && region.has_frozen()
        {
            tracing::error!(%error, region = region.name, "a spill failed: the region takes no more writes");
            region.fail(&error.to_string());
        }
        spilled
    }

    fn spill_each(&self, region: &Region, merged: bool) -> Result<()> {
        loop {
            let spilled = match region.spill(merged) {
                Ok(Some(spilled)) => spilled,
                Ok(None) => return Ok(()),
                Err(error @ Error::Full { .. }) => {
                    tracing::warn!(%error, region = region.name, "there is no room for a spill");
                    region.lack_room();
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            // The levels are about to point to records: these have to be there first.
            self.log.sync_all()?;
            // The commit has what it makes garbage.
            spilled.garbage.iter().for_each(|record| self.segment.count_garbage(*record));
            let changes = Changes {
                regions: vec![spilled.entry.clone()],
                taken: spilled.taken.clone(),
                replay: Some(self.replay_from(&spilled.entry)),
                log: Some(self.log.position()),
                ..Changes::default()
            };
            let epoch = self.segment.commit(changes, &spilled.outdated)?;
            region.publish(spilled, epoch);
            self.segment.give_back()?;
            self.keep_reserve();
        }
    }

    /// Has as much room kept free as the largest spill may take: its nodes, and a unit of leaves and one of inner nodes that
    /// are begun.
    pub(super) fn keep_reserve(&self) {
        let blocks = self.regions().values().map(|region| region.spill_blocks()).max().unwrap_or(0);
        self.segment.reserve.set_spill_units(blocks.div_ceil(UNIT_BLOCKS) + 2);
    }
}
