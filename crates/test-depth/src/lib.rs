//! How many seeds, cases and rounds a randomised test runs: a few in `make test`, many in `make test-all`; how a test that cannot run
//! says so ([`skipped`]); and how a test waits for what other threads do ([`comes_true`], [`one_of`]).
//!
//! A test names both numbers where it uses them. `VMIO_TEST_DEPTH` chooses: `quick` (the default) or `deep`. A variable of the test's own,
//! such as `VMIO_TEST_SEEDS=17..18`, goes before either: that is how a failure is replayed.
//!
//! ```
//! // 3 seeds in `make test`, 40 in `make test-all`, those of VMIO_TEST_SEEDS where it is set.
//! for seed in test_depth::seeds(3, 40) {
//!     println!("a history of seed {seed}");
//! }
//! ```

mod patience;
mod skips;

use std::env;
use std::ops::Range;

pub use patience::{comes_true, one_of};
pub use skips::{skipped, skipped_outside_ci};

/// How deep a run of the tests goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// `make test`: somebody waits for it.
    Quick,
    /// `make test-all`: before a release, and for what a change touches.
    Deep,
}

impl Depth {
    /// The depth of this run: that of `VMIO_TEST_DEPTH`.
    ///
    /// # Panics
    ///
    /// If the variable names no depth.
    pub fn of_this_run() -> Depth {
        match env::var("VMIO_TEST_DEPTH").as_deref() {
            Ok("deep") => Depth::Deep,
            Ok("quick" | "") | Err(_) => Depth::Quick,
            Ok(other) => panic!("VMIO_TEST_DEPTH={other}: write quick or deep"),
        }
    }

    /// The number of this depth.
    pub fn pick<T>(self, quick: T, deep: T) -> T {
        match self {
            Depth::Quick => quick,
            Depth::Deep => deep,
        }
    }
}

/// The number for the depth of this run.
///
/// # Panics
///
/// If `VMIO_TEST_DEPTH` names no depth.
pub fn pick<T>(quick: T, deep: T) -> T {
    Depth::of_this_run().pick(quick, deep)
}

/// The number in `variable`, or the one for the depth of this run.
///
/// # Panics
///
/// If the variable is no positive number.
pub fn number(variable: &str, quick: u64, deep: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => positive(&text).unwrap_or_else(|| panic!("{variable}={text}: write a number above 0")),
        Err(_) => pick(quick, deep),
    }
}

/// Of a test that fails at one operation after the other, the distance between two that it takes: that of `VMIO_TEST_STEP`, or the one for
/// the depth of this run. 1 takes each.
///
/// # Panics
///
/// If the variable is no positive number.
pub fn step(quick: u64, deep: u64) -> u64 {
    number("VMIO_TEST_STEP", quick, deep)
}

/// The seeds of `VMIO_TEST_SEEDS=FIRST..END`, or as many as the depth of this run has, from 0 on.
///
/// # Panics
///
/// If the variable holds no range with a seed in it.
pub fn seeds(quick: u64, deep: u64) -> Range<u64> {
    match env::var("VMIO_TEST_SEEDS") {
        Ok(text) => range(&text).unwrap_or_else(|| panic!("VMIO_TEST_SEEDS={text}: write FIRST..END, such as 17..18")),
        Err(_) => 0..pick(quick, deep),
    }
}

/// Whether the seeds were chosen by hand: then a test does not ask that all of its cases occur.
pub fn seeds_are_chosen() -> bool {
    env::var_os("VMIO_TEST_SEEDS").is_some()
}

fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number > 0)
}

fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    let range = first.parse().ok()?..end.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_has_its_number() {
        assert_eq!([Depth::Quick.pick(3, 40), Depth::Deep.pick(3, 40)], [3, 40]);
    }

    #[test]
    fn only_ranges_with_a_seed_are_taken() {
        assert_eq!(range("17..18"), Some(17..18));
        assert_eq!(["17", "18..17", "5..5", "a..9", ""].map(range), [const { None }; 5]);
    }

    #[test]
    fn only_numbers_above_0_are_taken() {
        assert_eq!(["9", "0", "-1", "many"].map(positive), [Some(9), None, None, None]);
    }
}
