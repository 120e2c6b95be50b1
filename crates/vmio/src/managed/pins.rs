//! Pages that must stay: locked in memory as long as a pin holds them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sys::PAGE_BYTES;
use crate::sys::file_map::FileMap;

/// How many pins hold each pinned page. The kernel's locks do not nest, so they are counted here.
#[derive(Default)]
pub(crate) struct Pins {
    counts: Mutex<BTreeMap<u64, u32>>,
}

impl Pins {
    /// Counts a hold of pages. Callers do so before they lock the pages.
    pub(super) fn hold(&self, pages: Range<u64>) {
        let mut counts = self.counts();
        pages.for_each(|page| *counts.entry(page).or_default() += 1);
    }

    /// Gives a hold back, and unlocks the pages that no other pin holds, in one step. A thread that begins to hold one
    /// of them now locks it after this.
    pub(super) fn release(&self, pages: Range<u64>, map: &FileMap) {
        let mut counts = self.counts();
        let mut free = Vec::new();
        for page in pages.clone() {
            let held = counts.get_mut(&page).map_or(0, |count| {
                *count -= 1;
                *count
            });
            if held == 0 {
                counts.remove(&page);
                free.push(page);
            }
        }
        for run in free.chunk_by(|page, next| page + 1 == *next) {
            let bytes = run[0] * PAGE_BYTES as u64..(run[run.len() - 1] + 1) * PAGE_BYTES as u64;
            if let Err(error) = map.unlock(&bytes) {
                tracing::error!(%error, ?bytes, "pages stay locked in memory that nobody has pinned");
            }
        }
    }

    /// Whether any page of a range is held.
    pub(super) fn any(&self, pages: Range<u64>) -> bool {
        !pages.is_empty() && self.counts().range(pages).next().is_some()
    }

    /// The parts of a range of pages that nobody holds.
    pub(super) fn free_parts(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let counts = self.counts();
        let mut parts = Vec::new();
        let mut from = pages.start;
        for (page, _) in counts.range(pages.clone()) {
            if *page > from {
                parts.push(from..*page);
            }
            from = page + 1;
        }
        if from < pages.end {
            parts.push(from..pages.end);
        }
        parts
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes pages resident, writable if they are to be stored to, and locks them.
pub(super) fn lock(map: &FileMap, bytes: &Range<u64>, for_stores: bool) -> io::Result<()> {
    if for_stores {
        map.populate_for_stores(bytes)?;
    }
    map.lock(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_left_out() {
        let pins = Pins::default();
        assert_eq!(pins.free_parts(3..9), vec![Range { start: 3, end: 9 }]);
        pins.hold(4..6);
        pins.hold(5..6);
        pins.hold(8..20);
        assert_eq!(pins.free_parts(3..9), [3..4, 6..8]);
        assert_eq!(pins.free_parts(4..6), []);
        assert!(pins.any(0..5) && !pins.any(6..8) && !pins.any(5..5));
    }
}
