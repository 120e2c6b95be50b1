//! The range of keys that a scan covers.

use std::cmp::Ordering;
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys. It is made from any range of byte strings, such as `..`, `b"a"..` or `from..=to`, or by [`Self::prefix`].
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, KeyRange, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// for key in ["apple", "apricot", "banana"] {
///     db.put(key.as_bytes(), b"fruit")?;
/// }
/// assert_eq!(db.scan(KeyRange::prefix("ap")).count(), 2);
/// assert_eq!(db.scan(b"apricot"..).count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
}

impl KeyRange {
    /// The keys that begin with a prefix.
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Self {
        let prefix = prefix.as_ref();
        // The least byte string that is greater than all of these keys.
        let upper = match prefix.iter().rposition(|byte| *byte < u8::MAX) {
            Some(last) => {
                let mut upper = prefix[..=last].to_vec();
                upper[last] += 1;
                Bound::Excluded(upper)
            }
            None => Bound::Unbounded,
        };
        KeyRange { lower: Bound::Included(prefix.to_vec()), upper }
    }

    /// Whether no key can be in it.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
                lower >= upper
            }
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        }
    }

    fn new<K: AsRef<[u8]>>(lower: Bound<&K>, upper: Bound<&K>) -> Self {
        let owned = |key: &K| key.as_ref().to_vec();
        KeyRange { lower: lower.map(owned), upper: upper.map(owned) }
    }
}

/// Whether a key lies beyond a bound, in the direction in which keys compare as `beyond`. False if the comparison is not known.
pub(crate) fn is_beyond(bound: &Bound<Vec<u8>>, beyond: Ordering, compare: impl Fn(&[u8]) -> Option<Ordering>) -> bool {
    match bound {
        Bound::Included(end) => compare(end).is_some_and(|ordering| ordering == beyond),
        Bound::Excluded(end) => compare(end).is_some_and(|ordering| ordering != beyond.reverse()),
        Bound::Unbounded => false,
    }
}

impl From<RangeFull> for KeyRange {
    fn from(_: RangeFull) -> Self {
        KeyRange { lower: Bound::Unbounded, upper: Bound::Unbounded }
    }
}

impl<K: AsRef<[u8]>> From<(Bound<K>, Bound<K>)> for KeyRange {
    fn from((lower, upper): (Bound<K>, Bound<K>)) -> Self {
        KeyRange::new(lower.as_ref(), upper.as_ref())
    }
}

impl<K: AsRef<[u8]>> From<Range<K>> for KeyRange {
    fn from(range: Range<K>) -> Self {
        KeyRange::new(Bound::Included(&range.start), Bound::Excluded(&range.end))
    }
}

impl<K: AsRef<[u8]>> From<RangeInclusive<K>> for KeyRange {
    fn from(range: RangeInclusive<K>) -> Self {
        KeyRange::new(Bound::Included(range.start()), Bound::Included(range.end()))
    }
}

impl<K: AsRef<[u8]>> From<RangeFrom<K>> for KeyRange {
    fn from(range: RangeFrom<K>) -> Self {
        KeyRange::new(Bound::Included(&range.start), Bound::Unbounded)
    }
}

impl<K: AsRef<[u8]>> From<RangeTo<K>> for KeyRange {
    fn from(range: RangeTo<K>) -> Self {
        KeyRange::new(Bound::Unbounded, Bound::Excluded(&range.end))
    }
}

impl<K: AsRef<[u8]>> From<RangeToInclusive<K>> for KeyRange {
    fn from(range: RangeToInclusive<K>) -> Self {
        KeyRange::new(Bound::Unbounded, Bound::Included(&range.end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contains(range: &KeyRange, key: &[u8]) -> bool {
        !is_beyond(&range.lower, Ordering::Less, |end| Some(key.cmp(end)))
            && !is_beyond(&range.upper, Ordering::Greater, |end| Some(key.cmp(end)))
    }

    proptest! {
        #[test]
                fn a_prefix_covers_the_keys_that_begin_with_it(
            prefix in proptest::collection::vec(prop_oneof![Just(0), Just(254), Just(255)], 0..4),
            key in proptest::collection::vec(prop_oneof![Just(0), Just(254), Just(255)], 0..6),
        ) {
            prop_assert_eq!(contains(&KeyRange::prefix(&prefix), &key), key.starts_with(&prefix));
        }

        #[test]
                fn ranges_cover_the_same_keys_as_ranges_of_numbers(from: u8, to: u8, key: u8) {
            let [a, b, k] = [from, to, key].map(|byte| [byte]);
            prop_assert_eq!(contains(&(a..b).into(), &k), (from..to).contains(&key));
            prop_assert_eq!(contains(&(a..=b).into(), &k), (from..=to).contains(&key));
            prop_assert_eq!(contains(&(a..).into(), &k), (from..).contains(&key));
            prop_assert_eq!(contains(&(..b).into(), &k), (..to).contains(&key));
            prop_assert_eq!(contains(&(..=b).into(), &k), (..=to).contains(&key));
            let bounds = (Bound::Excluded(a), Bound::Included(b));
            prop_assert_eq!(contains(&KeyRange::from(bounds), &k), from < key && key <= to);
            prop_assert!(contains(&(..).into(), &k));
            for range in [(a..b).into(), (a..=b).into(), KeyRange::from(bounds)] {
                prop_assert!(!range.is_empty() || !contains(&range, &k));
            }
        }
    }
}
