//! Who has taken a segment over from an owner that may still be there: records of which each new owner writes its own, in unit 0.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::{BLOCK_BYTES, ALLOCATION_UNIT_BLOCKS, number};
use crate::format::volume_header::SEGMENTS_A_TABLE;

/// The first block of unit 0 that is for owners' records.
pub(crate) const OWNERS_AT: u64 = 256;
/// Records of a segment that are kept: of the owner in force, and of those that have claimed the segment of late.
pub(crate) const OWNER_RECORDS: usize = 4;
/// Groups of a segment whose own units a record can name.
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

/// What a new owner says. First it claims the segment, which fences the one before; it is in force once it names the units that
/// hold what is known of the segment's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerRecord {
    /// Higher than that of all owners before.
    pub(crate) owner_epoch: u64,
    /// Tells it from another that claims the same epoch.
    pub(crate) claim: Uuid,
    /// Units from this on are not written to by this owner as long as only the claim is there.
    pub(crate) write_fence: u64,
    /// Of each group that the segment had then, in their order, the unit that is its own; none as long as this is a claim alone.
    pub(crate) own_units: Vec<u64>,
}

/// Where a segment's records are.
pub(crate) fn owner_records(segment: u32) -> [u64; OWNER_RECORDS] {
    assert!((segment as usize) < SEGMENTS_A_TABLE, "segment {segment}");
    let first = OWNERS_AT + u64::from(segment) * OWNER_RECORDS as u64;
    std::array::from_fn(|index| (first + index as u64) * BLOCK_BYTES as u64)
}

impl OwnerRecord {
    /// Whether it says where the segment's state is.
    pub(crate) fn is_in_force(&self) -> bool {
        !self.own_units.is_empty()
    }

    pub(crate) fn to_block(&self, segment: Uuid, offset: u64) -> Block {
        assert!(self.own_units.len() <= OWN_UNITS_MAX, "{} own units", self.own_units.len());
        let fields = Fields { claim: self.claim.0, write_fence: U64::new(self.write_fence), reserved: [0; 24] };
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
        // It is the upper half of generations.
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
            claim: Uuid(fields.claim),
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
        let block = record.to_block(Uuid([1; 16]), 8192);
        unseal(&block.0, Kind::Owner, 8192).and_then(|sealed| OwnerRecord::from_block(&sealed))
    }

    #[test]
    fn it_comes_back() {
        for own_units in [vec![], vec![7], (0..OWN_UNITS_MAX as u64).collect()] {
            let record = OwnerRecord { owner_epoch: 5, claim: Uuid([2; 16]), write_fence: 77, own_units };
            assert_eq!(read_back(&record), Ok(record.clone()));
        }
        for (owner_epoch, write_fence) in [(1 << 32, 77), (5, 1 << 32)] {
            let record = OwnerRecord { owner_epoch, claim: Uuid([2; 16]), write_fence, own_units: vec![] };
            assert!(matches!(read_back(&record), Err(Damage::Value { .. })));
        }
    }

    #[test]
    fn the_records_of_all_segments_are_in_the_volumes_own_unit() {
        let mut all: Vec<u64> = (0..SEGMENTS_A_TABLE as u32).flat_map(owner_records).collect();
        assert_eq!(all[0], OWNERS_AT * BLOCK_BYTES as u64);
        assert!(all.iter().all(|offset| *offset < ALLOCATION_UNIT_BLOCKS * BLOCK_BYTES as u64));
        all.dedup();
        assert_eq!(all.len(), SEGMENTS_A_TABLE * OWNER_RECORDS);
    }
}
