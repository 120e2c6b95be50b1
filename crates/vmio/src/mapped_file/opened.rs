//! The life of a file that is mapped, from the first handle to the last.

use std::ops::Deref;
use std::sync::Arc;

use crate::backing::{Access, Backing, FileUser};
use crate::error::{Error, Result};
use crate::journal::{Journal, JournaledBacking};
use crate::mapped_file::open_files::Entry;
use crate::mapped_file::{CacheIdentity, OpenedFile};
use crate::sys::fork::Generation;

/// What an engine keeps of a file that is mapped.
pub(crate) trait OpenRegion: Send + Sync + 'static {
    /// What it is for other processes.
    fn file_user(access: Access) -> FileUser;
    /// Where its bytes live.
    fn backing(&self) -> &dyn Backing;
    /// Whether stores are allowed.
    fn access(&self) -> Access;
    /// The process that opened it.
    fn generation(&self) -> Generation;
    /// Whether it was opened through that cache.
    fn belongs_to(&self, cache: CacheIdentity) -> bool;
    /// The file as its journal knows it, if changes reach it by commits only.
    fn journaled(&self) -> Option<&JournaledBacking> {
        None
    }
    /// Makes what was stored durable, unless that takes a commit.
    fn sync(&self) -> Result<()>;
    /// Syncs for the last time, or forgets what was not committed, and gives everything back that the region holds of the cache.
    fn shut_down(&self) -> Result<()>;
    /// Counts a last sync whose failure could only be logged.
    fn count_drop_failure(&self);
}

/// A region in use. Dropping the last reference syncs and unmaps it, but not in a forked child: it is the parent's.
pub(crate) struct Opened<R: OpenRegion> {
    // Dropped in this order: the file is unlocked before its entry goes.
    region: R,
    closed: bool,
    _entry: Option<Entry>,
}

impl<R: OpenRegion> Opened<R> {
    /// Takes a region over whose file is locked.
    pub(crate) fn new(region: R, entry: Option<Entry>) -> Self {
        Opened { region, closed: false, _entry: entry }
    }

    /// Gives a handle up: syncs and, if it is the last one, unmaps.
    pub(crate) fn close(self: Arc<Self>) -> Result<()> {
        self.check_not_forked()?;
        let shared = match Arc::try_unwrap(self) {
            Ok(mut last) => return last.shut_down(),
            Err(shared) => shared,
        };
        // From here on the others may close theirs, and who did so last has not synced what is dirty since.
        let synced = shared.region.sync();
        match Arc::into_inner(shared) {
            // What is lost now is more than what stayed dirty then.
            Some(mut last) => last.shut_down().and(synced),
            None => synced, // Others go on using it.
        }
    }

    fn shut_down(&mut self) -> Result<()> {
        self.closed = true;
        let synced = self.region.shut_down();
        // A forked child keeps the file open, and with it the lock that was taken before the fork.
        let backing = self.region.backing();
        if let Err(error) = backing.unlock() {
            tracing::warn!(backing = backing.describe(), %error, "unlocking failed");
        }
        synced
    }
}

impl<R: OpenRegion> Deref for Opened<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.region
    }
}

impl<R: OpenRegion> OpenedFile for Opened<R> {
    fn belongs_to(&self, cache: CacheIdentity) -> bool {
        self.region.belongs_to(cache)
    }

    fn access(&self) -> Access {
        self.region.access()
    }

    fn describe(&self) -> String {
        self.region.backing().describe()
    }

    fn check_not_forked(&self) -> Result<()> {
        if self.region.generation().is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    fn commits_to(&self, journal: Option<&Journal>) -> bool {
        match (self.region.journaled(), journal) {
            (Some(backing), Some(journal)) => backing.is_of(journal),
            // Whoever does not ask for commits gets what is there, like any other option.
            (_, None) => true,
            (None, Some(_)) => false,
        }
    }
}

impl<R: OpenRegion> Drop for Opened<R> {
    fn drop(&mut self) {
        if self.closed || !self.region.generation().is_current() {
            return;
        }
        if let Err(error) = self.shut_down() {
            self.region.count_drop_failure();
            tracing::error!(backing = self.region.backing().describe(), %error, "the last sync of a dropped mapping failed");
        }
    }
}
