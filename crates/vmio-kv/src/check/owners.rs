//! Who has which block, beside what the bitmap says is taken.

use std::collections::BTreeMap;

use crate::format::bitmap::{UNIT_WORDS, UnitBits};
use crate::format::geometry::{BLOCK_BYTES, Group, ALLOCATION_UNIT_BYTES, unit_of};
use crate::format::unit_table::{Purpose, AllocationUnit};

/// The units of a segment: what its bitmap and its table say of them, and who was found to have their blocks.
pub(super) struct Owners {
    groups: Vec<Group>,
    /// Those of which there is anything to say.
    units: BTreeMap<u64, UnitOwners>,
}

/// A unit of which there is nothing to say.
static UNUSED: UnitOwners = UnitOwners {
    row: AllocationUnit { purpose: Purpose::Free, keyspace: 0, references: 0, garbage: 0, former_epoch: 0 },
    taken: Bits::None,
    owned: Bits::None,
    pending: Bits::None,
};

/// Some blocks of a unit. Most units have all of theirs or none: that takes no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Bits {
    #[default]
    None,
    All,
    Some(Box<UnitBits>),
}

impl Bits {
    /// These.
    pub(super) fn of(bits: UnitBits) -> Self {
        match bits {
            bits if bits == UnitBits::default() => Bits::None,
            bits if bits == [u64::MAX; UNIT_WORDS] => Bits::All,
            bits => Bits::Some(Box::new(bits)),
        }
    }

    /// All of them.
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

/// A unit.
#[derive(Clone, Default)]
pub(super) struct UnitOwners {
    /// What the table says.
    pub(super) row: AllocationUnit,
    /// Blocks that the bitmap says are taken.
    pub(super) taken: Bits,
    /// Blocks that somebody was found to have.
    owned: Bits,
    /// Those that the log alone refers to: they have been taken since the last commit.
    pending: Bits,
}

/// What is wrong with somebody's having a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// The block is of no unit of the segment.
    Outside,
    /// Somebody else was found to have it.
    Twice,
    /// The bitmap says that it is free.
    Free,
}

impl Conflict {
    /// Whether nothing more can be said of what is there.
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
    /// Blocks that are taken, and that nobody was found to have.
    pub(super) fn leaked(&self) -> u32 {
        self.taken.words().iter().zip(self.owned.words()).map(|(taken, owned)| (taken & !owned).count_ones()).sum()
    }

    /// The first of them.
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
    /// Of these groups, of which nothing is known yet but which units are their own.
    pub(super) fn new(groups: &[Group]) -> Self {
        let mut owners = Owners { groups: groups.to_vec(), units: BTreeMap::new() };
        for group in groups {
            if let Some(own) = owners.get_mut(group.own_unit) {
                own.owned = Bits::All;
            }
        }
        owners
    }

    /// How many units there are.
    pub(super) fn units_in_all(&self) -> u64 {
        self.groups.iter().map(|group| group.units).sum()
    }

    fn has(&self, unit: u64) -> bool {
        self.groups.iter().any(|group| group.contains(unit))
    }

    /// Those of which there is anything to say.
    pub(super) fn units(&self) -> impl Iterator<Item = (u64, &UnitOwners)> {
        self.units.iter().map(|(unit, owners)| (*unit, owners))
    }

    pub(super) fn get(&self, unit: u64) -> Option<&UnitOwners> {
        self.units.get(&unit).or_else(|| self.has(unit).then_some(&UNUSED))
    }

    /// The same of which something is going to be said.
    pub(super) fn get_mut(&mut self, unit: u64) -> Option<&mut UnitOwners> {
        self.has(unit).then(|| self.units.entry(unit).or_default())
    }

    /// Says that somebody has a block.
    pub(super) fn own(&mut self, offset: u64) -> Result<(), Conflict> {
        let unit = self.get_mut(unit_of(offset)).ok_or(Conflict::Outside)?;
        let block = offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        if unit.owned.contains(block) {
            return Err(Conflict::Twice);
        }
        unit.owned.insert(block);
        if unit.taken.contains(block) { Ok(()) } else { Err(Conflict::Free) }
    }

    /// Says that a large value has a block that was taken since the last commit. It may be what that commit had retired.
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

    /// Whether a block was said to be such.
    pub(super) fn is_pending(&self, offset: u64) -> bool {
        let block = offset % ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64;
        let unit = self.units.get(&unit_of(offset));
        unit.is_some_and(|unit| unit.pending.contains(block))
    }

    /// Says that the log has a unit. One that it took since the last commit may be free yet, or hold what that commit had retired.
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
