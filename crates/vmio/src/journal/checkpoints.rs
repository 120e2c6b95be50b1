//! Requests for checkpoints, and what has become of them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use vmio_core::futex;

use crate::error::Error;
use crate::journal::log::Log;
use crate::sys::signal::SignalsBlocked;

/// Asks for checkpoints and waits for them. One thread makes them all. It needs nothing that a waiting thread holds.
pub(crate) struct Checkpoints {
    /// The number of checkpoints asked for.
    pub(super) asked: AtomicU32,
    /// The last of these that is done.
    pub(super) done: AtomicU32,
    pub(super) stopping: AtomicBool,
    /// The files hold all commits before this position.
    pub(super) applied: AtomicU64,
    /// The reason why the last checkpoint failed, until one succeeds.
    pub(super) failure: Mutex<Option<Error>>,
}

impl Checkpoints {
    pub(crate) fn new(applied: u64) -> Self {
        Checkpoints {
            asked: AtomicU32::new(0),
            done: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            applied: AtomicU64::new(applied),
            failure: Mutex::new(None),
        }
    }

    /// The files hold all commits before this position.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::SeqCst)
    }

    /// Asks for a checkpoint, unless one is asked for already.
    pub(crate) fn begin(&self) {
        let done = self.done.load(Ordering::SeqCst);
        if self.asked.compare_exchange(done, done.wrapping_add(1), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            futex::wake_all(&self.asked);
        }
    }

    /// Returns after a checkpoint that began after this call, whether it succeeded or not. Async-signal-safe.
    pub(crate) fn run(&self) {
        // A checkpoint that is under way may have begun too early.
        let wanted = self.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        futex::wake_all(&self.asked);
        loop {
            let done = self.done.load(Ordering::SeqCst);
            if (done.wrapping_sub(wanted) as i32) >= 0 {
                return;
            }
            futex::wait(&self.done, done);
        }
    }

    /// Takes the reason why the last checkpoint failed.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        let _signals = SignalsBlocked::new();
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.run();
    }

    /// Makes a checkpoint. Returns whether there is more space than when the log ended at `tail`.
    pub(crate) fn make_room(&self, log: &Log, tail: u64) -> bool {
        // Every checkpoint frees all that can be freed until the next commit.
        if self.applied() != log.durable() {
            self.run();
        }
        log.tail() != tail
    }
}
