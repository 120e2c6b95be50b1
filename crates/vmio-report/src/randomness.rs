//! The randomness of accesses, as a number: the metric R of "Kreon: An Efficient Memory-Mapped Key-Value Store for Flash Storage"
//! (Papagiannis et al., ACM Transactions on Storage 2021, the section on randomness).
//!
//! For each access and the one after it, in pages, add the distance from the end of the first to the beginning of the second, and the
//! length of the first. R is the sum of these over all pairs, divided by the sum of the lengths and by the pages of the device. It is near
//! 0 for accesses that follow each other, and a third for single pages at random. The last access has none after it, and counts on neither
//! side.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// A range of pages that one access reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Its first page.
    pub page: u64,
    /// Its number of pages.
    pub pages: u64,
}

/// The sums of R over pairs of successive accesses. Those of several periods can be added.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Distances {
    /// Distances and lengths.
    moved_pages: u64,
    /// Lengths alone.
    accessed_pages: u64,
}

impl Distances {
    /// The sums over no pair.
    pub const NONE: Self = Self { moved_pages: 0, accessed_pages: 0 };

    /// The sums of an access and the one after it.
    pub fn between(access: Access, next: Access) -> Self {
        let end = access.page.saturating_add(access.pages);
        Self { moved_pages: next.page.abs_diff(end).saturating_add(access.pages), accessed_pages: access.pages }
    }

    /// The lengths of the first accesses of all pairs.
    pub fn accessed_pages(self) -> u64 {
        self.accessed_pages
    }

    /// R on a device of `device_pages` pages; `None` if there was no pair.
    pub fn randomness(self, device_pages: u64) -> Option<f64> {
        let accessed = self.accessed_pages as f64 * device_pages as f64;
        (accessed > 0.0).then(|| self.moved_pages as f64 / accessed)
    }
}

impl AddAssign for Distances {
    fn add_assign(&mut self, other: Self) {
        self.moved_pages = self.moved_pages.saturating_add(other.moved_pages);
        self.accessed_pages = self.accessed_pages.saturating_add(other.accessed_pages);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const DEVICE_PAGES: u64 = 10_000;

    fn randomness(accesses: &[(u64, u64)]) -> Option<f64> {
        let access = |(page, pages): (u64, u64)| Access { page, pages };
        let mut sum = Distances::NONE;
        accesses.windows(2).for_each(|pair| sum += Distances::between(access(pair[0]), access(pair[1])));
        sum.randomness(DEVICE_PAGES)
    }

    #[test]
    fn the_formula_by_hand() {
        assert_eq!(randomness(&[]), None);
        assert_eq!(randomness(&[(7, 1)]), None);
        // |100 - (10 + 4)| + 4, and |50 - (100 + 1)| + 1, divided by 4 + 1 pages.
        let expected = (90.0 + 52.0) / (10_000.0 * 5.0);
        assert!((randomness(&[(10, 4), (100, 1), (50, 9)]).unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn what_follows_each_other_is_near_0_and_what_jumps_from_end_to_end_is_1() {
        let sequential: Vec<_> = (0..DEVICE_PAGES).map(|page| (page, 1)).collect();
        assert!(randomness(&sequential).unwrap() <= 1.0 / DEVICE_PAGES as f64);
        let ends: Vec<_> = (0..100).map(|turn| (turn % 2 * (DEVICE_PAGES - 1), 1)).collect();
        assert!((randomness(&ends).unwrap() - 1.0).abs() < 1e-3);
    }

    #[test]
    fn single_pages_at_random_are_a_third() {
        let mut random = SmallRng::seed_from_u64(1);
        let accesses: Vec<_> = (0..100_000).map(|_| (random.random_range(0..DEVICE_PAGES), 1)).collect();
        let found = randomness(&accesses).unwrap();
        assert!((found - 1.0 / 3.0).abs() < 0.005, "{found}");
    }
}
