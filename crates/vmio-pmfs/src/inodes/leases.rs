//! Leases of a file's blocks: processes that have them mapped, and so load and store them without a call.

use std::collections::BTreeMap;
use std::ops::Range;

/// The leases of a file. Leased blocks neither move nor change hands.
#[derive(Default)]
pub(crate) struct Leases {
    /// The blocks that each holder may have mapped.
    held: BTreeMap<u64, Range<u32>>,
    growth: Option<Growth>,
}

/// Blocks behind all that a file has, which its holder fills before they become the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) holder: u64,
    /// The first one in the file.
    pub(crate) block: u32,
    /// The slot of the medium in which the holder says how far it has got, if its appends are durable.
    pub(crate) slot: Option<HeldSlot>,
}

/// A slot of a growing file, and the blocks that the file got for it, which are its own on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldSlot {
    /// Its byte of the medium.
    pub(crate) at: u64,
    /// The seed of its word.
    pub(crate) seed: u32,
    pub(crate) reserved_from: u32,
    pub(crate) reserved_to: u32,
}

/// The outcome of the return of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// The holder keeps some blocks, or has had none.
    Part,
    /// The holder has none left.
    All,
}

impl Leases {
    /// Adds blocks to what a holder has. Returns whether they are its first ones.
    pub(crate) fn grant(&mut self, holder: u64, blocks: Range<u32>) -> bool {
        let is_first = !self.held.contains_key(&holder);
        let held = self.held.entry(holder).or_insert_with(|| blocks.clone());
        *held = held.start.min(blocks.start)..held.end.max(blocks.end);
        is_first
    }

    /// Has a holder fill blocks behind all that the file has.
    pub(crate) fn grow(&mut self, growth: Growth) {
        self.growth = Some(growth);
    }

    /// Nobody fills blocks behind the end any more.
    pub(crate) fn grows_no_more(&mut self) {
        self.growth = None;
    }

    /// The blocks that a holder fills.
    pub(crate) fn growth(&self) -> Option<Growth> {
        self.growth
    }

    /// Takes a holder's blocks from one on.
    pub(crate) fn take_back(&mut self, holder: u64, from: u32) -> Returned {
        self.growth = self.growth.filter(|growth| growth.holder != holder || growth.block < from);
        let Some(held) = self.held.get_mut(&holder) else { return Returned::Part };
        held.end = held.end.min(from);
        if held.start < held.end {
            return Returned::Part;
        }
        self.held.remove(&holder);
        Returned::All
    }

    /// The holders of some of these blocks, and what each has of them.
    pub(crate) fn of<'a>(&'a self, blocks: &'a Range<u32>) -> impl Iterator<Item = (u64, Range<u32>)> + 'a {
        let common = |held: &Range<u32>| held.start.max(blocks.start)..held.end.min(blocks.end);
        self.held.iter().map(move |(holder, held)| (*holder, common(held))).filter(|(_, common)| !common.is_empty())
    }

    /// Whether some of these blocks are leased.
    pub(crate) fn overlap(&self, blocks: &Range<u32>) -> bool {
        self.of(blocks).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_what_it_was_granted_until_it_gives_it_back() {
        let mut leases = Leases::default();
        assert!(leases.grant(7, 10..20));
        assert!(!leases.grant(7, 30..40), "the gap between them is its, too");
        assert!(leases.grant(8, 35..50));
        assert_eq!(leases.of(&(25..45)).collect::<Vec<_>>(), [(7, 25..40), (8, 35..45)]);
        assert!(leases.overlap(&(10..11)) && !leases.overlap(&(0..10)) && !leases.overlap(&(50..99)));
        assert_eq!(leases.take_back(7, 15), Returned::Part);
        assert!(!leases.overlap(&(15..35)));
        assert_eq!(leases.take_back(7, 0), Returned::All);
        assert_eq!(leases.take_back(7, 0), Returned::Part, "it has none");
        assert_eq!(leases.take_back(8, 35), Returned::All);
        assert!(!leases.overlap(&(0..u32::MAX)));
    }
}
