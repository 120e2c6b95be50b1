//! A delta: the byte ranges of a page that a commit has changed, as a record has them.

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::journal::place::Place;
use crate::journal::version::{CHAIN_MAX, Version};
use crate::sys::PAGE_BYTES;

/// The longest delta in bytes: pages of which more has changed are written whole.
pub(crate) const DELTA_BYTES_MAX: usize = PAGE_BYTES / 2;
/// Pages are compared in pieces of this length first, and in words where a piece differs.
const LINE_BYTES: usize = 256;
const WORD_BYTES: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeltaFields {
    place: U64,
    base: U64,
    bytes: U16,
    reserved: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RangeFields {
    offset: U16,
    bytes: U16,
}

const _: () = assert!(size_of::<DeltaFields>() == 20);
const _: () = assert!(size_of::<RangeFields>() == 4);
const _: () = assert!(PAGE_BYTES.is_multiple_of(LINE_BYTES) && LINE_BYTES.is_multiple_of(WORD_BYTES));

/// A delta in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delta<'a> {
    pub(crate) place: Place,
    /// The version that it changes, or `None` for the page in the file.
    pub(crate) base: Option<Version>,
    ranges: &'a [u8],
}

/// Encodes the bytes that differ in `after` into the front of `target`, as a delta to the version `base`. Returns its
/// length: 0 if nothing differs, `None` if it would be longer than [`DELTA_BYTES_MAX`].
pub(crate) fn encode(
    place: Place,
    base: Option<Version>,
    before: &[u8],
    after: &[u8],
    target: &mut [u8; DELTA_BYTES_MAX],
) -> Option<usize> {
    let mut end = size_of::<DeltaFields>();
    for range in differences(before, after) {
        let bytes = &after[range.clone()];
        let data = end + size_of::<RangeFields>();
        let fields = RangeFields { offset: (range.start as u16).into(), bytes: (bytes.len() as u16).into() };
        target.get_mut(end..data)?.copy_from_slice(fields.as_bytes());
        end = data + bytes.len();
        target.get_mut(data..end)?.copy_from_slice(bytes);
    }
    let ranges = end - size_of::<DeltaFields>();
    if ranges == 0 {
        return Some(0);
    }
    let fields = DeltaFields {
        place: place.number().into(),
        base: Version::word(base).into(),
        bytes: (ranges as u16).into(),
        reserved: 0.into(),
    };
    target[..size_of::<DeltaFields>()].copy_from_slice(fields.as_bytes());
    Some(end)
}

/// The ranges of whole words in which two pages differ.
fn differences<'a>(before: &'a [u8], after: &'a [u8]) -> impl Iterator<Item = std::ops::Range<usize>> + 'a {
    assert!(before.len() == PAGE_BYTES && after.len() == PAGE_BYTES, "pages of {} and {}", before.len(), after.len());
    let differs = |at: usize, bytes: usize| before[at..at + bytes] != after[at..at + bytes];
    let mut from = 0;
    std::iter::from_fn(move || {
        while from < PAGE_BYTES {
            if from.is_multiple_of(LINE_BYTES) && !differs(from, LINE_BYTES) {
                from += LINE_BYTES;
            } else if !differs(from, WORD_BYTES) {
                from += WORD_BYTES;
            } else {
                let start = from;
                while from < PAGE_BYTES && differs(from, WORD_BYTES) {
                    from += WORD_BYTES;
                }
                return Some(start..from);
            }
        }
        None
    })
}

impl<'a> Delta<'a> {
    /// The first of the deltas in some bytes, and the bytes behind it. `None` if no record at that position can contain
    /// it.
    fn decode_front(bytes: &'a [u8], position: u64) -> Option<(Self, &'a [u8])> {
        let (fields, rest) = DeltaFields::ref_from_prefix(bytes).ok()?;
        let (ranges, rest) = rest.split_at_checked(usize::from(fields.bytes.get()))?;
        let word = fields.base.get();
        let base = Version::from_word(word);
        let is_sound = match base {
            Some(base) => base.position < position && base.depth < CHAIN_MAX,
            None => word == 0,
        };
        let delta = Delta { place: Place::of_number(fields.place.get()), base, ranges };
        (is_sound && delta.ranges().all(|range| range.is_some())).then_some((delta, rest))
    }

    /// The changed bytes and their offsets. Ends with `None` at a range that does not fit a page.
    fn ranges(self) -> impl Iterator<Item = Option<(usize, &'a [u8])>> {
        let mut left = Some(self.ranges);
        std::iter::from_fn(move || {
            let bytes = left.take().filter(|left| !left.is_empty())?;
            let range = RangeFields::ref_from_prefix(bytes).ok().and_then(|(fields, rest)| {
                let offset = usize::from(fields.offset.get());
                let (data, rest) = rest.split_at_checked(usize::from(fields.bytes.get()))?;
                left = Some(rest);
                (offset + data.len() <= PAGE_BYTES).then_some((offset, data))
            });
            if range.is_none() {
                left = None;
            }
            Some(range)
        })
    }

    /// Turns a page's version before the delta into the version after it.
    pub(crate) fn apply(self, page: &mut [u8]) {
        for (offset, data) in self.ranges().flatten() {
            if let Some(target) = page.get_mut(offset..offset + data.len()) {
                target.copy_from_slice(data);
            }
        }
    }
}

/// The deltas of a record, from its `bytes` behind the front. Ends before a delta that is not sound.
pub(crate) fn deltas(bytes: &[u8], count: usize, position: u64) -> impl Iterator<Item = Delta<'_>> {
    let mut left = bytes;
    let next = move || {
        let (delta, rest) = Delta::decode_front(left, position)?;
        left = rest;
        Some(delta)
    };
    std::iter::from_fn(next).take(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place = Place { file: 3, page: 77 };

    fn page() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), PAGE_BYTES)
    }

    proptest! {
        #[test]
        fn what_is_different_makes_the_one_of_the_other(
            before in page(),
            stores in prop::collection::vec((0..PAGE_BYTES, prop::collection::vec(any::<u8>(), 0..200)), 0..12),
            depth in 0..CHAIN_MAX,
        ) {
            let mut after = before.clone();
            for (at, bytes) in &stores {
                let end = PAGE_BYTES.min(at + bytes.len());
                after[*at..end].copy_from_slice(&bytes[..end - at]);
            }
            let mut encoded = [0xa5; DELTA_BYTES_MAX];
            let base = Some(Version { position: 9, depth });
            match encode(PLACE, base, &before, &after, &mut encoded) {
                Some(0) => prop_assert!(before == after),
                Some(len) => {
                    let found: Vec<_> = deltas(&encoded[..len], 1, 10).collect();
                    prop_assert_eq!(found.len(), 1);
                    prop_assert_eq!((found[0].place, found[0].base), (PLACE, base));
                    let mut page = before.clone();
                    found[0].apply(&mut page);
                    prop_assert!(page == after);
                    // The page may be any mix of both versions.
                    let mut mixed = [&after[..700], &before[700..3000], &after[3000..]].concat();
                    found[0].apply(&mut mixed);
                    prop_assert!(mixed == after);
                }
                None => {
                    let words = before.chunks(8).zip(after.chunks(8)).filter(|(a, b)| a != b).count();
                    prop_assert!(words * (WORD_BYTES + size_of::<RangeFields>()) > DELTA_BYTES_MAX - 20);
                }
            }
        }

        #[test]
        fn hostile_bytes_change_nothing_but_the_page(
            bytes in prop::collection::vec(prop_oneof![Just(0_u8), 0..20_u8, any::<u8>()], 0..600),
            count in 0..40_usize,
        ) {
            let mut page = vec![0; PAGE_BYTES];
            deltas(&bytes, count, 1 << 40).for_each(|delta| delta.apply(&mut page));
            prop_assert_eq!(page.len(), PAGE_BYTES);
        }
    }

    #[test]
    fn deltas_that_cannot_be_are_none() {
        let before = vec![0; PAGE_BYTES];
        let mut after = before.clone();
        after[PAGE_BYTES - 16..].fill(1);
        let mut encoded = [0; DELTA_BYTES_MAX];
        let base = Some(Version { position: 9, depth: CHAIN_MAX - 1 });
        let len = encode(PLACE, base, &before, &after, &mut encoded).unwrap();
        assert_eq!(len, 20 + 4 + 16);
        let count = |bytes: &[u8], position| deltas(bytes, 1, position).count();
        assert_eq!((count(&encoded[..len], 10), count(&encoded[..len], 9), count(&encoded[..len - 1], 10)), (1, 0, 0));
        // A range behind the end of the page, a base that is too deep, and a base that is no position.
        for (byte, value) in [(20, encoded[20] + 8), (8, encoded[8] + 1), (8, 1)] {
            let mut changed = encoded;
            changed[byte] = value;
            if value == 1 {
                changed[9] = 0;
            }
            assert_eq!(count(&changed[..len], 10), 0, "byte {byte}");
        }
    }
}
