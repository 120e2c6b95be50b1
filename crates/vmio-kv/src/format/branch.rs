//! An inner node: its children, and between each two of them a pivot.

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::BLOCK_BYTES;

/// The longest pivot, in bytes: so that a node has four children at least.
pub(crate) const PIVOT_BYTES_MAX: usize = (BLOCK_BYTES - HEADER_BYTES) / 4 - size_of::<ChildRow>();

const BLOCK_NUMBER_BITS: u32 = 40;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChildRow {
    child: U64,
    pivot_at: U16,
    pivot_bytes: U16,
}

const _: () = assert!(size_of::<ChildRow>() == 12 && PIVOT_BYTES_MAX == 1000);

/// A child: where it is, and the last 24 bits of its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child(u64);

impl Child {
    pub(crate) fn new(offset: u64, epoch: u64) -> Self {
        Child((offset / BLOCK_BYTES as u64) | (epoch << BLOCK_NUMBER_BITS))
    }

    pub(crate) fn offset(self) -> u64 {
        (self.0 & ((1 << BLOCK_NUMBER_BITS) - 1)) * BLOCK_BYTES as u64
    }

    /// What it knows of its epoch.
    pub(crate) fn epoch_bits(self) -> u64 {
        self.0 >> BLOCK_NUMBER_BITS
    }

    /// Whether a node of that epoch is the one that was meant: a lost write leaves an older one.
    pub(crate) fn is_of(self, epoch: u64) -> bool {
        self.0 >> BLOCK_NUMBER_BITS == epoch & ((1 << (64 - BLOCK_NUMBER_BITS)) - 1)
    }
}

/// An inner node that was read.
#[derive(Clone, Copy)]
pub(crate) struct Branch<'block> {
    bytes: &'block [u8; BLOCK_BYTES],
    children: &'block [ChildRow],
}

impl<'block> Branch<'block> {
    /// Looks at a block; nothing behind its bounds is believed.
    pub(crate) fn from_block(sealed: &Sealed<'block>) -> Result<Self, Damage> {
        let most = (BLOCK_BYTES - HEADER_BYTES) / size_of::<ChildRow>();
        if sealed.count == 0 || sealed.count > most {
            return Err(Damage::Count { found: sealed.count, most });
        }
        let bytes = &sealed.bytes[HEADER_BYTES..HEADER_BYTES + sealed.count * size_of::<ChildRow>()];
        let children = <[ChildRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
        let beyond =
            children.iter().map(|child| usize::from(child.pivot_at.get()) + usize::from(child.pivot_bytes.get()));
        let longest = children.iter().map(|child| usize::from(child.pivot_bytes.get())).max().unwrap_or_default();
        if longest > PIVOT_BYTES_MAX {
            return Err(Damage::Value { what: "a pivot's length", found: longest as u64 });
        }
        match beyond.max() {
            Some(end) if end > BLOCK_BYTES => Err(Damage::Value { what: "a pivot's end", found: end as u64 }),
            _ => Ok(Branch { bytes: sealed.bytes, children }),
        }
    }

    /// How many children it has.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }

    pub(crate) fn child(&self, index: usize) -> Child {
        Child(self.children[index].child.get())
    }

    /// No key of the child is less, and all of the children before it are. The first child's is empty.
    pub(crate) fn pivot(&self, index: usize) -> &'block [u8] {
        let at = usize::from(self.children[index].pivot_at.get());
        // It was in its place when the node was looked at first; the page may have become another.
        self.bytes.get(at..at + usize::from(self.children[index].pivot_bytes.get())).unwrap_or_default()
    }

    /// The child in whose range a key lies.
    pub(crate) fn find(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.pivot(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low - 1
    }
}

/// Collects children in order until a node is full.
#[derive(Default)]
pub(crate) struct BranchBuilder {
    children: Vec<(Vec<u8>, Child)>,
    bytes: usize,
}

impl BranchBuilder {
    /// Whether it has room for another child.
    pub(crate) fn has_room(&self, pivot_bytes: usize) -> bool {
        let pivot_bytes = if self.children.is_empty() { 0 } else { pivot_bytes };
        HEADER_BYTES + self.bytes + size_of::<ChildRow>() + pivot_bytes <= BLOCK_BYTES
    }

    /// Appends a child. The first one's pivot is not kept here: it becomes the node's own.
    pub(crate) fn push(&mut self, pivot: Vec<u8>, child: Child) {
        assert!(self.has_room(pivot.len()) && pivot.len() <= PIVOT_BYTES_MAX, "a pivot of {} bytes", pivot.len());
        self.bytes += size_of::<ChildRow>() + if self.children.is_empty() { 0 } else { pivot.len() };
        self.children.push((pivot, child));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// The node's own pivot and its block. The builder is empty then.
    pub(crate) fn finish(&mut self, segment: Uuid, region: u32, offset: u64, epoch: u64) -> (Vec<u8>, Block) {
        let mut children = std::mem::take(&mut self.children);
        self.bytes = 0;
        let own = children.first_mut().map(|(pivot, _)| std::mem::take(pivot)).unwrap_or_default();
        let mut block = Block::ZERO;
        let mut end = BLOCK_BYTES;
        for (index, (pivot, child)) in children.iter().enumerate() {
            end -= pivot.len();
            block.0[end..end + pivot.len()].copy_from_slice(pivot);
            let row = ChildRow {
                child: U64::new(child.0),
                pivot_at: U16::new(end as u16),
                pivot_bytes: U16::new(pivot.len() as u16),
            };
            let at = HEADER_BYTES + index * size_of::<ChildRow>();
            block.0[at..at + size_of::<ChildRow>()].copy_from_slice(row.as_bytes());
        }
        seal(&mut block.0, segment, Label { kind: Kind::Branch, region, offset, epoch }, children.len() as u16);
        (own, block)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::format::block::unseal;

    proptest! {
        #[test]
        fn a_key_goes_to_the_child_whose_range_it_is_in(
            pivots in proptest::collection::btree_set(proptest::collection::vec(any::<u8>(), 0..30), 1..60),
            probe in proptest::collection::vec(any::<u8>(), 0..30),
        ) {
            let mut builder = BranchBuilder::default();
            for (index, pivot) in pivots.iter().enumerate() {
                builder.push(pivot.clone(), Child::new(index as u64 * 4096, 1 << 30 | 77));
            }
            let (own, block) = builder.finish(Uuid([1; 16]), 2, 8192, 5);
            let pivots: Vec<Vec<u8>> = pivots.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
            prop_assert_eq!(&own, &pivots[0]);
            let sealed = unseal(&block.0, Kind::Branch, 8192).expect("whole");
            let branch = Branch::from_block(&sealed).expect("whole");
            let expected = pivots.iter().skip(1).take_while(|pivot| **pivot <= probe).count();
            let found = branch.find(&probe);
            prop_assert_eq!(found, expected);
            prop_assert_eq!(branch.child(found).offset(), found as u64 * 4096);
            prop_assert!(branch.child(found).is_of(1 << 30 | 77) && !branch.child(found).is_of(78));
        }

        #[test]
        fn whatever_a_sealed_node_says_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 4048), count: u16) {
            let mut block = Block::ZERO;
            block.0[HEADER_BYTES..].copy_from_slice(&bytes);
            seal(&mut block.0, Uuid([1; 16]), Label { kind: Kind::Branch, region: 2, offset: 4096, epoch: 5 }, count);
            let sealed = unseal(&block.0, Kind::Branch, 4096).expect("whole");
            if let Ok(branch) = Branch::from_block(&sealed) {
                let found = branch.find(&bytes[..20]);
                let _ = (branch.child(found), branch.pivot(found));
            }
        }
    }

    #[test]
    fn four_children_fit_with_the_longest_pivots() {
        let mut builder = BranchBuilder::default();
        let mut children = 0;
        while builder.has_room(PIVOT_BYTES_MAX) {
            builder.push(vec![children; PIVOT_BYTES_MAX], Child::new(4096, 1));
            children += 1;
        }
        assert!(children >= 4, "{children}");
    }
}
