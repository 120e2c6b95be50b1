//! The writer's side of a stat page: words in which the cache counts, and which other processes can read.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{io, process};

use crate::sys::PAGE_BYTES;
use crate::sys::published_memory::publish;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;
use crate::telemetry::layout::{self, Gauge, Header, Latency};

static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The memory in which a cache counts. Adding to it is async-signal-safe, and neither allocates nor locks.
///
/// A forked child does not have the memory: code that may run there checks the cache's generation first.
pub(crate) struct StatPage {
    words: SparseArray<AtomicU64>,
    cores: usize,
    /// The memory file by which other processes find the page; `None` if the memory is private.
    _file: Option<OwnedFd>,
}

/// The values of the header that describe the cache.
#[derive(Clone, Copy)]
pub(crate) struct Description {
    /// Pages that may be resident.
    pub(crate) capacity_pages: u32,
    /// Cores with counters of their own.
    pub(crate) cores: usize,
    /// Counters of each core.
    pub(crate) counters: usize,
    /// One in this many device reads is timed.
    pub(crate) read_sampling: u64,
}

impl StatPage {
    /// Makes a page of zeros, and publishes it if the system allows that.
    pub(crate) fn new(description: Description) -> io::Result<Arc<Self>> {
        let cores = description.cores.clamp(1, layout::CORES_MAX);
        assert!(description.counters <= layout::COUNTERS_MAX);
        let bytes = layout::file_bytes(cores);
        let (file, memory) = match publish(layout::FILE_NAME, bytes) {
            Ok((file, memory)) => (Some(file), memory),
            Err(error) => {
                tracing::info!(%error, "the counters stay private: `vmio stat` will not find this cache");
                let mut memory = Reservation::zeroed(bytes, PAGE_BYTES)?;
                memory.leave_out_on_fork()?;
                (None, memory)
            }
        };
        let page = StatPage { words: SparseArray::over(memory), cores, _file: file };
        page.write_header(Description { cores, ..description });
        Ok(Arc::new(page))
    }

    fn write_header(&self, description: Description) {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fields = [
            (Header::Version, layout::VERSION),
            (Header::FileBytes, layout::file_bytes(self.cores) as u64),
            (Header::BlockBytes, layout::BLOCK_BYTES as u64),
            (Header::ProcessId, u64::from(process::id())),
            (Header::CacheNumber, LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1),
            (Header::StartedUnixNs, started.as_nanos() as u64),
            (Header::PageBytes, PAGE_BYTES as u64),
            (Header::CapacityPages, u64::from(description.capacity_pages)),
            (Header::Cores, self.cores as u64),
            (Header::Gauges, layout::GAUGES as u64),
            (Header::Counters, description.counters as u64),
            (Header::Histograms, layout::LATENCIES as u64),
            (Header::Buckets, layout::BUCKETS as u64),
            (Header::ReadSampling, description.read_sampling),
            (Header::PriorityClasses, layout::PRIORITY_CLASSES as u64),
        ];
        for (field, value) in fields {
            self.words.get(field as usize).store(value, Ordering::Relaxed);
        }
        // A reader that sees the magic sees all of the above.
        self.words.get(Header::Magic as usize).store(layout::MAGIC, Ordering::Release);
    }

    /// The number of the cache: 1 for the first cache of the process, and so on.
    pub(crate) fn cache_number(&self) -> u64 {
        self.words.get(Header::CacheNumber as usize).load(Ordering::Relaxed)
    }

    /// Cores with counters of their own.
    pub(crate) fn cores(&self) -> usize {
        self.cores
    }

    /// A counter of a core; `core` is a hint.
    #[inline]
    pub(crate) fn counter(&self, core: usize, counter: usize) -> &AtomicU64 {
        self.words.get(layout::counter(core % self.cores, counter))
    }

    /// The sum of a counter over all cores.
    pub(crate) fn total(&self, counter: usize) -> u64 {
        (0..self.cores).map(|core| self.counter(core, counter).load(Ordering::Relaxed)).sum()
    }

    /// The word with a core's part of the resident pages of a class of priorities; `core` is a hint.
    #[inline]
    pub(crate) fn resident(&self, core: usize, class: usize) -> &AtomicU64 {
        self.words.get(layout::resident(core % self.cores, class))
    }

    /// The resident pages of a class of priorities. While pages come and go, the sum may be below zero for an instant.
    pub(crate) fn total_resident(&self, class: usize) -> u64 {
        let of_core = |core| self.resident(core, class).load(Ordering::Relaxed) as i64;
        (0..self.cores).map(of_core).sum::<i64>().max(0) as u64
    }

    /// Adds a duration to a histogram; `core` is a hint.
    #[inline]
    pub(crate) fn record(&self, core: usize, latency: Latency, ns: u64) {
        let start = layout::histogram(core % self.cores, latency as usize);
        let longest = self.words.get(start + layout::MAX_NS);
        if longest.load(Ordering::Relaxed) < ns {
            longest.fetch_max(ns, Ordering::Relaxed);
        }
        self.words.get(start + layout::SUM_NS).fetch_add(ns, Ordering::Relaxed);
        self.words.get(start + layout::bucket_of(ns)).fetch_add(1, Ordering::Relaxed);
    }

    /// The word of a gauge, for the code that changes the gauge.
    pub(crate) fn gauge(self: &Arc<Self>, gauge: Gauge) -> PublishedWord {
        PublishedWord { page: Arc::clone(self), at: layout::gauge(gauge) }
    }

    /// The word of the capacity in pages, in the header.
    pub(crate) fn capacity_pages(self: &Arc<Self>) -> PublishedWord {
        PublishedWord { page: Arc::clone(self), at: Header::CapacityPages as usize }
    }

    /// The word of the free pages that a core keeps to itself.
    pub(crate) fn free_pages(self: &Arc<Self>, core: usize) -> PublishedWord {
        PublishedWord { page: Arc::clone(self), at: layout::free_pages(core % self.cores) }
    }
}

/// An atomic integer in a stat page.
pub(crate) struct PublishedWord {
    page: Arc<StatPage>,
    at: usize,
}

impl Deref for PublishedWord {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        self.page.words.get(self.at)
    }
}
