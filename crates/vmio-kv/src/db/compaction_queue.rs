//! The work that waits for the compaction threads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::db::records_apart::RecordsApart;
use crate::keyspace::Keyspace;

/// The most batches of scanned records that wait for their rewrite side by side, for each idle thread.
const APART_MAX: usize = 4;

/// How often an idle thread looks whether there are few writes.
const CALM_LOOK: Duration = Duration::from_millis(250);

/// The keyspaces that have something to flush or compact, and other work for idle threads.
#[derive(Default)]
pub(super) struct CompactionQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    keyspaces: VecDeque<Arc<Keyspace>>,
    apart: VecDeque<RecordsApart>,
    /// Threads that wait for work.
    idle: usize,
    /// The memtables may have reached their budget.
    relieve: bool,
    /// A calm has nothing to do until a keyspace is queued again.
    is_settled: bool,
    stopping: bool,
}

impl CompactionQueue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a keyspace, unless it is queued already.
    pub(super) fn put(&self, keyspace: &Arc<Keyspace>) {
        let mut waiting = self.waiting();
        waiting.is_settled = false;
        if !waiting.keyspaces.iter().any(|other| Arc::ptr_eq(other, keyspace)) {
            waiting.keyspaces.push_back(Arc::clone(keyspace));
            self.changed.notify_one();
            drop(waiting);
            self.forget_apart();
        }
    }

    /// Queues a flush of the largest memtables, if all of them together take too much.
    pub(super) fn relieve(&self) {
        let mut waiting = self.waiting();
        if !std::mem::replace(&mut waiting.relieve, true) {
            self.changed.notify_one();
        }
    }

    /// Queues records to be written side by side, if a thread is idle: queued records hold memory.
    pub(super) fn reorganize(&self, apart: RecordsApart) {
        let mut waiting = self.waiting();
        if !waiting.stopping && waiting.apart.len() < APART_MAX * waiting.idle {
            waiting.apart.push_back(apart);
            self.changed.notify_one();
        }
    }

    /// Forgets all queued records, which stay where they are. This frees the memory and the space that they hold.
    pub(super) fn forget_apart(&self) {
        let apart = std::mem::take(&mut self.waiting().apart);
        drop(apart);
    }

    /// Whether keyspaces wait for a thread.
    pub(super) fn has_keyspaces(&self) -> bool {
        !self.waiting().keyspaces.is_empty()
    }

    /// Notes that a calm may have something to do again.
    pub(super) fn unsettle(&self) {
        self.waiting().is_settled = false;
    }

    /// Notes that a calm leaves nothing to do until a keyspace is queued.
    pub(super) fn settle(&self) {
        self.waiting().is_settled = true;
    }

    /// Ends the work: the store is being closed.
    pub(super) fn stop(&self) {
        self.waiting().stopping = true;
        self.forget_apart();
        self.changed.notify_all();
    }

    /// Whether the store is being closed.
    pub(super) fn is_stopping(&self) -> bool {
        self.waiting().stopping
    }

    /// The next work; waits for some. `None` if the store is being closed.
    pub(super) fn take(&self) -> Option<Work> {
        let mut waiting = self.waiting();
        loop {
            if waiting.stopping {
                return None;
            }
            if let Some(keyspace) = waiting.keyspaces.pop_front() {
                return Some(Work::Compact(keyspace));
            }
            if std::mem::take(&mut waiting.relieve) {
                return Some(Work::Relieve);
            }
            if let Some(apart) = waiting.apart.pop_front() {
                return Some(Work::Reorganize(apart));
            }
            waiting.idle += 1;
            let mut has_waited_in_vain = false;
            if waiting.is_settled {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waited = self.changed.wait_timeout(waiting, CALM_LOOK).unwrap_or_else(PoisonError::into_inner);
                (waiting, has_waited_in_vain) = (waited.0, waited.1.timed_out());
            }
            waiting.idle -= 1;
            if has_waited_in_vain && !waiting.has_any() {
                return Some(Work::LookForCalm);
            }
        }
    }
}

impl Waiting {
    fn has_any(&self) -> bool {
        self.stopping || self.relieve || !self.keyspaces.is_empty() || !self.apart.is_empty()
    }
}

/// The next work of a thread.
pub(super) enum Work {
    Compact(Arc<Keyspace>),
    Relieve,
    Reorganize(RecordsApart),
    /// Nothing else was to be done for a while.
    LookForCalm,
}
