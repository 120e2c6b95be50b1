//! The state that all mappings of a cache share, in parts. A function that needs one part is a method of that part.

pub(crate) mod eviction;
pub(crate) mod memory;
pub(crate) mod paging;
pub(crate) mod reads;
pub(crate) mod streams;
pub(crate) mod stride_rings;
pub(crate) mod telemetry;
pub(crate) mod workers;
pub(crate) mod write_back;

use std::io;
use std::iter::repeat_n;
use std::sync::Arc;

use crate::cache::merge_buffers::{BATCH_PAGES, DIRECT_PAGES, MergeBuffers, SHARED_BATCHES_MAX};
use crate::cache::overhead::Overhead;
use crate::cache::shared::eviction::{Eviction, spare_evictors};
use crate::cache::shared::memory::Memory;
use crate::cache::shared::paging::Paging;
use crate::cache::shared::reads::Reads;
use crate::cache::shared::telemetry::{READ_SAMPLING, Telemetry};
use crate::cache::shared::workers::Workers;
use crate::cache::shared::write_back::WriteBack;
use crate::engine::{FaultEngine, Frames};
use crate::options::FrameHint;
use crate::policy::EvictionPolicy;
use crate::sys::cpu;
use crate::sys::fork::Generation;
use crate::sys::kernel::{KernelFeature, KernelFeatures};
use crate::sys::unmap::Unmapper;
use crate::telemetry::counters::NAMES;
use crate::telemetry::layout::Latency;
use crate::telemetry::page::{Description, StatPage};

/// The state that mappings and workers share.
pub(crate) struct Shared {
    pub(crate) generation: Generation,
    pub(crate) memory: Memory,
    pub(crate) eviction: Eviction,
    pub(crate) paging: Paging,
    pub(crate) telemetry: Telemetry,
    pub(crate) reads: Reads,
    pub(crate) write_back: WriteBack,
    pub(crate) workers: Workers,
}

/// The settings that a cache is built with.
pub(crate) struct Settings {
    pub(crate) generation: Generation,
    pub(crate) capacity_pages: u32,
    pub(crate) overhead: Overhead,
    pub(crate) dirty_ratio: f64,
    pub(crate) policy: EvictionPolicy,
    pub(crate) engine: Box<dyn FaultEngine>,
    pub(crate) frames: Box<dyn Frames>,
    pub(crate) frame_hint: FrameHint,
    pub(crate) locks_memory: bool,
    pub(crate) measures_misses: bool,
    pub(crate) publishes_misses: bool,
    pub(crate) kernel_features: KernelFeatures,
    pub(crate) pages_in_flight: u32,
    pub(crate) workers: u32,
    pub(crate) cores: usize,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> io::Result<Self> {
        let (batches, spares) =
            ((settings.workers as usize).min(SHARED_BATCHES_MAX) + 1, spare_evictors(settings.cores));
        let sizes = repeat_n(BATCH_PAGES, batches).chain(repeat_n(DIRECT_PAGES, spares));
        let merge_buffers = Arc::new(MergeBuffers::new(sizes)?);
        let eviction = Eviction::new(settings.policy, settings.cores, &merge_buffers)?;
        let page = StatPage::new(Description {
            capacity_pages: settings.capacity_pages,
            cores: settings.cores,
            counters: NAMES.len(),
            read_sampling: READ_SAMPLING,
        })?;
        let telemetry = Telemetry::new(&page, settings.measures_misses, settings.publishes_misses)?;
        let paging = Paging {
            engine: settings.engine,
            frames: settings.frames,
            unmapper: Unmapper::probe(settings.kernel_features),
            frame_hint: settings.frame_hint,
            locks_memory: settings.locks_memory,
        };
        let use_io_uring = settings.kernel_features.allow(KernelFeature::IoUring);
        Ok(Shared {
            generation: settings.generation,
            memory: Memory::new(&page, settings.capacity_pages, settings.overhead),
            eviction,
            telemetry,
            reads: Reads::new(&paging, settings.cores, settings.workers, use_io_uring, settings.pages_in_flight)?,
            paging,
            write_back: WriteBack::new(&page, settings.dirty_ratio, merge_buffers),
            workers: Workers::new(settings.workers, settings.cores),
        })
    }

    /// Changes the capacity. The caller holds the lock on resizing.
    pub(super) fn set_capacity(&self, pages: u32) {
        let before = self.memory.capacity_pages();
        self.memory.set_capacity(pages);
        self.paging.frames.set_capacity(pages);
        self.eviction.set_capacity(before, pages);
        self.memory.note_freed();
        self.workers.wake(true);
    }

    /// Gives back the budget of evicted pages, and wakes the threads that wait for a free page.
    pub(crate) fn release_evicted(&self, pages: u32) {
        if pages > 0 {
            self.memory.budget.release(pages);
            self.eviction.note_evicted(pages);
            self.memory.note_freed();
        }
    }

    /// The present time of the eviction clock, 1 to 255.
    pub(crate) fn eviction_time(&self) -> u8 {
        self.eviction.time(self.memory.capacity_pages())
    }

    /// How long ago an eviction was, in eighths of a turnover of the cache; wraps around after 32 turnovers.
    pub(crate) fn evicted_ago(&self, time: u8) -> Option<u8> {
        (time != 0).then(|| ((u16::from(self.eviction_time()) + 255 - u16::from(time)) % 255) as u8)
    }

    /// Counts one more dirty page; wakes a worker when that is one more than the dirty ratio allows.
    pub(crate) fn add_dirty(&self) {
        let before = self.write_back.add_dirty();
        if before == u64::from(self.write_back.dirty_pages_max(self.memory.capacity_pages())) {
            self.workers.wake(false);
        }
    }

    /// Whether so many pages are dirty that write-back begins though nothing must be evicted.
    pub(crate) fn has_too_many_dirty(&self) -> bool {
        self.write_back.dirty_pages() > self.write_back.dirty_pages_max(self.memory.capacity_pages())
    }

    /// Whether so many pages are dirty that storing threads help to write.
    pub(crate) fn needs_help_with_dirty(&self) -> bool {
        self.write_back.dirty_pages() > self.write_back.unaided_dirty_pages_max(self.memory.capacity_pages())
    }

    /// The most pages that a ring may have under way at a time.
    pub(crate) fn pages_in_flight(&self) -> u32 {
        self.reads.pages_in_flight(self.memory.capacity_pages())
    }

    /// Notes how long a write took.
    pub(crate) fn note_write(&self, ns: u64) {
        self.workers.note_write(ns);
        self.telemetry.counters.record(cpu::current(), Latency::Write, ns);
    }
}
