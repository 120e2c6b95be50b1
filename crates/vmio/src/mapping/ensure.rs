//! Brings in pages by a call instead of a trap.

use std::ops::Range;

use crate::error::Result;
use crate::mapped_file::touched_pages;
use crate::mapping::{Handle, Mapping};
use crate::sys::PAGE_BYTES;

impl Mapping {
    /// Makes every page that a range touches resident, as loads would, but without traps.
    ///
    /// A resident page costs a few instructions; an absent page costs some 2 µs less than a load that misses. Neighbouring absent
    /// pages come with one read.
    ///
    /// Nothing holds the pages afterwards: with a range larger than the cache, the last pages may evict the first. [`Self::pin`]
    /// keeps pages in memory. [`Self::fetch`] does the same as this call without a wait.
    ///
    /// # Errors
    ///
    /// - [`crate::Error::Read`] or [`crate::Error::Corrupt`] for a page that cannot be read, or holds poison.
    /// - [`crate::Error::CacheExhausted`] for a cache full of pages that cannot leave.
    /// - [`crate::Error::OutOfRange`] for a range that ends behind the mapping.
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
    /// map.ensure(0..64 << 10)?;
    /// assert!(map.is_resident(0));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn ensure(&self, range: Range<u64>) -> Result<()> {
        if self.is_active(&range) { Ok(()) } else { self.bring_in(range) }
    }

    /// Whether loads of the range would go through without a fault. False also where more than a look at each page's word is
    /// needed.
    #[inline]
    pub(super) fn is_active(&self, range: &Range<u64>) -> bool {
        let Handle::Cached(file) = &self.handle else { return false };
        let region = file.region();
        let page = PAGE_BYTES as u64;
        range.start < range.end
            && range.end <= region.table.len()
            && region.shared.generation.is_current()
            && (range.start / page..range.end.div_ceil(page)).all(|page| region.table.is_active(page))
    }

    #[cold]
    fn bring_in(&self, range: Range<u64>) -> Result<()> {
        self.check_range(&range)?;
        self.file().ensure(touched_pages(&range))
    }
}
