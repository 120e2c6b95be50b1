//! The thread that spills, and commits what it has spilled.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::db::Store;
use crate::error::Result;
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

    fn take(&self) -> Option<Arc<Region>> {
        let mut waiting = self.waiting();
        loop {
            if waiting.stopping {
                return None;
            }
            if let Some(region) = waiting.regions.pop_front() {
                return Some(region);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
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
            while let Some(region) = its.spills.take() {
                if let Err(error) = its.spill_all(&region) {
                    tracing::error!(%error, region = region.name, "a spill failed: the region takes no more writes");
                    region.fail(&error.to_string());
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
    fn spill_all(&self, region: &Region) -> Result<()> {
        while let Some(spilled) = region.spill()? {
            // The levels are about to point to records: these have to be there first.
            self.log.sync_all()?;
            let changes = Changes {
                regions: vec![spilled.entry.clone()],
                taken: spilled.taken.clone(),
                replay: Some(self.replay_from(&spilled.entry)),
                log: Some(self.log.position()),
                ..Changes::default()
            };
            self.segment.commit(changes, &spilled.outdated)?;
            region.publish(spilled);
        }
        Ok(())
    }
}
