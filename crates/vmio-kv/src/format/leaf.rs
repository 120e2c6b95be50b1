//! A leaf: the common prefix of its keys, stored once, an entry of 24 bytes for each key, and the records that it holds itself.

use std::cmp::Ordering;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{HEADER_BYTES, Sealed};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::pointer::{Pointer, PointerKind, WINDOW_BYTES};

/// The longest common prefix that a leaf keeps.
pub(crate) const PREFIX_BYTES_MAX: usize = 512;
pub(super) const ENTRIES_AT: usize = HEADER_BYTES + size_of::<LeafRow>();
/// Entries of a leaf whose prefix is empty.
pub(crate) const ENTRIES_MAX: usize = (BLOCK_BYTES - ENTRIES_AT) / size_of::<EntryRow>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LeafRow {
    pub(super) prefix_bytes: U16,
    pub(super) window_bytes: u8,
    pub(super) reserved: u8,
    /// Writes of the leaf since its records were last brought together: for scans.
    pub(super) writes: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct EntryRow {
    pub(super) window: [u8; WINDOW_BYTES],
    pub(super) hash: U32,
    pub(super) pointer: U64,
}

/// Before a record in the leaf: then come the bytes of the key behind the entry's window, and the value.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct InlineRow {
    /// The entry that the record belongs to.
    pub(super) entry: u8,
    pub(super) rest_bytes: U16,
    pub(super) value_bytes: U16,
}

const _: () = assert!(size_of::<LeafRow>() == 8 && size_of::<EntryRow>() == 24 && ENTRIES_MAX == 168);
const _: () = assert!(size_of::<InlineRow>() == 5 && ENTRIES_MAX <= u8::MAX as usize + 1);
/// The most bytes of a key and a value that a leaf holds: with any prefix they have space in an empty leaf.
pub(crate) const INLINE_BYTES_MAX: usize =
    BLOCK_BYTES - ENTRIES_AT - size_of::<EntryRow>() - size_of::<InlineRow>() - PREFIX_BYTES_MAX;

/// The hash of a key in its entry: it distinguishes keys that are known only in part.
pub(crate) fn key_hash(key: &[u8]) -> u32 {
    crc32c::crc32c(key)
}

/// A key, as far as it is known without a read of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownKey {
    /// The key, or its first bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether `bytes` is the whole key.
    pub(crate) complete: bool,
    pub(crate) hash: u32,
    pub(crate) pointer: Pointer,
}

impl KnownKey {
    /// A key that is known in full.
    pub(crate) fn whole(key: &[u8], pointer: Pointer) -> Self {
        KnownKey { bytes: key.to_vec(), complete: true, hash: key_hash(key), pointer: pointer.record() }
    }

    /// Compares two keys, if their known bytes decide.
    pub(crate) fn compare(&self, other: &KnownKey) -> Option<Ordering> {
        let shared = self.bytes.len().min(other.bytes.len());
        match self.bytes[..shared].cmp(&other.bytes[..shared]) {
            Ordering::Equal => {}
            unequal => return Some(unequal),
        }
        // Beyond the shared bytes at most one of them is known, and they are equal so far.
        let ends = |key: &KnownKey| key.complete && key.bytes.len() == shared;
        match (ends(self), ends(other)) {
            (true, true) => Some(Ordering::Equal),
            (true, false) => Some(Ordering::Less),
            (false, true) => Some(Ordering::Greater),
            (false, false) => None,
        }
    }
}

/// An entry, with the value if the leaf holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: KnownKey,
    /// The key is known in full if there is a value.
    pub(crate) value: Option<Vec<u8>>,
}

impl Entry {
    /// An entry that points to its record.
    pub(crate) fn to_record(key: KnownKey) -> Self {
        Entry { key, value: None }
    }

    /// An entry whose leaf holds the value.
    pub(crate) fn inline(key: KnownKey, value: Vec<u8>) -> Self {
        assert!(key.complete, "a leaf holds whole keys with their values");
        Entry { key, value: Some(value) }
    }
}

/// A record that a leaf holds.
#[derive(Clone, Copy)]
pub(crate) struct Inline<'block> {
    /// The entry.
    pub(crate) index: usize,
    /// The key's bytes behind the entry's window.
    rest: &'block [u8],
    pub(crate) value: &'block [u8],
}

impl Inline<'_> {
    /// Bytes of the record in the leaf.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<InlineRow>() + self.rest.len() + self.value.len()
    }
}

impl KnownKey {
    /// Forgets the bytes that no leaf keeps.
    pub(super) fn forget_end(&mut self) {
        const MOST: usize = PREFIX_BYTES_MAX + WINDOW_BYTES;
        if self.bytes.len() > MOST {
            (self.bytes, self.complete) = (self.bytes[..MOST].to_vec(), false);
        }
    }

    /// Compares with a key that is known in full, if the known bytes decide.
    pub(crate) fn compare_to(&self, key: &[u8]) -> Option<Ordering> {
        let shared = self.bytes.len().min(key.len());
        match self.bytes[..shared].cmp(&key[..shared]) {
            Ordering::Equal if self.complete => Some(self.bytes.len().cmp(&key.len())),
            // There is at least one byte more than the known ones.
            Ordering::Equal if self.bytes.len() >= key.len() => Some(Ordering::Greater),
            Ordering::Equal => None,
            unequal => Some(unequal),
        }
    }
}

/// The bits of a window as a number.
const WINDOW_BITS: u128 = (1 << (8 * WINDOW_BYTES)) - 1;

/// A window as a number. Of two windows padded with zeros, the lesser has the lesser number; equal numbers differ only in zeros at their
/// ends.
fn as_number(window: &[u8; WINDOW_BYTES]) -> u128 {
    let mut bytes = [0; size_of::<u128>()];
    bytes[size_of::<u128>() - WINDOW_BYTES..].copy_from_slice(window);
    u128::from_be_bytes(bytes)
}

/// The first bytes, padded with zeros.
fn front(bytes: &[u8]) -> [u8; WINDOW_BYTES] {
    let mut front = [0; WINDOW_BYTES];
    let length = bytes.len().min(WINDOW_BYTES);
    front[..length].copy_from_slice(&bytes[..length]);
    front
}

/// Length of the common prefix of two byte strings.
pub(crate) fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// A leaf that was read.
#[derive(Clone, Copy)]
pub(crate) struct Leaf<'block> {
    bytes: &'block [u8; BLOCK_BYTES],
    prefix: &'block [u8],
    window_bytes: usize,
    entries: &'block [EntryRow],
    epoch: u64,
}

impl<'block> Leaf<'block> {
    /// Reads a block and checks that all entries are within bounds.
    pub(crate) fn from_block(sealed: &Sealed<'block>) -> Result<Self, Damage> {
        let (row, _) = LeafRow::ref_from_prefix(&sealed.bytes[HEADER_BYTES..]).map_err(|_| Damage::Length)?;
        let prefix_bytes = usize::from(row.prefix_bytes.get());
        let window_bytes = usize::from(row.window_bytes);
        let most = (BLOCK_BYTES - ENTRIES_AT).saturating_sub(prefix_bytes) / size_of::<EntryRow>();
        if prefix_bytes > PREFIX_BYTES_MAX || window_bytes > WINDOW_BYTES || sealed.count > most {
            return Err(Damage::Count { found: sealed.count, most });
        }
        let bytes = &sealed.bytes[ENTRIES_AT..ENTRIES_AT + sealed.count * size_of::<EntryRow>()];
        let entries = <[EntryRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
        let prefix = &sealed.bytes[BLOCK_BYTES - prefix_bytes..];
        Ok(Leaf { bytes: sealed.bytes, prefix, window_bytes, entries, epoch: sealed.epoch })
    }

    /// The epoch in which the leaf was written.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// An entry's pointer.
    pub(crate) fn pointer(&self, index: usize) -> Pointer {
        Pointer::from_bits(self.entries[index].pointer.get())
    }

    /// An entry's hash.
    pub(crate) fn hash(&self, index: usize) -> u32 {
        self.entries[index].hash.get()
    }

    /// The record that the leaf holds at a byte of the block.
    pub(crate) fn inline_at(&self, at: usize) -> Result<Inline<'block>, Damage> {
        let wrong = Damage::Value { what: "the place of a record in it", found: at as u64 };
        let end = BLOCK_BYTES - self.prefix.len();
        let records_at = ENTRIES_AT + size_of_val(self.entries);
        let bytes = self.bytes.get(at..end).filter(|_| at >= records_at).ok_or(wrong)?;
        let (row, bytes) = InlineRow::ref_from_prefix(bytes).map_err(|_| wrong)?;
        let (rest, value) = (usize::from(row.rest_bytes.get()), usize::from(row.value_bytes.get()));
        let index = usize::from(row.entry);
        let is_of_entry = self.entries.get(index).is_some_and(|entry| {
            let pointer = Pointer::from_bits(entry.pointer.get());
            pointer.kind() == PointerKind::Inline && pointer.place_in_block() == at
        });
        if !is_of_entry || rest + value > bytes.len() {
            return Err(wrong);
        }
        // Of a longer one no other leaf might have space.
        let key = self.prefix.len() + self.window(index).len() + rest;
        if key + value > INLINE_BYTES_MAX {
            return Err(Damage::Count { found: key + value, most: INLINE_BYTES_MAX });
        }
        Ok(Inline { index, rest: &bytes[..rest], value: &bytes[rest..rest + value] })
    }

    /// The record of an entry, if the leaf holds it.
    pub(crate) fn inline(&self, index: usize) -> Result<Option<Inline<'block>>, Damage> {
        let pointer = self.pointer(index);
        match pointer.kind() {
            PointerKind::Inline => {
                let inline = self.inline_at(pointer.place_in_block())?;
                if inline.index == index {
                    Ok(Some(inline))
                } else {
                    Err(Damage::Value { what: "the entry of a record in it", found: inline.index as u64 })
                }
            }
            _ => Ok(None),
        }
    }

    /// The whole key of a record that the leaf holds.
    pub(crate) fn inline_key(&self, inline: &Inline<'_>) -> Vec<u8> {
        [self.prefix, self.window(inline.index), inline.rest].concat()
    }

    /// An entry, to be put into another leaf.
    pub(crate) fn entry(&self, index: usize) -> Result<Entry, Damage> {
        let value = self.inline(index)?.map(|inline| inline.value.to_vec());
        Ok(Entry { key: self.key(index), value })
    }

    fn window(&self, index: usize) -> &'block [u8] {
        &self.entries[index].window[..self.pointer(index).known()]
    }

    /// The known part of an entry's key.
    pub(crate) fn key(&self, index: usize) -> KnownKey {
        // Allocators give this much in any case. A key that is a little longer than its known part needs no other allocation when its
        // record is read.
        const UNIT: usize = 2 * size_of::<u64>();
        let space = (self.prefix.len() + WINDOW_BYTES + UNIT / 2).next_multiple_of(UNIT) - UNIT / 2;
        let mut bytes = Vec::with_capacity(space);
        bytes.extend_from_slice(self.prefix);
        bytes.extend_from_slice(self.window(index));
        let pointer = self.pointer(index);
        let mut complete = pointer.is_complete();
        // Of a damaged record the key is known in part, and whoever reads the rest gets the error.
        if !complete && let Ok(Some(inline)) = self.inline(index) {
            bytes.extend_from_slice(inline.rest);
            complete = true;
        }
        KnownKey { bytes, complete, hash: self.hash(index), pointer: pointer.record() }
    }

    /// The entries whose keys may equal `key`: all keys before them are less, all after them are greater.
    pub(crate) fn candidates(&self, key: &[u8]) -> std::ops::Range<usize> {
        let shared = common_prefix(self.prefix, key);
        if shared < self.prefix.len() {
            // The key leaves the prefix: it is less than all entries, or greater.
            let is_less = key.get(shared).is_none_or(|byte| *byte < self.prefix[shared]);
            let place = if is_less { 0 } else { self.len() };
            return place..place;
        }
        // Windows of different lengths would not be in order by their known bytes: only as many bytes count as are known of all entries.
        let known_of_all = !(WINDOW_BITS >> (8 * self.window_bytes));
        let at = |index: usize| as_number(&self.entries[index].window) & known_of_all;
        let wanted = as_number(&front(&key[shared..])) & known_of_all;
        let first = self.partition_point(|index| at(index) < wanted);
        let behind = (first..self.len()).find(|index| at(*index) != wanted).unwrap_or(self.len());
        first..behind
    }

    /// Whether a candidate is the key; `None` if only its record can tell.
    pub(crate) fn is_key(&self, index: usize, key: &[u8], hash: u32) -> Option<bool> {
        if self.hash(index) != hash {
            return Some(false);
        }
        let rest = &key[self.prefix.len()..];
        let (window, complete) = (self.window(index), self.pointer(index).is_complete());
        if complete {
            return Some(window == rest);
        }
        if rest.len() <= window.len() || !rest.starts_with(window) {
            return Some(false);
        }
        match self.inline(index) {
            Ok(Some(inline)) => Some(&rest[window.len()..] == inline.rest),
            _ => None,
        }
    }

    fn partition_point(&self, is_before: impl Fn(usize) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if is_before(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::format::block::{Block, Kind, Label, Uuid, seal, unseal};
    use crate::format::leaf_builder::LeafBuilder;

    fn pointer(number: usize) -> Pointer {
        Pointer::new(PointerKind::Value, number as u64 * 8, 64)
    }

    fn leaf_of(keys: &[KnownKey]) -> (Block, usize) {
        let mut builder = LeafBuilder::default();
        let taken = keys.iter().take_while(|key| builder.push(Entry::to_record((*key).clone())).is_ok()).count();
        (builder.finish(Uuid::from_bytes([1; 16]), 2, 4096, 5), taken)
    }

    fn keys() -> impl Strategy<Value = BTreeSet<Vec<u8>>> {
        // Few letters, so that keys share prefixes, and are prefixes of each other.
        let key = proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0)], 1..40);
        proptest::collection::btree_set(key, 1..160)
    }

    proptest! {
        #[test]
        fn a_key_is_found_among_its_candidates(keys in keys(), probe in proptest::collection::vec(any::<u8>(), 1..40)) {
            let known: Vec<KnownKey> =
                keys.iter().enumerate().map(|(number, key)| KnownKey::whole(key, pointer(number))).collect();
            let (block, taken) = leaf_of(&known);
            let sealed = unseal(&block.0, Kind::Leaf, 4096).expect("whole");
            let leaf = Leaf::from_block(&sealed).expect("whole");
            prop_assert_eq!(leaf.len(), taken);
            for (number, key) in keys.iter().take(taken).enumerate() {
                let candidates = leaf.candidates(key);
                prop_assert!(candidates.contains(&number), "{number} is not in {candidates:?}");
                prop_assert_ne!(leaf.is_key(number, key, key_hash(key)), Some(false));
                prop_assert_eq!(leaf.pointer(number).record(), pointer(number));
                let known = leaf.key(number);
                prop_assert!(key.starts_with(&known.bytes) && known.complete == (known.bytes.len() == key.len()));
            }
            let candidates = leaf.candidates(&probe);
            for (number, key) in keys.iter().take(taken).enumerate() {
                prop_assert!(number >= candidates.start || *key < probe);
                prop_assert!(number < candidates.end || *key > probe);
            }
        }

        #[test]
        fn a_leaf_holds_records_beside_pointers_to_others(keys in keys(), kinds in proptest::collection::vec(0_usize..90, 160)) {
            let value = |number: usize| vec![number as u8; kinds[number]];
            let is_inline = |number: usize| kinds[number] % 3 != 0;
            let entries: Vec<Entry> = keys.iter().enumerate().map(|(number, key)| {
                let known = KnownKey::whole(key, pointer(number));
                if is_inline(number) { Entry::inline(known, value(number)) } else { Entry::to_record(known) }
            }).collect();
            let mut builder = LeafBuilder::default();
            let taken = entries.iter().take_while(|entry| builder.push((*entry).clone()).is_ok()).count();
            prop_assert!(taken > 20.min(keys.len() - 1));
            let block = builder.finish(Uuid::from_bytes([1; 16]), 2, 4096, 5);
            let sealed = unseal(&block.0, Kind::Leaf, 4096).expect("whole");
            let leaf = Leaf::from_block(&sealed).expect("whole");
            prop_assert_eq!(leaf.len(), taken);
            for (number, key) in keys.iter().take(taken).enumerate() {
                prop_assert!(leaf.candidates(key).contains(&number));
                prop_assert_ne!(leaf.is_key(number, key, key_hash(key)), Some(false));
                let entry = leaf.entry(number).expect("whole");
                if !is_inline(number) {
                    prop_assert_eq!((entry.value, entry.key.pointer), (None, pointer(number)));
                    continue;
                }
                prop_assert_eq!(leaf.is_key(number, key, key_hash(key)), Some(true));
                prop_assert!(entry.key.complete && &entry.key.bytes == key);
                prop_assert_eq!(entry.value, Some(value(number)));
                let at = entry.key.pointer;
                prop_assert_eq!((at.kind(), at.offset() / 4096), (PointerKind::Inline, 1));
                let inline = leaf.inline_at(at.place_in_block()).expect("there");
                prop_assert_eq!((inline.index, leaf.inline_key(&inline)), (number, key.clone()));
                // No other key passes for it.
                let longer = [key.as_slice(), b"c"].concat();
                prop_assert_eq!(leaf.is_key(number, &longer, key_hash(key)), Some(false));
            }
        }

        #[test]
        fn keys_known_in_part_stay_in_order(keys in keys(), cut in 1_usize..20) {
            let known: Vec<KnownKey> = keys.iter().enumerate().map(|(number, key)| {
                let mut known = KnownKey::whole(key, pointer(number));
                // The known parts of different keys may be the same.
                let length = key.len().min(cut + number % 3);
                known.bytes.truncate(length);
                known.complete = length == key.len();
                known
            }).collect();
            let (block, taken) = leaf_of(&known);
            let sealed = unseal(&block.0, Kind::Leaf, 4096).expect("whole");
            let leaf = Leaf::from_block(&sealed).expect("whole");
            for (number, key) in keys.iter().take(taken).enumerate() {
                prop_assert!(leaf.candidates(key).contains(&number));
                prop_assert_ne!(leaf.is_key(number, key, key_hash(key)), Some(false));
            }
        }

        #[test]
        fn known_parts_never_compare_wrongly(left in keys(), cut in 0_usize..20, other in 0_usize..20) {
            let whole: Vec<&Vec<u8>> = left.iter().collect();
            for pair in whole.windows(2) {
                let part = |key: &[u8], cut: usize| {
                    let mut known = KnownKey::whole(key, pointer(0));
                    known.complete = cut >= key.len();
                    known.bytes.truncate(cut);
                    known
                };
                let answer = part(pair[0], cut).compare(&part(pair[1], other));
                prop_assert!(answer.is_none_or(|answer| answer == pair[0].cmp(pair[1])));
            }
        }

        #[test]
        fn no_contents_of_a_sealed_leaf_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 4048), count: u16) {
            let mut block = Block::ZERO;
            block.0[HEADER_BYTES..].copy_from_slice(&bytes);
            seal(&mut block.0, Uuid::from_bytes([1; 16]), Label { kind: Kind::Leaf, keyspace: 2, offset: 4096, epoch: 5 }, count);
            let sealed = unseal(&block.0, Kind::Leaf, 4096).expect("whole");
            if let Ok(leaf) = Leaf::from_block(&sealed) {
                for index in leaf.candidates(&bytes[..20]) {
                    let _ = (leaf.key(index), leaf.pointer(index), leaf.is_key(index, &bytes[..20], 1));
                }
                for index in 0..leaf.len() {
                    let _ = (leaf.entry(index), leaf.inline_at(leaf.pointer(index).place_in_block()));
                }
            }
        }
    }

    #[test]
    fn the_first_and_the_last_of_long_keys_stay_whole_until_the_leaf_is_written() {
        let key = |number: u8| [vec![b'k'; 60_000], vec![number]].concat();
        let mut builder = LeafBuilder::default();
        let known: Vec<KnownKey> =
            (0..200).map(|number| KnownKey::whole(&key(number), pointer(number.into()))).collect();
        let taken = known.iter().take_while(|known| builder.push(Entry::to_record((*known).clone())).is_ok()).count();
        assert_eq!(taken, (BLOCK_BYTES - ENTRIES_AT - PREFIX_BYTES_MAX) / size_of::<EntryRow>());
        assert_eq!(builder.ends(), Some((&known[0], &known[taken - 1])));
        let kept: usize = builder.key_capacity();
        assert!(kept < 2 * 60_001 + taken * 600, "{kept} bytes of keys");
        let block = builder.finish(Uuid::from_bytes([1; 16]), 2, 4096, 5);
        let leaf = Leaf::from_block(&unseal(&block.0, Kind::Leaf, 4096).expect("whole")).expect("whole");
        for number in 0..taken as u8 {
            // All look the same except for their hashes.
            assert_eq!(leaf.candidates(&key(number)), 0..taken);
            let hash = key_hash(&key(number));
            let may_be = |index: &usize| leaf.is_key(*index, &key(number), hash) != Some(false);
            assert_eq!((0..taken).filter(may_be).collect::<Vec<_>>(), [usize::from(number)]);
        }
    }

    #[test]
    fn a_leaf_of_short_keys_has_168_entries() {
        let keys: Vec<KnownKey> =
            (0..200_u8).map(|number| KnownKey::whole(&[number, number], pointer(usize::from(number)))).collect();
        assert_eq!(leaf_of(&keys).1, ENTRIES_MAX);
    }
}
