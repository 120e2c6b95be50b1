//! The state of each stretch of a file: how many of its pages have come in, and how many more the kernel holds.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::sparse_array::SparseArray;

/// A stretch packs three numbers of pages (512 at most) and a mark into 32 bits.
const BITS: u32 = 10;
const MASK: u32 = (1 << BITS) - 1;
const IN_LINE: u32 = 1 << 31;

/// The state of a stretch at the last count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Pages that were mapped at the beginning of the period.
    pub(super) before: u64,
    /// Pages that were mapped at the last count.
    pub(super) mapped: u64,
    /// Pages that were read, whether mapped or not.
    pub(super) read: u64,
    /// Whether the stretch is unmapped and waits in line (see [`crate::managed`]).
    pub(super) is_in_line: bool,
}

impl Known {
    /// Pages in memory that are in no page table.
    pub(super) fn cached_only(self) -> u64 {
        if self.is_in_line { 0 } else { self.read.saturating_sub(self.mapped) }
    }
}

/// All stretches of a file. A thread that changes one holds the ledger.
pub(super) struct Arrivals {
    stretches: SparseArray<AtomicU32>,
}

impl Arrivals {
    pub(super) fn new(stretches: usize) -> io::Result<Self> {
        Ok(Arrivals { stretches: SparseArray::new(stretches)? })
    }

    pub(super) fn get(&self, stretch: u64) -> Known {
        let packed = self.stretches.get(stretch as usize).load(Ordering::Relaxed);
        let field = |index: u32| u64::from(packed >> (index * BITS) & MASK);
        Known { before: field(0), mapped: field(1), read: field(2), is_in_line: packed & IN_LINE != 0 }
    }

    pub(super) fn set(&self, stretch: u64, known: Known) {
        let Known { before, mapped, read, is_in_line } = known;
        let field = |pages: u64, index: u32| (pages.min(u64::from(MASK)) as u32) << (index * BITS);
        let packed = field(before, 0) | field(mapped, 1) | field(read, 2) | if is_in_line { IN_LINE } else { 0 };
        self.stretches.get(stretch as usize).store(packed, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_kept() {
        let arrivals = Arrivals::new(8).unwrap();
        assert_eq!(arrivals.get(7), Known::default());
        let known = Known { before: 512, mapped: 3, read: 400, is_in_line: true };
        arrivals.set(7, known);
        assert_eq!((arrivals.get(7), arrivals.get(6)), (known, Known::default()));
        assert_eq!((known.cached_only(), Known { is_in_line: false, ..known }.cached_only()), (0, 397));
    }
}
