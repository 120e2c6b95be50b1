//! A vmio mapping, reached by plain loads and stores.

use std::path::Path;

use anyhow::Context;
use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Engine as Faults, Mapping, MappingOptions, Stats};

use super::Engine;
use super::pointer::PointerAccess;
use crate::bench::content::PAGE_BYTES;
use crate::bench::pattern::Pattern;

/// The read-ahead window of sequential runs.
const WINDOW_BYTES: u32 = 128 << 10;

/// A file mapped through a cache of its own.
pub struct VmioEngine {
    cache: Cache,
    mapping: Mapping,
}

impl VmioEngine {
    /// Maps `path` over a cache of `cache_bytes` whose page faults are handled in that way.
    pub fn open(
        faults: Faults,
        path: &Path,
        cache_bytes: u64,
        write: bool,
        measure_misses: bool,
    ) -> anyhow::Result<Self> {
        let cache = Cache::builder()
            .capacity(cache_bytes)
            .engine(faults)
            .measure_misses(measure_misses)
            .build()
            .context("cannot build the cache (`vmio doctor` says what is missing)")?;
        let access = if write { Access::ReadWrite } else { Access::ReadOnly };
        let backing = FileBacking::open(path, access)?;
        let mapping = Mapping::open(&cache, backing, MappingOptions::new())
            .with_context(|| format!("cannot map {}", path.display()))?;
        Ok(Self { cache, mapping })
    }

    /// Tells the cache what to expect.
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
        // Of a managed mapping's hits and misses only the kernel knows.
        (self.cache.engine() != Faults::Managed).then(|| self.cache_stats())
    }

    fn cached_bytes(&self) -> Option<u64> {
        Some(self.cache_stats().resident_pages * PAGE_BYTES)
    }

    fn finish(self) -> anyhow::Result<()> {
        self.mapping.close().context("cannot close the mapping")
    }
}
