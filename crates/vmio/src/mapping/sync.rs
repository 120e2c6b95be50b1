//! Making stores durable: blocking, or in the background.

use std::ops::Range;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::mapping::Mapping;

impl Mapping {
    /// Returns when every store that happened before the call is durable. Threads that go on storing are not held up:
    /// a page is protected and copied, then let go. An error names a page that could not be written; such pages stay
    /// dirty, and the next sync tries them again.
    pub fn sync(&self) -> Result<()> {
        self.opened.check_not_forked()?;
        self.region().sync_pages(None)
    }

    /// As [`Self::sync`], for the pages that a range of bytes touches.
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        self.check_range(&range)?;
        self.region().sync_pages(Some(Self::touched_pages(&range)))
    }

    /// Starts a [`Self::sync`] in the background. Pages that become dirty after the call are not part of it.
    pub fn sync_begin(&self) -> Result<SyncHandle> {
        self.opened.check_not_forked()?;
        let mapping = self.clone();
        let thread = std::thread::Builder::new()
            .name("vmio-sync".to_owned())
            .spawn(move || mapping.sync())
            .map_err(Error::system("starting a thread for the sync"))?;
        Ok(SyncHandle { thread: Some(thread) })
    }
}

/// A sync under way. Dropping it leaves the sync to itself; its failure is then logged only.
#[derive(Debug)]
#[must_use = "the outcome of the sync is known to `wait` alone"]
pub struct SyncHandle {
    thread: Option<JoinHandle<Result<()>>>,
}

impl SyncHandle {
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
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
            && let Ok(Err(error)) = thread.join()
        {
            tracing::error!(%error, "a sync failed whose handle was dropped");
        }
    }
}
