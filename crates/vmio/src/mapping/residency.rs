//! The residency of pages.

use std::ops::Range;

use crate::mapped_file::{Usage, touched_pages};
use crate::mapping::{Handle, Mapping};
use crate::sys::PAGE_BYTES;

impl Mapping {
    /// Returns whether the page of a byte is in memory right now; false behind the end.
    ///
    /// The answer is a hint: it may change at once. The call costs a few loads from memory (with [`crate::Engine::Managed`] and
    /// [`crate::Engine::Kernel`], a system call).
    #[inline]
    pub fn is_resident(&self, offset: u64) -> bool {
        let page = offset / PAGE_BYTES as u64;
        if let Handle::Cached(file) = &self.handle {
            return offset < file.region().table.len() && file.region().table.has_page(page);
        }
        let mut resident = false;
        if offset < self.len() && self.file().check_not_forked().is_ok() {
            self.file().for_each_resident(page..page + 1, &mut |_| resident = true);
        }
        resident
    }

    /// Returns which of the pages that a range touches are in memory, without pages behind the end.
    ///
    /// [`crate::Engine::Managed`] knows the pages that this process has mapped, not the rest of the page cache.
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
    /// map.ensure(0..8192)?;
    /// assert_eq!(map.residency(0..1 << 20).resident_pages(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn residency(&self, range: Range<u64>) -> Residency {
        let pages = touched_pages(&(range.start..range.end.min(self.len())));
        let count = pages.end.saturating_sub(pages.start);
        let mut bits = vec![0_u64; count.div_ceil(64) as usize];
        // A forked child has none of the pages.
        if self.file().check_not_forked().is_ok() {
            self.file().for_each_resident(pages.clone(), &mut |page| {
                let at = page - pages.start;
                bits[(at / 64) as usize] |= 1 << (at % 64);
            });
        }
        Residency { bits, pages: count }
    }
}

impl Mapping {
    /// Returns how much of the cache the mapping takes.
    ///
    /// The call costs a few loads from memory where the mapping has a floor or a ceiling, else one for every 2 MiB. With
    /// [`crate::Engine::Managed`] and [`crate::Engine::Kernel`] it costs a system call.
    pub fn usage(&self) -> Usage {
        self.file().usage()
    }
}

/// A bitmap of resident pages: see [`Mapping::residency`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    bits: Vec<u64>,
    pages: u64,
}

impl Residency {
    /// Returns the number of pages in the range.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns how many of them are in memory.
    pub fn resident_pages(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns whether the page with this index in the range is in memory; false behind the end of the range.
    pub fn is_resident(&self, index: u64) -> bool {
        self.bits.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}
