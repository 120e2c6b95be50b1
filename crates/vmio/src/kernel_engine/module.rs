//! The part of the kernel module that belongs to one cache.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::page_buffers::PageBuffers;
use crate::error::{Error, Result};
use crate::probe;
use crate::sys::PAGE_BYTES;
use crate::sys::cpu;
use crate::sys::fork::Generation;
use crate::sys::vmio_module::{Attachment, ModulePool};
use crate::telemetry::Stats;

/// A pool of the module, with a count of failures on its files.
pub(crate) struct Module {
    pool: ModulePool,
    generation: Generation,
    capacity_pages: AtomicU32,
    /// Held during a change of the capacity.
    resizing: Mutex<()>,
    page_buffers: Mutex<Option<Arc<PageBuffers>>>,
    /// Mappings whose last sync failed while they were dropped.
    pub(super) drop_failures: AtomicU64,
}

impl Module {
    pub(super) fn reserve(generation: Generation, capacity_pages: u32) -> Result<Self> {
        let pool = probe::open_kernel_module().map_err(|reason| Error::NoKernelModule { reason })?;
        pool.reserve(capacity_pages.into()).map_err(Error::system(
            "reserving memory of the kernel module (its parameter limit_mib says how much all caches together may take)",
        ))?;
        Ok(Module {
            pool,
            generation,
            capacity_pages: AtomicU32::new(capacity_pages),
            resizing: Mutex::new(()),
            page_buffers: Mutex::default(),
            drop_failures: AtomicU64::new(0),
        })
    }

    /// The descriptor of the pool.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.pool.as_fd()
    }

    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) fn capacity_pages(&self) -> u32 {
        self.capacity_pages.load(Ordering::SeqCst)
    }

    /// The most pages that pins may hold.
    pub(super) fn pinned_pages_max(&self) -> u64 {
        u64::from(self.capacity_pages() / 2)
    }

    /// Pages that may come in without an eviction.
    pub(super) fn room_pages(&self) -> u64 {
        self.pool.usage().map_or(0, |usage| usage.pages.saturating_sub(usage.resident))
    }

    pub(super) fn attach(&self, backing: BorrowedFd<'_>, verify_before_map: bool) -> io::Result<Attachment> {
        self.pool.attach(backing, verify_before_map)
    }

    /// Buffers for pages that vmio verifies before the program sees them.
    pub(super) fn page_buffers(&self) -> io::Result<Arc<PageBuffers>> {
        let mut buffers = self.page_buffers.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match &*buffers {
            Some(buffers) => Arc::clone(buffers),
            None => Arc::clone(buffers.insert(Arc::new(PageBuffers::new(cpu::count())?))),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        let capacity_pages = u64::from(self.capacity_pages());
        let usage = match self.generation.is_current() {
            true => self.pool.usage().unwrap_or_default(),
            // The counts of the module are the parent's.
            false => return Stats { capacity_pages, ..Stats::default() },
        };
        let counts = self.pool.counts().unwrap_or_default();
        let page = PAGE_BYTES as u64;
        Stats {
            load_misses: counts.loads_missed,
            store_misses: counts.stores_missed,
            fresh_fills: counts.fresh,
            minor_faults: counts.found,
            // A store that misses makes its page writable as well.
            write_protect_faults: counts.made_writable.saturating_sub(counts.stores_missed),
            reads: counts.reads,
            read_bytes: counts.pages_read * page,
            read_ahead_pages: counts.pages_read_ahead,
            read_errors: counts.read_errors,
            shootdowns: counts.spans_unmapped,
            evicted_clean: counts.pages_evicted,
            writes: counts.writes,
            written_bytes: counts.pages_written * page,
            capacity_pages,
            resident_pages: usage.resident,
            free_pages: capacity_pages.saturating_sub(usage.resident),
            dirty_pages: usage.dirty,
            pinned_pages: usage.pinned,
            write_errors: counts.write_errors,
            drop_failures: self.drop_failures.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    /// Changes the capacity. The inner error says why the capacity is unchanged.
    pub(crate) fn resize(&self, pages: u32) -> Result<Result<(), &'static str>> {
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = self.pool.resize(pages.into()) else {
            self.capacity_pages.store(pages, Ordering::SeqCst);
            return Ok(Ok(()));
        };
        if let Err(error) = self.pool.resize(self.capacity_pages().into()) {
            tracing::warn!(%error, "the kernel module does not give memory back that the cache had");
            let left = self.pool.usage().map_or(self.capacity_pages(), |usage| usage.pages as u32);
            self.capacity_pages.store(left, Ordering::SeqCst);
        }
        match error.raw_os_error() {
            Some(libc::EBUSY) => Ok(Err("pins would hold more than half of it: drop some")),
            Some(libc::EIO) => Ok(Err("its pages cannot be written (sync returns the reason)")),
            _ => Err(Error::system("changing how much memory the kernel module has for the cache")(error)),
        }
    }
}
