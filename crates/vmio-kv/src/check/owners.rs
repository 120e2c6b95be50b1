//! The structures that have each block, compared with the blocks that the bitmap says are taken.

use std::collections::BTreeMap;

use crate::format::bitmap::{UNIT_WORDS, UnitBits};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES, Group, unit_of};
use crate::format::unit_table::{AllocationUnit, Purpose};

/// The units of a segment: the contents of its bitmap and table, and the structures found to have their blocks.
pub(super) struct Owners {
    groups: Vec<Group>,
    /// The units about which anything is known.
    units: BTreeMap<u64, UnitOwners>,
}

/// A unit about which nothing is known.
static UNUSED: UnitOwners = UnitOwners {
    row: AllocationUnit { purpose: Purpose::Free, keyspace: 0, references: 0, garbage: 0, former_epoch: 0 },
    taken: Bits::None,
    owned: Bits::None,
    pending: Bits::None,
};

/// Some blocks of a unit. Most units have all or none of them: these cases need no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Bits {
    #[default]
    None,
    All,
    Some(Box<UnitBits>),
}

impl Bits {
    /// From the bits of a unit.
    pub(super) fn of(bits: UnitBits) -> Self {
        match bits {
            bits if bits == UnitBits::default() => Bits::None,
            bits if bits == [u64::MAX; UNIT_WORDS] => Bits::All,
            bits => Bits::Some(Box::new(bits)),
        }
    }

    /// The bits as words.
    pub(super) fn words(&self) -> UnitBits {
        match self {
            Bits::None => UnitBits::default(),
            Bits::All => [u64::MAX; UNIT_WORDS],
            Bits::Some(bits) => **bits,
        }
    }

    fn contains(&self, block: u64) -> bool {
        self.words()[block as usize / 64] >> (block % 64) & 1 == 1
    }

    fn insert(&mut self, block: u64) {
        let mut words = self.words();
        words[block as usize / 64] |= 1 << (block % 64);
        *self = Self::of(words);
    }
}

/// A unit and the structures in it.
#[derive(Clone, Default)]
pub(super) struct UnitOwners {
    /// The unit's row in the table.
    pub(super) row: AllocationUnit,
    /// Blocks that are taken according to the bitmap.
    pub(super) taken: Bits,
    /// Blocks that a structure was found to have.
    owned: Bits,
    /// Blocks that only the log refers to: they were taken since the last commit.
    pending: Bits,
}

/// Why a structure must not have a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// The block is in no unit of the segment.
    Outside,
    /// Another structure was found to have the block.
    Twice,
    /// The block is free according to the bitmap.
    Free,
}

impl Conflict {
    /// Whether the check of the block's contents has to end here.
    pub(super) fn is_fatal(self) -> bool {
        self != Conflict::Free
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Conflict::Outside => "it lies outside of its segment",
            Conflict::Twice => "something else has the same block",
            Conflict::Free => "the bitmap says that its block is free",
        })
    }
}

impl UnitOwners {
    /// Number of blocks that are taken and that no structure has.
    pub(super) fn leaked(&self) -> u32 {
        self.taken.words().iter().zip(self.owned.words()).map(|(taken, owned)| (taken & !owned).count_ones()).sum()
    }

    /// The first of these blocks.
    pub(super) fn first_leaked(&self) -> Option<u64> {
        let words = self.taken.words().into_iter().zip(self.owned.words()).zip(0..);
        words
            .map(|((taken, owned), word)| (taken & !owned, word))
            .find(|(leaked, _)| *leaked != 0)
            .map(|(leaked, word): (u64, u64)| word * 64 + u64::from(leaked.trailing_zeros()))
    }

    /// Whether any block is taken.
    pub(super) fn is_taken(&self) -> bool {
        self.taken != Bits::None
    }
}

impl Owners {
    /// For these groups, of which nothing is known yet except their own units.
    pub(super) fn new(groups: &[Group]) -> Self {
        let mut owners = Owners { groups: groups.to_vec(), units: BTreeMap::new() };
        for group in groups {
            if let Some(own) = owners.get_mut(group.own_unit) {
                own.owned = Bits::All;
            }
        }
        owners
    }

    /// Number of units.
    pub(super) fn units_in_all(&self) -> u64 {
        self.groups.iter().map(|group| group.units).sum()
    }

    fn has(&self, unit: u64) -> bool {
        self.groups.iter().any(|group| group.contains(unit))
    }

    /// The units about which anything is known.
    pub(super) fn units(&self) -> impl Iterator<Item = (u64, &UnitOwners)> {
        self.units.iter().map(|(unit, owners)| (*unit, owners))
    }

    pub(super) fn get(&self, unit: u64) -> Option<&UnitOwners> {
        self.units.get(&unit).or_else(|| self.has(unit).then_some(&UNUSED))
    }

    /// The unit of that number, to add something to it.
    pub(super) fn get_mut(&mut self, unit: u64) -> Option<&mut UnitOwners> {
        self.has(unit).then(|| self.units.entry(unit).or_default())
    }

    /// Records that a structure has a block.
    pub(super) fn own(&mut self, offset: u64) -> Result<(), Conflict> {
        let unit = self.get_mut(unit_of(offset)).ok_or(Conflict::Outside)?;
        let block = offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        if unit.owned.contains(block) {
            return Err(Conflict::Twice);
        }
        unit.owned.insert(block);
        if unit.taken.contains(block) { Ok(()) } else { Err(Conflict::Free) }
    }

    /// Records that a large value has a block taken since the last commit. That commit may have retired the block.
    pub(super) fn own_pending(&mut self, offset: u64) -> Result<(), Conflict> {
        match self.own(offset) {
            Ok(()) | Err(Conflict::Free) => {}
            conflict => return conflict,
        }
        let block = offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        if let Some(unit) = self.get_mut(unit_of(offset)) {
            unit.pending.insert(block);
        }
        Ok(())
    }

    /// Whether a large value's block was recorded as taken since the last commit.
    pub(super) fn is_pending(&self, offset: u64) -> bool {
        let block = offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        let unit = self.units.get(&unit_of(offset));
        unit.is_some_and(|unit| unit.pending.contains(block))
    }

    /// Records that the log has a unit. A unit taken since the last commit may still be free according to the bitmap, or retired by that
    /// commit.
    pub(super) fn own_chunk(&mut self, unit: u64, is_committed: bool) -> Result<(), Conflict> {
        let unit = self.get_mut(unit).ok_or(Conflict::Outside)?;
        let is_owned = unit.owned != Bits::None;
        unit.owned = Bits::All;
        if is_owned {
            return Err(Conflict::Twice);
        }
        if is_committed && unit.taken != unit.owned { Err(Conflict::Free) } else { Ok(()) }
    }
}
