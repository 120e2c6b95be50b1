//! Units that are somebody's, and of which a part is free: which of them has the most space left, and which has enough, is known without a walk.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeFrom;

use crate::format::bitmap::UnitBits;
use crate::format::geometry::ALLOCATION_UNIT_BLOCKS;
use crate::format::unit_table::{Purpose, AllocationUnit};
use crate::volume::allocator::runs::free_runs;

/// Units by whose they are, and how much space they have: free blocks, or, of those for large values, the longest run of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartUnits {
    by_owner: HashMap<(Purpose, u32), BTreeSet<(u16, u64)>>,
    /// Units before this one are a former owner's, and nothing of them is taken.
    first: u64,
    blocks_of_extents: u64,
    /// Units that are somebody's, whole or in part.
    taken: u64,
}

/// Blocks of a unit that are free.
fn free_blocks(bits: &UnitBits) -> u64 {
    ALLOCATION_UNIT_BLOCKS - bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
}

/// How much space a unit has for more of the same.
fn space(of: AllocationUnit, bits: &UnitBits) -> u16 {
    let blocks = match of.purpose {
        Purpose::Free | Purpose::Group | Purpose::Log => 0,
        Purpose::Extents => free_runs(bits).map(|(_, blocks)| blocks).max().unwrap_or(0),
        Purpose::Leaves(_) | Purpose::Branches(_) | Purpose::Segment => free_blocks(bits),
    };
    blocks as u16
}

impl PartUnits {
    /// None yet, of which those from `first` on may be taken.
    pub(super) fn new(first: u64) -> Self {
        PartUnits { first, ..Self::default() }
    }

    pub(super) fn insert(&mut self, unit: u64, of: AllocationUnit, bits: &UnitBits) {
        self.taken += u64::from(of.purpose != Purpose::Free);
        if of.purpose == Purpose::Extents {
            self.blocks_of_extents += ALLOCATION_UNIT_BLOCKS - free_blocks(bits);
        }
        let space = space(of, bits);
        if space > 0 && unit >= self.first {
            self.by_owner.entry((of.purpose, of.keyspace)).or_default().insert((space, unit));
        }
    }

    /// Takes out what was put in with the same.
    pub(super) fn remove(&mut self, unit: u64, of: AllocationUnit, bits: &UnitBits) {
        self.taken -= u64::from(of.purpose != Purpose::Free);
        if of.purpose == Purpose::Extents {
            self.blocks_of_extents -= ALLOCATION_UNIT_BLOCKS - free_blocks(bits);
        }
        let space = space(of, bits);
        if space == 0 || unit < self.first {
            return;
        }
        let owner = (of.purpose, of.keyspace);
        let Some(units) = self.by_owner.get_mut(&owner) else { return };
        let was_there = units.remove(&(space, unit));
        debug_assert!(was_there, "unit {unit} of {owner:?} with {space} blocks");
        if units.is_empty() {
            self.by_owner.remove(&owner);
        }
    }

    /// An owner's units with so much space or more, those with the least first.
    pub(super) fn with_space(
        &self,
        owner: (Purpose, u32),
        space: RangeFrom<u64>,
    ) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let units = self.by_owner.get(&owner).into_iter();
        units.flat_map(move |units| units.range((space.start as u16, 0)..)).map(|(space, unit)| (u64::from(*space), *unit))
    }

    /// Blocks that large values have taken.
    pub(super) fn blocks_of_extents(&self) -> u64 {
        self.blocks_of_extents
    }

    /// How many units are somebody's.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}
