//! The thread that adapts the capacity of a cache to the memory that there is.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::sys::fork::OfProcess;
use crate::sys::thread;

/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(100);

/// The thread; it ends when this is dropped.
pub(crate) struct Follower {
    /// Dropping it ends the thread. A forked child has no such thread, and the channel may be in the middle of
    /// something.
    _alive: OfProcess<Sender<()>>,
}

impl Follower {
    /// Starts the thread, which looks again and again until it is told to break.
    pub(crate) fn start(mut look: impl FnMut() -> ControlFlow<()> + Send + 'static) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let alive = OfProcess::new(alive)?;
        thread::spawn("vmio-capacity", move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) && look().is_continue() {}
        })?;
        Ok(Follower { _alive: alive })
    }
}
