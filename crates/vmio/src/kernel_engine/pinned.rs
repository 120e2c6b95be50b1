//! The pages of a mapping that the program has pinned.

use std::ops::Range;

/// The pins of one mapping, each with a number of its own.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    pins: Vec<Pin>,
    last: u64,
}

#[derive(Debug)]
struct Pin {
    number: u64,
    pages: Range<u64>,
    /// Whether the module has pinned the pages by now.
    is_established: bool,
}

impl Pinned {
    /// Notes a pin that is about to begin, and returns its number.
    pub(super) fn begin(&mut self, pages: Range<u64>) -> u64 {
        self.last += 1;
        self.pins.push(Pin { number: self.last, pages, is_established: false });
        self.last
    }

    /// Notes that the module has pinned the pages.
    pub(super) fn establish(&mut self, number: u64) {
        self.pins.iter_mut().filter(|pin| pin.number == number).for_each(|pin| pin.is_established = true);
    }

    /// Forgets a pin.
    pub(super) fn end(&mut self, number: u64) {
        self.pins.retain(|pin| pin.number != number);
    }

    /// Whether any pin holds, or is about to hold, a page of a range.
    pub(super) fn meet(&self, pages: &Range<u64>) -> bool {
        self.pins.iter().any(|pin| pin.pages.start < pages.end && pages.start < pin.pages.end)
    }

    /// The numbers of the pins that hold their pages.
    pub(super) fn established(&self) -> Vec<u64> {
        self.pins.iter().filter(|pin| pin.is_established).map(|pin| pin.number).collect()
    }

    /// The pages of those of these pins that still exist.
    pub(super) fn established_among(&self, numbers: &[u64]) -> Vec<Range<u64>> {
        self.pins.iter().filter(|pin| numbers.contains(&pin.number)).map(|pin| pin.pages.clone()).collect()
    }
}

/// The number of pages of a range that lie in any of these ranges.
pub(super) fn pages_in(ranges: &[Range<u64>], pages: &Range<u64>) -> u64 {
    let mut parts: Vec<_> = ranges.iter().map(|one| one.start.max(pages.start)..one.end.min(pages.end)).collect();
    parts.sort_unstable_by_key(|part| part.start);
    let mut counted_to = pages.start;
    let mut number = 0;
    for part in parts {
        number += part.end.saturating_sub(part.start.max(counted_to));
        counted_to = counted_to.max(part.end);
    }
    number
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_several_ranges_counts_once() {
        assert_eq!(pages_in(&[], &(0..10)), 0);
        assert_eq!(pages_in(&[3..5, 4..8, 0..1, 3..5], &(0..10)), 6);
        assert_eq!(pages_in(&[0..100], &(10..13)), 3);
        assert_eq!(pages_in(&[0..2, 20..30, 9..12], &(5..10)), 1);
    }

    #[test]
    fn only_who_holds_pages_from_before_until_after_counts() {
        let mut pinned = Pinned::default();
        let (first, second, third) = (pinned.begin(0..2), pinned.begin(0..2), pinned.begin(5..6));
        assert!(pinned.meet(&(1..9)) && !pinned.meet(&(2..5)));
        pinned.establish(first);
        pinned.establish(third);
        let before = pinned.established();
        pinned.end(third);
        pinned.establish(second);
        assert_eq!(pinned.established_among(&before), [0..2]);
        pinned.end(first);
        assert_eq!(pinned.established_among(&before), []);
        assert!(pinned.meet(&(0..1)));
    }
}
