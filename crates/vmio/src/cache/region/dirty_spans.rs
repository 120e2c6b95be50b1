//! The spans of a region that hold dirty pages, sorted by offset.
//!
//! FastMap keeps per-core red-black trees for this (§3.1), so that sync and write-back see dirty pages only and in
//! order. A bitmap of two levels gives the same order and costs a bit per 2 MiB. An insertion needs no lock and no
//! allocation, since the trap path does it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::sparse_array::SparseArray;

const BITS: u64 = u64::BITS as u64;

/// A set of span numbers.
pub(crate) struct DirtySpans {
    bits: SparseArray<AtomicU64>,
    /// One bit per word of `bits` that may be non-zero.
    summary: SparseArray<AtomicU64>,
}

impl DirtySpans {
    /// Room for the spans 0 to `spans` - 1.
    pub(crate) fn new(spans: u64) -> io::Result<Self> {
        let words = spans.div_ceil(BITS);
        Ok(DirtySpans {
            bits: SparseArray::new(words as usize)?,
            summary: SparseArray::new(words.div_ceil(BITS) as usize)?,
        })
    }

    /// Adds a span. Call it after the page's word says Dirty.
    pub(crate) fn insert(&self, span: u64) {
        let (word, mask) = (span / BITS, 1 << (span % BITS));
        let bits = self.bits.get(word as usize);
        if bits.load(Ordering::SeqCst) & mask == 0 {
            bits.fetch_or(mask, Ordering::SeqCst);
        }
        let (group, mask) = (word / BITS, 1 << (word % BITS));
        let summary = self.summary.get(group as usize);
        if summary.load(Ordering::SeqCst) & mask == 0 {
            summary.fetch_or(mask, Ordering::SeqCst);
        }
    }

    /// Removes a span. Call it before looking at the page words: a page that becomes dirty later adds it again.
    pub(crate) fn remove(&self, span: u64) {
        let word = span / BITS;
        let bits = self.bits.get(word as usize);
        if bits.fetch_and(!(1 << (span % BITS)), Ordering::SeqCst) & !(1 << (span % BITS)) != 0 {
            return;
        }
        let summary = self.summary.get((word / BITS) as usize);
        summary.fetch_and(!(1 << (word % BITS)), Ordering::SeqCst);
        if bits.load(Ordering::SeqCst) != 0 {
            summary.fetch_or(1 << (word % BITS), Ordering::SeqCst);
        }
    }

    /// The first span at or after `from`.
    pub(crate) fn next_from(&self, from: u64) -> Option<u64> {
        let mut word = from / BITS;
        if word < self.bits.len() as u64 {
            let rest = self.bits.get(word as usize).load(Ordering::SeqCst) & (u64::MAX << (from % BITS));
            if rest != 0 {
                return Some(word * BITS + u64::from(rest.trailing_zeros()));
            }
        }
        word += 1;
        while word < self.bits.len() as u64 {
            let group = word / BITS;
            let summary = self.summary.get(group as usize).load(Ordering::SeqCst) & (u64::MAX << (word % BITS));
            if summary == 0 {
                word = (group + 1) * BITS;
                continue;
            }
            word = group * BITS + u64::from(summary.trailing_zeros());
            let bits = self.bits.get(word as usize).load(Ordering::SeqCst);
            if bits != 0 {
                return Some(word * BITS + u64::from(bits.trailing_zeros()));
            }
            word += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_sorted_set(operations in prop::collection::vec((any::<bool>(), 0u64..10_000), 0..400)) {
            let spans = DirtySpans::new(10_000).unwrap();
            let mut model = BTreeSet::new();
            for (insert, span) in operations {
                if insert {
                    spans.insert(span);
                    model.insert(span);
                } else {
                    spans.remove(span);
                    model.remove(&span);
                }
                let mut seen = Vec::new();
                let mut from = 0;
                while let Some(span) = spans.next_from(from) {
                    seen.push(span);
                    from = span + 1;
                }
                prop_assert_eq!(seen, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
