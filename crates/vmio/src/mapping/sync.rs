//! Makes stores durable: blocking, or in the background.

use std::ops::Range;

use crate::error::Result;
use crate::mapped_file::SyncHandle;
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Makes every store from before the call durable.
    ///
    /// Threads that store meanwhile do not wait: the sync protects and copies a page, then releases it. For an atomic mapping this
    /// is [`Self::commit`], with its errors.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`](crate::Error::Write) names the first page that could not be written. Such pages stay dirty, and the next
    ///   sync tries again.
    /// - [`Error::Flush`](crate::Error::Flush) if the device could not be flushed. With [`crate::Engine::Managed`] it also covers
    ///   unwritable pages, which Linux may mark as clean. Every later sync then fails too: reopen the file.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// map.write_at(0, b"durable")?;
    /// map.sync()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.file().check_not_forked()?;
        let _span = tracing::debug_span!("sync").entered();
        self.file().sync(None)
    }

    /// As [`Self::sync`], for the pages that a range of bytes touches.
    ///
    /// For a direct mapping ([`Self::open_direct`]) it writes back the lines of 64 bytes that the range touches, without a system
    /// call. For an atomic mapping it commits everything.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sync`], and [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        self.check_range(&range)?;
        let _span = tracing::debug_span!("sync", range.start, range.end).entered();
        self.file().sync(Some(range))
    }

    /// Starts a [`Self::sync`] in the background; for an atomic mapping, a [`Self::commit`].
    ///
    /// With [`crate::Engine::Sigbus`] and [`crate::Engine::ReaderThread`], pages that become dirty after the call are not part of
    /// it. Exceptions are [`crate::FrameHint::Mixed`] and [`crate::FrameHint::SharedAddresses`], another sync of the mapping that
    /// is under way, and an earlier one that failed. With other engines such pages may be part of it.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`](crate::Error::Forked), or [`Error::System`](crate::Error::System) if no thread can be started.
    /// [`SyncHandle::wait`] returns the errors of the sync.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// map.write_at(0, b"durable")?;
    /// let sync = map.sync_begin()?;
    /// // something else meanwhile
    /// sync.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync_begin(&self) -> Result<SyncHandle> {
        self.file().check_not_forked()?;
        self.file().sync_begin()
    }
}

impl CachedFile {
    pub(super) fn sync_in_background(&self) -> Result<SyncHandle> {
        let begun = {
            let _signals = SignalsBlocked::new();
            let lock = self.region().dirty.try_lock_sync();
            lock.map(|lock| {
                let begun = self.region().begin_sync(&lock);
                // The thread below takes over the lock.
                std::mem::forget(lock);
                begun
            })
        };
        let holds_lock = begun.is_some();
        let file = self.clone();
        let thread = SyncHandle::spawn(move || match begun {
            Some(begun) => {
                let _signals = SignalsBlocked::new();
                let region = file.region();
                region.finish_sync(begun, region.dirty.resume_sync())
            }
            None => file.region().sync_pages(None),
        });
        thread.inspect_err(|_| {
            if holds_lock {
                drop(self.region().dirty.resume_sync());
            }
        })
    }
}
