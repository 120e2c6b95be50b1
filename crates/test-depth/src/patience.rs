//! Tests of what a machine does when it comes to it: they wait for it, or try again.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than a busy machine keeps a thread from its work.
const PATIENCE: Duration = Duration::from_secs(100);
const LOOKS_APART: Duration = Duration::from_millis(1);

/// Whether a condition comes true: looks again and again for 100 s. For what another thread or process brings about in its own time.
///
/// ```
/// let sent = std::thread::spawn(|| ());
/// assert!(test_depth::comes_true(|| sent.is_finished()));
/// ```
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    comes_true_within(PATIENCE, &mut condition)
}

fn comes_true_within(patience: Duration, condition: &mut dyn FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if began.elapsed() > patience {
            return false;
        }
        thread::sleep(LOOKS_APART);
    }
}

/// The first good outcome of at most `attempts` attempts. For counts that a machine that is busy with other programs spoils now and then,
/// but not each time. Each attempt begins anew, with its own cache or store.
///
/// ```
/// let mut tosses = 0;
/// let heads = test_depth::one_of(
///     4,
///     || {
///         tosses += 1;
///         tosses
///     },
///     |toss| *toss == 3,
/// );
/// assert_eq!(heads, 3);
/// ```
///
/// # Panics
///
/// If no attempt is good. It says the outcome of each.
#[track_caller]
pub fn one_of<T: Debug>(attempts: usize, mut attempt: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) -> T {
    let mut outcomes = Vec::new();
    while outcomes.len() < attempts {
        let outcome = attempt();
        if is_good(&outcome) {
            return outcome;
        }
        println!("attempt {} is not good: {outcome:?}", outcomes.len() + 1);
        outcomes.push(outcome);
    }
    panic!("none of {attempts} attempts is good: {outcomes:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_true_is_told() {
        let mut looks = 0;
        let mut never = || {
            looks += 1;
            false
        };
        assert!(!comes_true_within(Duration::from_millis(5), &mut never));
        assert!(looks > 1);
        assert!(comes_true(|| true));
    }

    #[test]
    fn attempts_end_with_the_first_good_one() {
        let mut tries = 0;
        let mut attempt = || {
            tries += 1;
            tries
        };
        assert_eq!(one_of(4, &mut attempt, |at| *at == 2), 2);
        assert_eq!(one_of(2, &mut attempt, |at| *at == 4), 4);
    }

    #[test]
    #[should_panic(expected = "none of 3 attempts is good")]
    fn attempts_that_all_fail_are_told() {
        one_of(3, || 7, |at| *at == 8);
    }
}
