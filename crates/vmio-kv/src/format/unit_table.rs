//! A block of the unit table: the purposes of 252 allocation units.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, Kind, Label, Sealed, Uuid, seal};
use crate::format::catalogue::LEVELS;
use crate::format::geometry::{BLOCK_BYTES, UNIT_TABLE_UNITS};

const ROWS: usize = UNIT_TABLE_UNITS as usize;
const START: usize = BLOCK_BYTES - ROWS * size_of::<UnitRow>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UnitRow {
    keyspace: U32,
    purpose: u8,
    level: u8,
    flags: U16,
    references: U32,
    garbage: U32,
}

const _: () = assert!(size_of::<UnitRow>() == 16 && START == 64);

/// The purpose of an allocation unit. A unit belongs to one keyspace and one purpose, so that priorities and read spans stay separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// The unit is free.
    #[default]
    Free,
    /// The first unit of a group.
    Group,
    /// A chunk of the log.
    Log,
    /// Leaves of a level.
    Leaves(u8),
    /// Inner nodes of a level.
    Branches(u8),
    /// Large values.
    Extents,
    /// The segment's own blocks: its catalogue of keyspaces and its free log.
    Segment,
}

impl Purpose {
    /// The purpose's name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Purpose::Free => "nothing",
            Purpose::Group => "a group's own blocks",
            Purpose::Log => "the log",
            Purpose::Leaves(_) => "leaves",
            Purpose::Branches(_) => "inner nodes",
            Purpose::Extents => "extents",
            Purpose::Segment => "the segment's own blocks",
        }
    }

    /// The level whose nodes the unit holds; 0 for other purposes.
    pub(crate) fn level(self) -> u8 {
        self.to_bytes().1
    }

    fn to_bytes(self) -> (u8, u8) {
        match self {
            Purpose::Free => (0, 0),
            Purpose::Group => (1, 0),
            Purpose::Log => (2, 0),
            Purpose::Leaves(level) => (3, level),
            Purpose::Branches(level) => (4, level),
            Purpose::Extents => (5, 0),
            Purpose::Segment => (6, 0),
        }
    }

    fn from_bytes(purpose: u8, level: u8) -> Result<Self, Damage> {
        if usize::from(level) >= LEVELS {
            return Err(Damage::Value { what: "a unit's level", found: u64::from(level) });
        }
        match purpose {
            0 => Ok(Purpose::Free),
            1 => Ok(Purpose::Group),
            2 => Ok(Purpose::Log),
            3 => Ok(Purpose::Leaves(level)),
            4 => Ok(Purpose::Branches(level)),
            5 => Ok(Purpose::Extents),
            6 => Ok(Purpose::Segment),
            found => Err(Damage::Value { what: "a unit's purpose", found: u64::from(found) }),
        }
    }
}

/// An allocation unit, as the table describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllocationUnit {
    pub(crate) purpose: Purpose,
    /// The keyspace that the unit belongs to; 0 for the segment.
    pub(crate) keyspace: u32,
    /// Other segments that refer to the unit, read-only.
    pub(crate) references: u32,
    /// Bytes of a log chunk, or of extents, without a reference.
    pub(crate) garbage: u32,
    /// For a log chunk, the epoch of the commit that ended the unit's previous generation; 48 bits are stored.
    pub(crate) former_epoch: u64,
}

/// Builds a block of the table.
pub(crate) fn to_block(segment: Uuid, units: &[AllocationUnit], offset: u64, epoch: u64) -> Block {
    assert!(units.len() <= ROWS, "{} units in a block of the unit table", units.len());
    let row = |unit: &AllocationUnit| {
        let (purpose, level) = unit.purpose.to_bytes();
        let (keyspace, flags) = match unit.purpose {
            Purpose::Log => (unit.former_epoch as u32, (unit.former_epoch >> 32) as u16),
            _ => (unit.keyspace, 0),
        };
        UnitRow {
            keyspace: U32::new(keyspace),
            purpose,
            level,
            flags: U16::new(flags),
            references: U32::new(unit.references),
            garbage: U32::new(unit.garbage),
        }
    };
    let rows: Vec<UnitRow> = units.iter().map(row).collect();
    let mut block = Block::ZERO;
    let bytes = rows.as_slice().as_bytes();
    block.0[START..START + bytes.len()].copy_from_slice(bytes);
    seal(&mut block.0, segment, Label { kind: Kind::UnitTable, keyspace: 0, offset, epoch }, units.len() as u16);
    block
}

/// Reads a block of the table.
pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<Vec<AllocationUnit>, Damage> {
    if sealed.count > ROWS {
        return Err(Damage::Count { found: sealed.count, most: ROWS });
    }
    let bytes = &sealed.bytes[START..START + sealed.count * size_of::<UnitRow>()];
    let rows = <[UnitRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
    let unit = |row: &UnitRow| {
        let purpose = Purpose::from_bytes(row.purpose, row.level)?;
        let (keyspace, former_epoch) = match purpose {
            Purpose::Log => (0, u64::from(row.keyspace.get()) | u64::from(row.flags.get()) << 32),
            _ => (row.keyspace.get(), 0),
        };
        Ok(AllocationUnit {
            purpose,
            keyspace,
            references: row.references.get(),
            garbage: row.garbage.get(),
            former_epoch,
        })
    };
    rows.iter().map(unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    #[test]
    fn units_come_back() {
        let kinds = [Purpose::Free, Purpose::Group, Purpose::Log, Purpose::Leaves(3), Purpose::Branches(1)];
        let more = [Purpose::Extents, Purpose::Segment];
        let unit = |purpose: &Purpose| {
            let (keyspace, former_epoch) = if *purpose == Purpose::Log { (0, (1 << 48) - 5) } else { (5, 0) };
            AllocationUnit { purpose: *purpose, keyspace, references: 1, garbage: 77, former_epoch }
        };
        let units: Vec<AllocationUnit> = kinds.iter().chain(&more).map(unit).collect();
        let block = to_block(Uuid::from_bytes([1; 16]), &units, 8192, 4);
        let sealed = unseal(&block.0, Kind::UnitTable, 8192).expect("whole");
        assert_eq!(from_block(&sealed).expect("whole"), units);
    }

    #[test]
    fn an_unknown_purpose_or_level_is_damage() {
        for (at, what) in [(START + 4, "a unit's purpose"), (START + 5, "a unit's level")] {
            let mut block = to_block(Uuid::from_bytes([1; 16]), &[AllocationUnit::default()], 8192, 4);
            block.0[at] = 200;
            seal(
                &mut block.0,
                Uuid::from_bytes([1; 16]),
                Label { kind: Kind::UnitTable, keyspace: 0, offset: 8192, epoch: 4 },
                1,
            );
            let sealed = unseal(&block.0, Kind::UnitTable, 8192).expect("whole");
            assert_eq!(from_block(&sealed), Err(Damage::Value { what, found: 200 }));
        }
    }
}
