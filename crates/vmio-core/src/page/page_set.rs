//! Some of the pages of a span.

use crate::page::SPAN_PAGES;

const WORDS: usize = SPAN_PAGES / 64;

/// A set of pages of one span, by their number within it. Lies on the stack of the thread that works on the span.
#[derive(Clone, Copy, Default)]
pub struct PageSet([u64; WORDS]);

impl PageSet {
    /// Adds the page of a region that has that number; all pages of a set are of one span.
    pub fn insert(&mut self, page: u64) {
        let index = page as usize % SPAN_PAGES;
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// Whether it holds that page.
    pub fn contains(&self, page: u64) -> bool {
        let index = page as usize % SPAN_PAGES;
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// The first and the last page, for the span of that number.
    pub fn bounds(&self, span: u64) -> Option<(u64, u64)> {
        let first = self.0.iter().position(|word| *word != 0)?;
        let last = self.0.iter().rposition(|word| *word != 0)?;
        let base = span * SPAN_PAGES as u64;
        let first = base + first as u64 * 64 + u64::from(self.0[first].trailing_zeros());
        Some((first, base + last as u64 * 64 + 63 - u64::from(self.0[last].leading_zeros())))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_pages_put_in() {
        let mut set = PageSet::default();
        assert_eq!(set.bounds(3), None);
        for page in [3 * 512 + 511, 3 * 512 + 70, 3 * 512 + 64] {
            set.insert(page);
        }
        assert_eq!(set.bounds(3), Some((3 * 512 + 64, 3 * 512 + 511)));
        assert!(set.contains(3 * 512 + 70) && !set.contains(3 * 512 + 71));
    }
}
