//! How others wake the collector thread.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Wakes the collector thread.
#[derive(Default)]
pub(crate) struct Wake {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct WakeState {
    is_due: bool,
    is_stopping: bool,
}

/// Why the thread woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Due,
    Idle,
    Stop,
}

impl Wake {
    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_due, true) {
            self.changed.notify_one();
        }
    }

    /// Tells the thread to end.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_one();
    }

    /// Sleeps until the thread is woken, or `most` has passed.
    pub(super) fn wait(&self, most: Duration) -> Woken {
        let mut state = self.state.lock();
        if !state.is_due && !state.is_stopping {
            self.changed.wait_for(&mut state, most);
        }
        match (state.is_stopping, std::mem::take(&mut state.is_due)) {
            (true, _) => Woken::Stop,
            (false, true) => Woken::Due,
            (false, false) => Woken::Idle,
        }
    }
}
