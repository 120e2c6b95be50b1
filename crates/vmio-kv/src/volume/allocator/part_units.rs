//! Units that are taken in part, by their free space. It finds the one with the most space, or with enough, without a walk.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeFrom;

use crate::format::bitmap::{UnitBits, free_runs};
use crate::format::geometry::ALLOCATION_UNIT_BLOCKS;
use crate::format::unit_table::{AllocationUnit, Purpose};

/// Units by purpose and keyspace, with their space: the number of free blocks, or, in units for large values, the longest run of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartUnits {
    by_owner: HashMap<(Purpose, u32), BTreeSet<(u16, u64)>>,
    /// Units before this one are a former owner's: nothing of them is taken.
    first: u64,
    blocks_of_extents: u64,
    /// The number of units that are taken, whole or in part.
    taken: u64,
}

/// The number of free blocks in a unit.
fn free_blocks(bits: &UnitBits) -> u64 {
    ALLOCATION_UNIT_BLOCKS - bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
}

/// How much space a unit has for more of the same purpose.
fn space(of: AllocationUnit, bits: &UnitBits) -> u16 {
    let blocks = match of.purpose {
        Purpose::Free | Purpose::Group | Purpose::Log => 0,
        Purpose::Extents => free_runs(bits).map(|(_, blocks)| blocks).max().unwrap_or(0),
        Purpose::Leaves(_) | Purpose::Branches(_) | Purpose::Segment => free_blocks(bits),
    };
    blocks as u16
}

impl PartUnits {
    /// No units yet; those from `first` on may be taken.
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

    /// Removes a unit that was inserted with the same arguments.
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

    /// An owner's units with that much space or more, those with the least first.
    pub(super) fn with_space(
        &self,
        owner: (Purpose, u32),
        space: RangeFrom<u64>,
    ) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let units = self.by_owner.get(&owner).into_iter();
        units
            .flat_map(move |units| units.range((space.start as u16, 0)..))
            .map(|(space, unit)| (u64::from(*space), *unit))
    }

    /// The number of blocks of large values.
    pub(super) fn blocks_of_extents(&self) -> u64 {
        self.blocks_of_extents
    }

    /// The number of units that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}
