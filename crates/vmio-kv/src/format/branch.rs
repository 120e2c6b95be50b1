//! An inner node: its children, with a pivot between each two of them.

use std::cmp::Ordering;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::child::Child;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::pivot::{FRONT_BYTES, OwnedPivot, Pivot, Rest, SHORT_BYTES_MAX};
use crate::format::record::KEY_BYTES_MAX;

/// Stands for the length of a pivot that does not fit into the node.
const LONG: u16 = u16::MAX;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChildRow {
    child: U64,
    pivot_at: U16,
    pivot_bytes: U16,
}

/// A long pivot in the node: this row, followed by the pivot's front.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LongRow {
    first: U64,
    /// Length of the whole pivot.
    bytes: U32,
    reserved: U32,
}

/// Bytes of a long pivot in its node.
const LONG_BYTES: usize = size_of::<LongRow>() + FRONT_BYTES;

const _: () = assert!(size_of::<ChildRow>() == 12 && size_of::<LongRow>() == 16);
const _: () = assert!(SHORT_BYTES_MAX == (BLOCK_BYTES - HEADER_BYTES) / 4 - size_of::<ChildRow>());
const _: () = assert!((BLOCK_BYTES - HEADER_BYTES) / (size_of::<ChildRow>() + LONG_BYTES) == 31);

/// An inner node that was read.
#[derive(Clone, Copy)]
pub(crate) struct Branch<'block> {
    bytes: &'block [u8; BLOCK_BYTES],
    children: &'block [ChildRow],
}

impl<'block> Branch<'block> {
    /// Reads a block and checks that all pivots are within bounds.
    pub(crate) fn from_block(sealed: &Sealed<'block>) -> Result<Self, Damage> {
        let branch = Self::to_search(sealed)?;
        (0..branch.len()).try_for_each(|index| branch.checked_pivot(index).map(drop))?;
        Ok(branch)
    }

    /// The same without a look at the pivots: for [`Self::find`], which needs only a few.
    pub(crate) fn to_search(sealed: &Sealed<'block>) -> Result<Self, Damage> {
        let most = (BLOCK_BYTES - HEADER_BYTES) / size_of::<ChildRow>();
        if sealed.count == 0 || sealed.count > most {
            return Err(Damage::Count { found: sealed.count, most });
        }
        let bytes = &sealed.bytes[HEADER_BYTES..HEADER_BYTES + sealed.count * size_of::<ChildRow>()];
        let children = <[ChildRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
        Ok(Branch { bytes: sealed.bytes, children })
    }

    /// Number of children.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }

    pub(crate) fn child(&self, index: usize) -> Child {
        Child::from_bits(self.children[index].child.get())
    }

    /// The pivot of a child: no key of the child is less, and all keys of earlier children are. The first child's pivot is empty.
    pub(crate) fn pivot(&self, index: usize) -> Pivot<&'block [u8]> {
        // The pivot was within bounds at the first look; the page may have changed since.
        self.checked_pivot(index).unwrap_or_default()
    }

    /// A pivot that the node holds as a whole.
    fn short_pivot(&self, index: usize) -> Option<&'block [u8]> {
        let row = &self.children[index];
        let (at, length) = (usize::from(row.pivot_at.get()), usize::from(row.pivot_bytes.get()));
        self.bytes.get(at..at + length).filter(|_| length <= SHORT_BYTES_MAX)
    }

    fn checked_pivot(&self, index: usize) -> Result<Pivot<&'block [u8]>, Damage> {
        if let Some(front) = self.short_pivot(index) {
            return Ok(Pivot { front, rest: None });
        }
        let row = &self.children[index];
        let (at, length) = (usize::from(row.pivot_at.get()), row.pivot_bytes.get());
        let (end, is_long) = if length == LONG { (at + LONG_BYTES, true) } else { (at + usize::from(length), false) };
        let Some(place) = self.bytes.get(at..end) else {
            return Err(Damage::Value { what: "a pivot's end", found: end as u64 });
        };
        if !is_long {
            return Err(Damage::Value { what: "a pivot's length", found: u64::from(length) });
        }
        let (row, front) = LongRow::ref_from_prefix(place).map_err(|_| Damage::Length)?;
        let bytes = row.bytes.get() as usize;
        if !(SHORT_BYTES_MAX + 1..=KEY_BYTES_MAX).contains(&bytes) {
            return Err(Damage::Value { what: "a long pivot's length", found: bytes as u64 });
        }
        let rest = Rest { first: Child::from_bits(row.first.get()), bytes: bytes - FRONT_BYTES };
        Ok(Pivot { front, rest: Some(rest) })
    }

    /// The child whose range contains a key. `compare` compares the rest of a long pivot with the rest of the key.
    pub(crate) fn find<Failure>(
        &self,
        key: &[u8],
        damaged: impl Fn(Damage) -> Failure,
        compare: impl Fn(Rest, &[u8]) -> Result<Ordering, Failure>,
    ) -> Result<usize, Failure> {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let is_behind = match self.short_pivot(middle) {
                Some(pivot) => pivot <= key,
                None => self.checked_pivot(middle).map_err(&damaged)?.compare(key, &compare)? != Ordering::Greater,
            };
            if is_behind { low = middle + 1 } else { high = middle }
        }
        Ok(low - 1)
    }
}

/// Bytes of a pivot in its node.
fn bytes_in_node<Bytes: AsRef<[u8]>>(pivot: &Pivot<Bytes>) -> usize {
    if pivot.rest.is_some() { LONG_BYTES } else { pivot.front.as_ref().len() }
}

/// Collects children in order until a node is full.
#[derive(Default)]
pub(crate) struct BranchBuilder {
    children: Vec<(OwnedPivot, Child)>,
    bytes: usize,
}

impl BranchBuilder {
    /// Whether another child fits.
    pub(crate) fn has_space(&self, pivot: &OwnedPivot) -> bool {
        HEADER_BYTES + self.bytes + self.bytes_of(pivot) <= BLOCK_BYTES
    }

    /// Bytes that another child would take.
    fn bytes_of(&self, pivot: &OwnedPivot) -> usize {
        size_of::<ChildRow>() + if self.children.is_empty() { 0 } else { bytes_in_node(pivot) }
    }

    /// Appends a child. The first child's pivot is not stored in the block: it becomes the node's own.
    pub(crate) fn push(&mut self, pivot: OwnedPivot, child: Child) {
        let most = if pivot.rest.is_some() { FRONT_BYTES } else { SHORT_BYTES_MAX };
        assert!(self.has_space(&pivot) && pivot.front.len() <= most, "{} bytes of a pivot", pivot.front.len());
        self.bytes += self.bytes_of(&pivot);
        self.children.push((pivot, child));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// Number of children.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }

    /// The children, with all their pivots.
    pub(crate) fn into_children(self) -> Vec<(OwnedPivot, Child)> {
        self.children
    }

    /// Returns the node's own pivot and its block, and empties the builder.
    pub(crate) fn finish(&mut self, segment: Uuid, keyspace: u32, offset: u64, epoch: u64) -> (OwnedPivot, Block) {
        let mut children = std::mem::take(&mut self.children);
        self.bytes = 0;
        let own = children.first_mut().map(|(pivot, _)| std::mem::take(pivot)).unwrap_or_default();
        let mut block = Block::ZERO;
        let mut end = BLOCK_BYTES;
        for (index, (pivot, child)) in children.iter().enumerate() {
            end -= bytes_in_node(pivot);
            let (mut place, mut length) = (end, pivot.front.len() as u16);
            if let Some(rest) = pivot.rest {
                let bytes = U32::new((pivot.front.len() + rest.bytes) as u32);
                let row = LongRow { first: U64::new(rest.first.to_bits()), bytes, reserved: U32::ZERO };
                block.0[end..end + size_of::<LongRow>()].copy_from_slice(row.as_bytes());
                (place, length) = (end + size_of::<LongRow>(), LONG);
            }
            block.0[place..place + pivot.front.len()].copy_from_slice(&pivot.front);
            let row = ChildRow {
                child: U64::new(child.to_bits()),
                pivot_at: U16::new(end as u16),
                pivot_bytes: U16::new(length),
            };
            let at = HEADER_BYTES + index * size_of::<ChildRow>();
            block.0[at..at + size_of::<ChildRow>()].copy_from_slice(row.as_bytes());
        }
        seal(&mut block.0, segment, Label { kind: Kind::Branch, keyspace, offset, epoch }, children.len() as u16);
        (own, block)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::format::block::unseal;

    type Rests = BTreeMap<u64, Vec<u8>>;

    /// Pivots in the form that a node stores, and the rests of the long ones by their first blocks.
    fn with_rests(pivots: &BTreeSet<Vec<u8>>) -> (Vec<OwnedPivot>, Rests) {
        let mut rests = Rests::new();
        let pivot = |pivot: &Vec<u8>| {
            if pivot.len() <= SHORT_BYTES_MAX {
                return Pivot { front: pivot.clone(), rest: None };
            }
            let (front, rest) = pivot.split_at(FRONT_BYTES);
            let first = Child::new((rests.len() as u64 + 9) * 4096, 3);
            rests.insert(first.to_bits(), rest.to_vec());
            Pivot { front: front.to_vec(), rest: Some(Rest { first, bytes: rest.len() }) }
        };
        (pivots.iter().map(pivot).collect(), rests)
    }

    /// Short ones, and long ones that differ only at their ends.
    fn a_pivot() -> impl Strategy<Value = Vec<u8>> {
        let end = proptest::collection::vec(any::<u8>(), 0..30);
        (prop_oneof![4 => Just(0), 1 => Just(990), 1 => Just(60_000)], end).prop_map(|(shared, end)| {
            let mut pivot = vec![b'k'; shared];
            pivot.extend(end);
            pivot
        })
    }

    proptest! {
        #[test]
        fn a_key_goes_to_the_child_whose_range_contains_it(
            pivots in proptest::collection::btree_set(a_pivot(), 1..60),
            probe in a_pivot(),
        ) {
            let mut builder = BranchBuilder::default();
            let (in_node, rests) = with_rests(&pivots);
            for (index, pivot) in in_node.iter().enumerate() {
                if !builder.has_space(pivot) {
                    break;
                }
                builder.push(pivot.clone(), Child::new(index as u64 * 4096, 1 << 30 | 77));
            }
            let (own, block) = builder.finish(Uuid::from_bytes([1; 16]), 2, 8192, 5);
            prop_assert_eq!(&own, &in_node[0]);
            let sealed = unseal(&block.0, Kind::Branch, 8192).expect("whole");
            let branch = Branch::from_block(&sealed).expect("whole");
            for (index, pivot) in in_node.iter().enumerate().take(branch.len()).skip(1) {
                prop_assert_eq!(&branch.pivot(index).to_owned(), pivot);
            }
            let expected = pivots.iter().take(branch.len()).skip(1).take_while(|pivot| **pivot <= probe).count();
            let compare = |rest: Rest, key: &[u8]| Ok(rests[&rest.first.to_bits()].as_slice().cmp(key));
            let found = branch.find(&probe, |damage| damage, compare).expect("whole");
            prop_assert_eq!(found, expected);
            prop_assert_eq!(branch.child(found).offset(), found as u64 * 4096);
            prop_assert!(branch.child(found).is_of(1 << 30 | 77) && !branch.child(found).is_of(78));
        }

        #[test]
        fn no_contents_of_a_sealed_node_cause_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 4048),
            count: u16,
            long in proptest::collection::vec(0_usize..30, 0..10),
        ) {
            let mut block = Block::ZERO;
            block.0[HEADER_BYTES..].copy_from_slice(&bytes);
            for index in long {
                let at = HEADER_BYTES + index * size_of::<ChildRow>();
                block.0[at + 10..at + 12].copy_from_slice(&LONG.to_le_bytes());
            }
            seal(&mut block.0, Uuid::from_bytes([1; 16]), Label { kind: Kind::Branch, keyspace: 2, offset: 4096, epoch: 5 }, count);
            let sealed = unseal(&block.0, Kind::Branch, 4096).expect("whole");
            if let Ok(branch) = Branch::from_block(&sealed)
                && let Ok(found) = branch.find(&bytes[..20], |damage| damage, |_, _| Ok(Ordering::Less))
            {
                let _ = (branch.child(found), branch.pivot(found));
            }
        }
    }

    fn children_with(pivot: &OwnedPivot) -> usize {
        let mut builder = BranchBuilder::default();
        let mut children = 0;
        while builder.has_space(pivot) {
            builder.push(pivot.clone(), Child::new(4096, 1));
            children += 1;
        }
        children
    }

    #[test]
    fn four_children_fit_with_the_longest_pivots() {
        let longest_in_node = Pivot { front: vec![7; SHORT_BYTES_MAX], rest: None };
        assert_eq!(children_with(&longest_in_node), 4);
        let rest = Rest { first: Child::new(4096, 1), bytes: KEY_BYTES_MAX - FRONT_BYTES };
        let longest = Pivot { front: vec![7; FRONT_BYTES], rest: Some(rest) };
        assert!(children_with(&longest) >= 31);
    }
}
