//! The life of a file that is mapped, from the first handle to the last.

use std::ops::Deref;
use std::sync::Arc;

use crate::backing::{Access, Backing, FileUser};
use crate::error::{Error, Result};
use crate::journal::{Journal, JournaledBacking};
use crate::mapped_file::open_files::Entry;
use crate::mapped_file::{CacheIdentity, OpenedFile};
use crate::sys::fork::Generation;

/// A mapped file as its engine keeps it.
pub(crate) trait OpenRegion: Send + Sync + 'static {
    /// The kind of user that this process is to others.
    fn file_user(access: Access) -> FileUser;
    /// The backing of the file.
    fn backing(&self) -> &dyn Backing;
    /// Whether stores are allowed.
    fn access(&self) -> Access;
    /// The process that opened the file.
    fn generation(&self) -> Generation;
    /// Whether the file was opened through that cache.
    fn belongs_to(&self, cache: CacheIdentity) -> bool;
    /// The file as its journal knows it, if changes reach the file by commits only.
    fn journaled(&self) -> Option<&JournaledBacking> {
        None
    }
    /// Makes stores durable, unless that takes a commit.
    fn sync(&self) -> Result<()>;
    /// Syncs for the last time, or discards uncommitted stores, and returns to the cache all that the region holds of it.
    fn shut_down(&self) -> Result<()>;
    /// Counts a last sync whose failure could only be logged.
    fn count_drop_failure(&self);
}

/// A region in use. Dropping the last reference syncs and unmaps the region, except in a forked child: the region is the parent's.
pub(crate) struct Opened<R: OpenRegion> {
    // Dropped in this order: the file is unlocked before its entry goes.
    region: R,
    closed: bool,
    _entry: Option<Entry>,
}

impl<R: OpenRegion> Opened<R> {
    /// Takes over a region with a locked file.
    pub(crate) fn new(region: R, entry: Option<Entry>) -> Self {
        Opened { region, closed: false, _entry: entry }
    }

    /// Closes a handle: syncs and, if it is the last one, unmaps.
    pub(crate) fn close(self: Arc<Self>) -> Result<()> {
        self.check_not_forked()?;
        let shared = match Arc::try_unwrap(self) {
            Ok(mut last) => return last.shut_down(),
            Err(shared) => shared,
        };
        // While this handle syncs, all others may close. None of them was the last, so this one then shuts the region down, with
        // the pages that became dirty since.
        let synced = shared.region.sync();
        match Arc::into_inner(shared) {
            // The error of lost pages comes before that of pages which stayed dirty.
            Some(mut last) => last.shut_down().and(synced),
            None => synced, // Others go on using it.
        }
    }

    fn shut_down(&mut self) -> Result<()> {
        self.closed = true;
        let synced = self.region.shut_down();
        // A forked child keeps the file open, and with it the lock from before the fork.
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
            (Some(backing), Some(journal)) => journal.has(backing),
            // Without a journal in its options, the handle takes the region as it is, as with any other option.
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
