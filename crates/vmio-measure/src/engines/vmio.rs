//! A vmio mapping, reached by plain loads and stores.

use std::path::Path;

use anyhow::Context;
use vmio::journal::Journal;
use vmio::{Access, Advice, Cache, CacheBuilder, Engine as Faults, FrameHint, Mapping, MappingOptions, Stats, Unit};

use super::Engine;
use super::pointer::PointerAccess;
use crate::content::PAGE_BYTES;
use crate::pattern::Pattern;

/// The read-ahead window of sequential runs.
const WINDOW_BYTES: u32 = 128 << 10;

/// The kinds of cache to measure, each under a name of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// The cache of `Cache::builder` without further options.
    #[default]
    Plain,
    /// With frames whose stores the kernel tracks.
    Memfd,
    /// With the reader-thread engine.
    ReaderThread,
    /// With Linux `mmap`: vmio keeps its page cache within the budget, and a memory cgroup limits it.
    Managed,
    /// With the kernel module.
    Kernel,
    /// With faults handled in guest mode at ring 0.
    Ring0,
    /// With the same, and a thread of the kernel that submits reads and writes.
    Ring0Polled,
    /// With units of 16 KiB.
    Unit16,
    /// With units of 64 KiB.
    Unit64,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Plain,
        Self::Memfd,
        Self::ReaderThread,
        Self::Managed,
        Self::Kernel,
        Self::Ring0,
        Self::Ring0Polled,
        Self::Unit16,
        Self::Unit64,
    ];

    /// Its name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "vmio",
            Self::Memfd => "vmio-memfd",
            Self::ReaderThread => "vmio-reader-thread",
            Self::Managed => "vmio-managed",
            Self::Kernel => "vmio-kernel",
            Self::Ring0 => "vmio-ring0",
            Self::Ring0Polled => "vmio-ring0-polled",
            Self::Unit16 => "vmio-16k",
            Self::Unit64 => "vmio-64k",
        }
    }

    /// A builder for a cache of this kind.
    pub fn builder(self) -> CacheBuilder {
        match self {
            Self::Plain | Self::Unit16 | Self::Unit64 => Cache::builder().engine(Faults::Sigbus),
            Self::Memfd => Cache::builder().engine(Faults::Sigbus).frames(FrameHint::Mixed),
            Self::ReaderThread => Cache::builder().engine(Faults::ReaderThread),
            Self::Managed => Cache::builder().engine(Faults::Managed),
            Self::Kernel => Cache::builder().engine(Faults::Kernel),
            Self::Ring0 => Cache::builder().engine(Faults::Ring0),
            Self::Ring0Polled => Cache::builder().engine(Faults::Ring0).poll_submissions(true),
        }
    }

    /// The pages that come and go together.
    pub fn unit(self) -> Unit {
        match self {
            Self::Unit16 => Unit::Kib16,
            Self::Unit64 => Unit::Kib64,
            _ => Unit::Kib4,
        }
    }
}

/// A file mapped through a cache of its own.
pub struct VmioEngine {
    cache: Cache,
    mapping: Mapping,
}

impl VmioEngine {
    /// Maps `path` over a cache of `cache_bytes`.
    pub fn open(variant: Variant, path: &Path, cache_bytes: u64, write: bool) -> anyhow::Result<Self> {
        Self::open_through(variant.builder().capacity(cache_bytes), MappingOptions::new(), path, write)
    }

    /// The same with an atomic mapping: changes reach the file by commits alone.
    pub fn open_atomic(path: &Path, cache_bytes: u64, journal: &Journal) -> anyhow::Result<Self> {
        let options = MappingOptions::new().atomic(journal);
        Self::open_through(Variant::Plain.builder().capacity(cache_bytes), options, path, true)
    }

    /// Maps `path` read-only over a cache of `cache_bytes`, with these frames.
    pub fn open_with_frames(frames: FrameHint, path: &Path, cache_bytes: u64) -> anyhow::Result<Self> {
        let cache = Variant::Plain.builder().capacity(cache_bytes);
        Self::open_through(cache, MappingOptions::new().frames(frames), path, false)
    }

    /// Opens a file through a cache of its own.
    pub fn open_through(
        cache: CacheBuilder,
        options: MappingOptions,
        path: &Path,
        write: bool,
    ) -> anyhow::Result<Self> {
        let cache = cache.build().context("cannot build the cache (`vmio doctor` says what is missing)")?;
        let access = if write { Access::ReadWrite } else { Access::ReadOnly };
        let backing = cache.open_backing(path, access)?;
        let mapping =
            Mapping::open(&cache, backing, options).with_context(|| format!("cannot map {}", path.display()))?;
        Ok(Self { cache, mapping })
    }

    /// Advises the cache about the coming accesses.
    pub fn advise_pattern(&self, pattern: Pattern) -> anyhow::Result<()> {
        let advice =
            if pattern.is_random() { Advice::Random } else { Advice::Sequential { window_bytes: WINDOW_BYTES } };
        Ok(self.mapping.advise(0..self.mapping.len(), advice)?)
    }

    /// The mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The counters of the cache.
    pub fn cache_stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Loads and stores of the mapping.
    pub fn pointer(&self) -> PointerAccess<'_> {
        // SAFETY: the mapping covers its length and lives as long as the borrow of `self`; every
        // thread of a run reaches it through this type, whose accesses are atomic words.
        unsafe { PointerAccess::new(self.mapping.as_mut_ptr(), self.mapping.len()) }
    }
}

impl Engine for VmioEngine {
    type Access<'a> = PointerAccess<'a>;

    fn access(&self) -> anyhow::Result<Self::Access<'_>> {
        Ok(self.pointer())
    }

    fn stats(&self) -> Option<Stats> {
        // The kernel alone knows the managed engine's misses.
        (self.cache.engine() != Faults::Managed).then(|| self.cache_stats())
    }

    fn cached_bytes(&self) -> Option<u64> {
        Some(self.cache_stats().resident_pages * PAGE_BYTES)
    }

    fn finish(self) -> anyhow::Result<()> {
        self.mapping.close().context("cannot close the mapping")
    }
}
