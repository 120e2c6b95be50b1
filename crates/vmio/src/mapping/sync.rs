//! Makes stores durable: blocking, or in the background.

use std::ops::Range;

use crate::error::Result;
use crate::mapped_file::SyncHandle;
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Makes every store that happened before the call durable. Threads that go on storing are not held up:
    /// a page is protected and copied, then released.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`](crate::Error::Write) names a page that could not be written. Such pages stay dirty, and the next sync tries them again.
    /// - [`Error::Flush`](crate::Error::Flush) if the device could not be flushed; with [`crate::Engine::Managed`] also for a page that
    ///   could not be written, which Linux may take for clean. Every later sync then fails too: reopen the file.
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

    /// As [`Self::sync`], for the pages that a range of bytes touches; of a direct mapping ([`Self::open_direct`]) for the lines of
    /// 64 bytes that the range touches, without a system call.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sync`], and [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        self.check_range(&range)?;
        let _span = tracing::debug_span!("sync", range.start, range.end).entered();
        self.file().sync(Some(range))
    }

    /// Starts a [`Self::sync`] in the background. Pages that become dirty after the call are not part of it, but may be while another
    /// sync of the mapping is under way, and with [`crate::Engine::Managed`].
    ///
    /// # Errors
    ///
    /// [`Error::Forked`](crate::Error::Forked), or [`Error::System`](crate::Error::System) if no thread can be started. The errors of
    /// the sync are returned by [`SyncHandle::wait`].
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
                // The thread below takes the lock over.
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
