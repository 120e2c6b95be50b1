//! Making stores durable: blocking, or in the background.

use std::ops::Range;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;
use crate::sys::fork::Generation;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Returns when every store that happened before the call is durable. Threads that go on storing are not held up:
    /// a page is protected and copied, then let go. An error names a page that could not be written; such pages stay
    /// dirty, and the next sync tries them again.
    pub fn sync(&self) -> Result<()> {
        self.file().check_not_forked()?;
        let _span = tracing::debug_span!("sync").entered();
        self.file().sync(None)
    }

    /// As [`Self::sync`], for the pages that a range of bytes touches; of a direct mapping ([`Self::open_direct`]) for the lines of
    /// 64 bytes that it touches, without a system call.
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        self.check_range(&range)?;
        let _span = tracing::debug_span!("sync", range.start, range.end).entered();
        self.file().sync(Some(range))
    }

    /// Starts a [`Self::sync`] in the background. Pages that become dirty after the call are not part of it; only if
    /// another sync of the mapping is under way, those count that become dirty until that has ended.
    pub fn sync_begin(&self) -> Result<SyncHandle> {
        self.file().check_not_forked()?;
        self.file().sync_begin()
    }
}

impl CachedFile {
    pub(super) fn sync_in_background(&self) -> Result<SyncHandle> {
        let begun = {
            let _signals = SignalsBlocked::new();
            let turn = self.region().try_take_turn();
            turn.map(|turn| {
                let begun = self.region().begin_sync(&turn);
                // The thread below goes on with it.
                std::mem::forget(turn);
                begun
            })
        };
        let has_turn = begun.is_some();
        let file = self.clone();
        let thread = SyncHandle::spawn(self.region().shared.generation, move || match begun {
            Some(begun) => {
                let _signals = SignalsBlocked::new();
                let region = file.region();
                region.finish_sync(begun, region.resume_turn())
            }
            None => file.region().sync_pages(None),
        });
        thread.inspect_err(|_| {
            if has_turn {
                drop(self.region().resume_turn());
            }
        })
    }
}

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
