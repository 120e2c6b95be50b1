//! Records in unit 0 with which a new owner takes over a segment whose former owner may still be active.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, BLOCK_BYTES, number};
use crate::format::volume_header::{OWNERS_AT, SEGMENTS_A_TABLE};

/// Owner records that are kept for a segment: that of the owner in force, and those of the latest claims.
pub(crate) const OWNER_RECORDS: usize = 4;
/// Groups of a segment whose metadata units a record can name.
pub(crate) const OWN_UNITS_MAX: usize = (BLOCK_BYTES - ROWS_AT) / size_of::<U32>();

const ROWS_AT: usize = HEADER_BYTES + size_of::<Fields>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    claim: [u8; 16],
    write_fence: U64,
    reserved: [u8; 24],
}

const _: () = assert!(size_of::<Fields>() == 48);
const _: () = assert!(OWNERS_AT + (SEGMENTS_A_TABLE * OWNER_RECORDS) as u64 <= ALLOCATION_UNIT_BLOCKS);

/// The record of a new owner. First it claims the segment, which fences off the former owner. It is in force once it names the units with the
/// metadata of the segment's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerRecord {
    /// Higher than the epochs of all former owners.
    pub(crate) owner_epoch: u64,
    /// Distinguishes the record from another that claims the same epoch.
    pub(crate) claim: Uuid,
    /// While the record is only a claim, its owner does not write to units from this one on.
    pub(crate) write_fence: u64,
    /// The metadata unit of each group that the segment had then, in order; empty while the record is only a claim.
    pub(crate) own_units: Vec<u64>,
}

/// Places of a segment's owner records.
pub(crate) fn owner_records(segment: u32) -> [u64; OWNER_RECORDS] {
    assert!((segment as usize) < SEGMENTS_A_TABLE, "segment {segment}");
    let first = OWNERS_AT + u64::from(segment) * OWNER_RECORDS as u64;
    std::array::from_fn(|index| (first + index as u64) * BLOCK_BYTES as u64)
}

impl OwnerRecord {
    /// Whether the record names the place of the segment's metadata.
    pub(crate) fn is_in_force(&self) -> bool {
        !self.own_units.is_empty()
    }

    pub(crate) fn to_block(&self, segment: Uuid, offset: u64) -> Block {
        assert!(self.own_units.len() <= OWN_UNITS_MAX, "{} own units", self.own_units.len());
        let fields =
            Fields { claim: self.claim.into_bytes(), write_fence: U64::new(self.write_fence), reserved: [0; 24] };
        let rows: Vec<U32> = self.own_units.iter().map(|unit| U32::new(*unit as u32)).collect();
        let rows = rows.as_slice().as_bytes();
        let mut block = Block::ZERO;
        block.0[HEADER_BYTES..ROWS_AT].copy_from_slice(fields.as_bytes());
        block.0[ROWS_AT..ROWS_AT + rows.len()].copy_from_slice(rows);
        let label = Label { kind: Kind::Owner, keyspace: 0, offset, epoch: self.owner_epoch };
        seal(&mut block.0, segment, label, self.own_units.len() as u16);
        block
    }

    pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<Self, Damage> {
        // The epoch is the upper half of generations.
        number("the owner's epoch", sealed.epoch.saturating_mul(1 << 32))?;
        if sealed.count > OWN_UNITS_MAX {
            return Err(Damage::Count { found: sealed.count, most: OWN_UNITS_MAX });
        }
        let fields = Fields::read_from_bytes(&sealed.bytes[HEADER_BYTES..ROWS_AT]).map_err(|_| Damage::Length)?;
        let write_fence = fields.write_fence.get();
        if write_fence > u64::from(u32::MAX) {
            return Err(Damage::Value { what: "the unit that the write fence ends at", found: write_fence });
        }
        let bytes = &sealed.bytes[ROWS_AT..ROWS_AT + sealed.count * size_of::<U32>()];
        let rows = <[U32]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
        Ok(OwnerRecord {
            owner_epoch: sealed.epoch,
            claim: Uuid::from_bytes(fields.claim),
            write_fence,
            own_units: rows.iter().map(|unit| u64::from(unit.get())).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    fn read_back(record: &OwnerRecord) -> Result<OwnerRecord, Damage> {
        let block = record.to_block(Uuid::from_bytes([1; 16]), 8192);
        unseal(&block.0, Kind::Owner, 8192).and_then(|sealed| OwnerRecord::from_block(&sealed))
    }

    #[test]
    fn a_record_is_read_back() {
        for own_units in [vec![], vec![7], (0..OWN_UNITS_MAX as u64).collect()] {
            let record = OwnerRecord { owner_epoch: 5, claim: Uuid::from_bytes([2; 16]), write_fence: 77, own_units };
            assert_eq!(read_back(&record), Ok(record.clone()));
        }
        for (owner_epoch, write_fence) in [(1 << 32, 77), (5, 1 << 32)] {
            let record = OwnerRecord { owner_epoch, claim: Uuid::from_bytes([2; 16]), write_fence, own_units: vec![] };
            assert!(matches!(read_back(&record), Err(Damage::Value { .. })));
        }
    }

    #[test]
    fn the_records_of_all_segments_fit_into_the_volumes_own_unit() {
        let mut all: Vec<u64> = (0..SEGMENTS_A_TABLE as u32).flat_map(owner_records).collect();
        assert_eq!(all[0], OWNERS_AT * BLOCK_BYTES as u64);
        assert!(all.iter().all(|offset| *offset < ALLOCATION_UNIT_BLOCKS * BLOCK_BYTES as u64));
        all.dedup();
        assert_eq!(all.len(), SEGMENTS_A_TABLE * OWNER_RECORDS);
    }
}
