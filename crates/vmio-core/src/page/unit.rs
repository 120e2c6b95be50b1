//! Units: pages that come and go together.

use std::ops::Range;

use crate::PAGE_BYTES;

/// The size of the aligned units in which pages come into memory and leave it.
///
/// A miss reads a whole unit, and the cache keeps it or gives it up as a whole. Whatever the unit, write-back writes
/// the 4 KiB pages that were stored to, neighbours in one write.
///
/// # Default
///
/// [`Unit::Kib4`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A page: for accesses that jump about.
    #[default]
    Kib4,
    /// 16 KiB: the size of many databases' blocks.
    Kib16,
    /// 64 KiB: for neighbours that are wanted together, or a device of high latency and high throughput.
    Kib64,
}

impl Unit {
    /// Returns the unit's length in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Unit::Kib4 => 4 << 10,
            Unit::Kib16 => 16 << 10,
            Unit::Kib64 => 64 << 10,
        }
    }

    /// Its length in pages.
    #[inline]
    pub const fn pages(self) -> u64 {
        (self.bytes() / PAGE_BYTES) as u64
    }

    /// The pages of the unit that a page belongs to.
    #[inline]
    pub const fn around(self, page: u64) -> Range<u64> {
        let first = page - page % self.pages();
        first..first + self.pages()
    }
}
