//! The header of a volume, and the table of its segments. Each block of both is stored twice.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::{BLOCK_BYTES, Group};

/// The format version of new volumes, and the newest that this program reads.
pub(crate) const VERSION: u32 = 1;
/// Places of the header's two copies.
pub(crate) const HEADER_OFFSETS: [u64; 2] = [0, BLOCK_BYTES as u64];
/// The first block of unit 0 that is for owner records; the segment table ends there.
pub(crate) const OWNERS_AT: u64 = 256;
/// Blocks of the segment table; each is stored twice, after the header. The owner records follow.
pub(crate) const SEGMENT_TABLES: u64 = (OWNERS_AT - 2) / 2;
/// Rows in a block of the table.
pub(crate) const SEGMENTS_A_TABLE: usize = (BLOCK_BYTES - HEADER_BYTES - 16) / size_of::<SegmentRow>();
/// Groups in one row of the table; a segment with more has more rows.
pub(crate) const ROW_GROUPS: usize = 5;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    version: U32,
    segments: U32,
    incompatible: U64,
    /// Written as 0; nothing reads it.
    compatible: U64,
    units: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GroupRow {
    first_unit: U32,
    units: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentRow {
    uuid: [u8; 16],
    number: U32,
    flags: U32,
    groups: [GroupRow; ROW_GROUPS],
}

const _: () = assert!(size_of::<Fields>() == 32);
const _: () = assert!(size_of::<SegmentRow>() == 64 && SEGMENTS_A_TABLE == 63);

/// A feature without which a volume must not be opened: owner records say where the groups' metadata units are.
pub(crate) const MOVED_OWN_UNITS: u64 = 1;
/// Another one: the volume has several segments.
pub(crate) const SEVERAL_SEGMENTS: u64 = 2;
/// All known features.
pub(crate) const VOLUME_FEATURES: u64 = MOVED_OWN_UNITS | SEVERAL_SEGMENTS;

/// The header of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeHeader {
    pub(crate) uuid: Uuid,
    pub(crate) version: u32,
    /// Features without which the volume must not be opened.
    pub(crate) incompatible: u64,
    /// Length of the volume in allocation units.
    pub(crate) units: u64,
    /// Number of segments.
    pub(crate) segments: u32,
}

impl VolumeHeader {
    pub(crate) fn to_block(self, offset: u64, epoch: u64) -> Block {
        let mut block = Block::ZERO;
        let fields = Fields {
            version: U32::new(self.version),
            segments: U32::new(self.segments),
            incompatible: U64::new(self.incompatible),
            compatible: U64::ZERO,
            units: U64::new(self.units),
        };
        block.0[HEADER_BYTES..HEADER_BYTES + size_of::<Fields>()].copy_from_slice(fields.as_bytes());
        seal(&mut block.0, self.uuid, Label { kind: Kind::VolumeHeader, keyspace: 0, offset, epoch }, 0);
        block
    }

    pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<Self, Damage> {
        let fields = Fields::read_from_prefix(&sealed.bytes[HEADER_BYTES..]).map_err(|_| Damage::Length)?.0;
        Ok(VolumeHeader {
            uuid: sealed.uuid,
            version: fields.version.get(),
            incompatible: fields.incompatible.get(),
            units: fields.units.get(),
            segments: fields.segments.get(),
        })
    }
}

/// A segment in the volume's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub(crate) uuid: Uuid,
    pub(crate) number: u32,
    pub(crate) groups: Vec<Group>,
}

/// Places of the two copies of a block of the segment table.
pub(crate) fn segment_tables(index: u64) -> [u64; 2] {
    assert!(index < SEGMENT_TABLES, "block {index} of the segment table");
    [(2 + 2 * index) * BLOCK_BYTES as u64, (3 + 2 * index) * BLOCK_BYTES as u64]
}

/// Builds a block of the table.
pub(crate) fn segments_to_block(volume: Uuid, segments: &[SegmentEntry], offset: u64, epoch: u64) -> Block {
    let rows: Vec<SegmentRow> = segments.iter().flat_map(rows).collect();
    assert!(rows.len() <= SEGMENTS_A_TABLE, "{} rows of segments in a block", rows.len());
    let mut block = Block::ZERO;
    let start = BLOCK_BYTES - SEGMENTS_A_TABLE * size_of::<SegmentRow>();
    let bytes = rows.as_slice().as_bytes();
    block.0[start..start + bytes.len()].copy_from_slice(bytes);
    seal(&mut block.0, volume, Label { kind: Kind::SegmentTable, keyspace: 0, offset, epoch }, rows.len() as u16);
    block
}

/// Rows of the table for these segments.
pub(crate) fn rows_of(segments: &[SegmentEntry]) -> usize {
    segments.iter().map(|segment| segment.groups.len().div_ceil(ROW_GROUPS)).sum()
}

fn rows(segment: &SegmentEntry) -> impl Iterator<Item = SegmentRow> {
    let nothing = GroupRow { first_unit: U32::ZERO, units: U32::ZERO };
    segment.groups.chunks(ROW_GROUPS).map(move |groups| {
        let mut row = SegmentRow {
            uuid: segment.uuid.into_bytes(),
            number: U32::new(segment.number),
            flags: U32::ZERO,
            groups: [nothing; ROW_GROUPS],
        };
        for (place, group) in row.groups.iter_mut().zip(groups) {
            *place = GroupRow { first_unit: U32::new(group.first_unit as u32), units: U32::new(group.units as u32) };
        }
        row
    })
}

/// Reads a block of the table, in which the rows of a segment follow each other.
pub(crate) fn segments_from_block(sealed: &Sealed<'_>) -> Result<Vec<SegmentEntry>, Damage> {
    if sealed.count > SEGMENTS_A_TABLE {
        return Err(Damage::Count { found: sealed.count, most: SEGMENTS_A_TABLE });
    }
    let start = BLOCK_BYTES - SEGMENTS_A_TABLE * size_of::<SegmentRow>();
    let bytes = &sealed.bytes[start..start + sealed.count * size_of::<SegmentRow>()];
    let rows = <[SegmentRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
    let mut segments: Vec<SegmentEntry> = Vec::new();
    for row in rows {
        let groups = row.groups.iter().filter(|group| group.units.get() > 0);
        let groups = groups.map(|group| Group::new(u64::from(group.first_unit.get()), u64::from(group.units.get())));
        match segments.last_mut() {
            Some(last) if last.number == row.number.get() => last.groups.extend(groups),
            _ => segments.push(SegmentEntry {
                uuid: Uuid::from_bytes(row.uuid),
                number: row.number.get(),
                groups: groups.collect(),
            }),
        }
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    #[test]
    fn a_header_comes_back() {
        let header =
            VolumeHeader { uuid: Uuid::from_bytes([4; 16]), version: VERSION, incompatible: 0, units: 77, segments: 1 };
        let block = header.to_block(4096, 9);
        let sealed = unseal(&block.0, Kind::VolumeHeader, 4096).expect("whole");
        assert_eq!(VolumeHeader::from_block(&sealed).expect("whole"), header);
        assert_eq!(sealed.epoch, 9);
    }

    #[test]
    fn segments_with_many_groups_come_back() {
        let groups = |count| (0..count).map(|index| Group::new(1 + index * 10, 10)).collect();
        let segments = vec![
            SegmentEntry { uuid: Uuid::from_bytes([1; 16]), number: 0, groups: groups(12) },
            SegmentEntry { uuid: Uuid::from_bytes([2; 16]), number: 1, groups: groups(1) },
        ];
        let block = segments_to_block(Uuid::from_bytes([4; 16]), &segments, segment_tables(0)[1], 3);
        let sealed = unseal(&block.0, Kind::SegmentTable, segment_tables(0)[1]).expect("whole");
        assert_eq!(segments_from_block(&sealed).expect("whole"), segments);
    }
}
