//! An open store: its segments, and the threads that work for it until it is closed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::db::compactor::Compactor;
use crate::db::memory_balance::MemoryBalance;
use crate::db::recovery::Recovery;
use crate::db::segment_handle::SegmentHandle;
use crate::db::segments::Segments;
use crate::error::{Error, Result};
use crate::log::LogWriter;
use crate::options::Options;
use crate::volume::Volume;

/// The state that all clones of a store share.
pub(super) struct Opened {
    pub(super) segments: Arc<Segments>,
    /// `None` once the store is closed. Held while a segment is created.
    threads: Mutex<Option<Threads>>,
}

/// In the order in which they have to end: compactions append no records, but sync the logs.
struct Threads {
    compactor: Compactor,
    /// One for each segment.
    writers: Vec<LogWriter>,
    memory: Option<MemoryBalance>,
}

impl Opened {
    /// Opens a volume's segments, and starts all threads but the one that sizes the cache.
    pub(super) fn start(volume: Volume, options: Options) -> Result<(Self, Recovery)> {
        let (segments, recovery) = Segments::recover(volume, options)?;
        let segments = Arc::new(segments);
        let failed = segments.store().failed("starting threads");
        let writers = segments.all().iter().map(|segment| segment.start_writer()).collect::<Result<_>>()?;
        let compactor = Compactor::start(&segments).map_err(&failed)?;
        drop(failed);
        let threads = Mutex::new(Some(Threads { compactor, writers, memory: None }));
        Ok((Opened { segments, threads }, recovery))
    }

    /// Begins the background work that recovery has left, once all keyspaces are there.
    pub(super) fn begin_upkeep(&self) -> Result<()> {
        let store = self.segments.store();
        if !store.options.reads_only() {
            store.collector.wake();
            // The recovered memtables may exceed their budget.
            store.compactions.relieve();
        }
        let memory = MemoryBalance::start(&store.memtable_budget, &store.device, &store.options);
        let memory = memory.map_err(store.failed("starting threads"))?;
        if let Some(threads) = &mut *self.threads() {
            threads.memory = Some(memory);
        }
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Option<Threads>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`crate::Db::create_segment`].
    pub(super) fn create_segment(&self) -> Result<SegmentHandle> {
        let store = self.segments.store();
        store.check_writable()?;
        let mut threads = self.threads();
        let Some(threads) = &mut *threads else {
            return Err(Error::Closed { volume: store.device.name().to_owned() });
        };
        let segment = self.segments.create()?;
        threads.writers.push(segment.start_writer()?);
        self.segments.add(Arc::clone(&segment));
        Ok(SegmentHandle::new(&self.segments, segment))
    }

    /// Makes all writes durable and ends the threads, unless the store was closed before.
    pub(super) fn close(&self) -> Result<()> {
        let store = self.segments.store();
        let mut threads = self.threads();
        let Some(Threads { compactor, writers, memory }) = threads.take() else { return Ok(()) };
        store.is_closed.store(true, Ordering::Relaxed);
        drop(compactor);
        let synced = self.segments.sync();
        drop(writers);
        drop(memory);
        synced?;
        if store.options.reads_only() { Ok(()) } else { store.device.sync() }
    }
}
