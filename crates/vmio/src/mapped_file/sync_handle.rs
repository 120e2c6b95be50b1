//! A sync in the background.

use crate::error::{Error, Result};
use crate::sys::thread::{self, OwnThread};

/// A sync or commit under way: see [`crate::Mapping::sync_begin`].
///
/// Dropping the handle does not stop it. The drop logs the failure of a sync that has ended; a later failure goes unreported.
#[derive(Debug)]
#[must_use = "only `wait` returns the outcome of the sync"]
pub struct SyncHandle {
    thread: Option<OwnThread<Result<()>>>,
}

impl SyncHandle {
    /// Runs a sync in a thread of its own.
    pub(crate) fn spawn(sync: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Self> {
        let thread = thread::spawn("vmio-sync", sync);
        let thread = thread.map_err(Error::system("starting a thread for the sync"))?;
        Ok(SyncHandle { thread: Some(thread) })
    }

    /// Returns whether the sync has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(OwnThread::is_finished)
    }

    /// Waits for the end of the sync.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mapping::sync`] or [`crate::Mapping::commit`]; [`Error::Forked`] in a forked child.
    pub fn wait(mut self) -> Result<()> {
        match self.thread.take().and_then(OwnThread::join) {
            // A forked child has no such thread.
            None => Err(Error::Forked),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for SyncHandle {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if thread.is_finished()
            && let Some(Ok(Err(error))) = thread.join()
        {
            tracing::error!(%error, "a sync failed whose handle was dropped");
        }
    }
}
