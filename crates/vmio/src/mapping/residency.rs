//! Which pages are in memory.

use std::ops::Range;

use crate::mapped_file::{Usage, touched_pages};
use crate::mapping::{Handle, Mapping};
use crate::sys::PAGE_BYTES;

impl Mapping {
    /// Whether the page of a byte is in memory right now; false behind the end. A hint: it may change at once. Costs a
    /// few loads from memory (with [`crate::Engine::Managed`], a system call).
    #[inline]
    pub fn is_resident(&self, offset: u64) -> bool {
        let page = offset / PAGE_BYTES as u64;
        if let Handle::Cached(file) = &self.handle {
            return offset < file.region().len() && file.region().has_page(page);
        }
        let mut resident = false;
        if offset < self.len() && self.file().check_not_forked().is_ok() {
            self.file().for_each_resident(page..page + 1, &mut |_| resident = true);
        }
        resident
    }

    /// Which of the pages that a range touches are in memory; what lies behind the end is left out.
    pub fn residency(&self, range: Range<u64>) -> Residency {
        let pages = touched_pages(&(range.start..range.end.min(self.len())));
        let count = pages.end.saturating_sub(pages.start);
        let mut bits = vec![0_u64; count.div_ceil(64) as usize];
        // A forked child has none of them.
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
    /// How much of the cache it takes: a few loads from memory where it has a floor or a ceiling, else one for every 2 MiB
    /// (with [`crate::Engine::Managed`], a system call).
    pub fn usage(&self) -> Usage {
        self.file().usage()
    }
}

/// A bitmap of resident pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    bits: Vec<u64>,
    pages: u64,
}

impl Residency {
    /// How many pages were looked at.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// How many of them are in memory.
    pub fn resident_pages(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether the page of that index within the range is; false behind its end.
    pub fn is_resident(&self, index: u64) -> bool {
        self.bits.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}
