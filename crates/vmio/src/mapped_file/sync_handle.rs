//! A sync in the background.

use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::sys::fork::Generation;

/// A sync under way. Dropping it leaves the sync to itself; its failure is then logged only.
#[derive(Debug)]
#[must_use = "the outcome of the sync is known to `wait` alone"]
pub struct SyncHandle {
    thread: Option<JoinHandle<Result<()>>>,
    generation: Generation,
}

impl SyncHandle {
    /// Runs a sync in a thread of its own.
    pub(crate) fn spawn(generation: Generation, sync: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Self> {
        let thread = crate::sys::thread::spawn("vmio-sync", sync);
        let thread = thread.map_err(Error::system("starting a thread for the sync"))?;
        Ok(SyncHandle { thread: Some(thread), generation })
    }

    /// Whether the sync has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the sync.
    pub fn wait(mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for SyncHandle {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.generation.is_current() {
            std::mem::forget(thread); // The parent's: see `CacheCore`.
        } else if thread.is_finished()
            && let Ok(Err(error)) = thread.join()
        {
            tracing::error!(%error, "a sync failed whose handle was dropped");
        }
    }
}
