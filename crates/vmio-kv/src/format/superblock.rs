//! A segment's superblock: it says where the segment's newest consistent state is. Writing it commits that state.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::{BLOCK_BYTES, Group, number};

/// Blocks of the catalogue that fit into a superblock.
pub(crate) const CATALOGUE_BLOCKS_MAX: usize = 200;

/// Feature: pivots longer than [`crate::format::pivot::SHORT_BYTES_MAX`].
const LONG_PIVOTS: u64 = 1;
/// Feature: pointers to heads of large values have a number, which is part of the heads' checksums.
const NUMBERED_HEADS: u64 = 2;
/// Feature: leaves hold small records themselves.
const INLINE_RECORDS: u64 = 4;
/// All features that this version knows. The first commit of an opening sets them all; older versions refuse the store after it.
pub(crate) const FEATURES: u64 = LONG_PIVOTS | NUMBERED_HEADS | INLINE_RECORDS;

const ROWS_AT: usize = HEADER_BYTES + size_of::<Fields>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    incompatible: U64,
    /// Written as 0; nothing reads it.
    compatible: U64,
    owner_epoch: U64,
    log_first_chunk: U64,
    log_replay_from: U64,
    log_replay_sequence: U64,
    log_generation: U64,
    log_durable: U64,
    free_log: U64,
    next_keyspace: U32,
    catalogue_blocks: U32,
    allocator_epochs: U64,
    units: U64,
    write_fence: U64,
    /// Written as zeros by every version that does not know a field here: a field that must survive an older version needs a feature.
    reserved: [u8; 104],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockRow {
    offset: U64,
    epoch: U64,
}

const _: () = assert!(size_of::<Fields>() == 208);
const _: () = assert!(ROWS_AT + CATALOGUE_BLOCKS_MAX * size_of::<BlockRow>() <= BLOCK_BYTES);

/// A reference to a block, with the epoch that it must have: this reveals a lost write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockReference {
    pub(crate) offset: u64,
    pub(crate) epoch: u64,
}

/// A checksum of the epochs of all bitmap and unit table blocks. It proves that the newest copies are there: a damaged copy may be the
/// newest one, or one torn by a commit that never completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorEpochs(u64);

impl AllocatorEpochs {
    /// The checksum covers all blocks. Older programs write this bit, and take a checksum without it for none.
    const OF_ALL: u64 = 1 << 32;
    /// The checksum covers the blocks of units below the write fence, and the first blocks of each group: no others have to be read.
    const OF_WRITABLE: u64 = 1 << 33;

    /// From the blocks' epochs: for each group those of the bitmap, then those of the unit table, for units below the write fence.
    pub(crate) fn of(epochs: impl Iterator<Item = u64>) -> Self {
        AllocatorEpochs(Self::OF_WRITABLE | Self::checksum(epochs))
    }

    fn checksum(epochs: impl Iterator<Item = u64>) -> u64 {
        epochs.fold(0, |sum, epoch| crc32c::crc32c_append(sum, &epoch.to_le_bytes())).into()
    }

    /// The unit below which blocks have to be read: the write fence, or no limit.
    pub(crate) fn needs(self, write_fence: u64) -> u64 {
        if self.0 & Self::OF_WRITABLE != 0 { write_fence } else { u64::MAX }
    }

    /// Whether these can be the epochs of the covered blocks. Superblocks older than this checksum have none.
    pub(crate) fn allows(self, found: impl Iterator<Item = u64>) -> bool {
        self.0 & (Self::OF_ALL | Self::OF_WRITABLE) == 0 || self.0 as u32 as u64 == Self::checksum(found)
    }
}

/// The newest state of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Features without which the segment must not be opened.
    pub(crate) incompatible: u64,
    /// Raised by each new owner; an owner that finds a higher epoch than its own has been fenced off.
    pub(crate) owner_epoch: u64,
    /// The first chunk of the log; it may have been freed. Nothing reads this.
    pub(crate) log_first_chunk: u64,
    /// Place and sequence number of the first record that is in no level but the memtables.
    pub(crate) log_replay_from: u64,
    pub(crate) log_replay_sequence: u64,
    /// Generation of the newest chunk at the time of writing.
    pub(crate) log_generation: u64,
    /// Records with lower numbers were durable at the time of writing.
    pub(crate) log_durable: u64,
    /// The first block of the free log; 0 for none.
    pub(crate) free_log: u64,
    /// The number of the next keyspace to be created.
    pub(crate) next_keyspace: u32,
    /// The epochs of the bitmaps and the unit tables.
    pub(crate) allocator_epochs: AllocatorEpochs,
    /// Units of the segment's groups; 0 for all that the volume's table names. The table has more while the volume grows.
    pub(crate) units: u64,
    /// The first unit of those that no one has allocated or written to; 0 if that is unknown. A new owner uses only units from this one on,
    /// since the former owner may still write to the others.
    pub(crate) write_fence: u64,
    /// The blocks of the catalogue of keyspaces.
    pub(crate) catalogue: Vec<BlockReference>,
}

impl Superblock {
    /// The first unit that was never allocated, if the segment has these groups.
    pub(crate) fn write_fence_end(&self, groups: &[Group]) -> u64 {
        let end = groups.last().map_or(0, |group| group.end());
        if self.write_fence == 0 { end } else { self.write_fence.min(end) }
    }

    pub(crate) fn to_block(&self, segment: Uuid, offset: u64, epoch: u64) -> Block {
        assert!(self.catalogue.len() <= CATALOGUE_BLOCKS_MAX, "{} blocks of keyspaces", self.catalogue.len());
        let fields = Fields {
            incompatible: U64::new(self.incompatible),
            compatible: U64::ZERO,
            owner_epoch: U64::new(self.owner_epoch),
            log_first_chunk: U64::new(self.log_first_chunk),
            log_replay_from: U64::new(self.log_replay_from),
            log_replay_sequence: U64::new(self.log_replay_sequence),
            log_generation: U64::new(self.log_generation),
            log_durable: U64::new(self.log_durable),
            free_log: U64::new(self.free_log),
            next_keyspace: U32::new(self.next_keyspace),
            catalogue_blocks: U32::new(self.catalogue.len() as u32),
            allocator_epochs: U64::new(self.allocator_epochs.0),
            units: U64::new(self.units),
            write_fence: U64::new(self.write_fence),
            reserved: [0; 104],
        };
        let row = |block: &BlockReference| BlockRow { offset: U64::new(block.offset), epoch: U64::new(block.epoch) };
        let rows: Vec<BlockRow> = self.catalogue.iter().map(row).collect();
        let rows = rows.as_slice().as_bytes();
        let mut block = Block::ZERO;
        block.0[HEADER_BYTES..ROWS_AT].copy_from_slice(fields.as_bytes());
        block.0[ROWS_AT..ROWS_AT + rows.len()].copy_from_slice(rows);
        seal(&mut block.0, segment, Label { kind: Kind::Superblock, keyspace: 0, offset, epoch }, 0);
        block
    }

    pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<Self, Damage> {
        let fields = Fields::read_from_bytes(&sealed.bytes[HEADER_BYTES..ROWS_AT]).map_err(|_| Damage::Length)?;
        // The epoch is the upper half of generations.
        let owner_epoch = fields.owner_epoch.get();
        number("the owner's epoch", owner_epoch.saturating_mul(1 << 32))?;
        number("an epoch", sealed.epoch)?;
        let blocks = fields.catalogue_blocks.get() as usize;
        if blocks > CATALOGUE_BLOCKS_MAX {
            return Err(Damage::Count { found: blocks, most: CATALOGUE_BLOCKS_MAX });
        }
        let bytes = &sealed.bytes[ROWS_AT..ROWS_AT + blocks * size_of::<BlockRow>()];
        let rows = <[BlockRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
        let reference = |row: &BlockRow| BlockReference { offset: row.offset.get(), epoch: row.epoch.get() };
        Ok(Superblock {
            incompatible: fields.incompatible.get(),
            owner_epoch,
            log_first_chunk: fields.log_first_chunk.get(),
            log_replay_from: fields.log_replay_from.get(),
            log_replay_sequence: number("the number of a record", fields.log_replay_sequence.get())?,
            log_generation: fields.log_generation.get(),
            log_durable: fields.log_durable.get(),
            free_log: fields.free_log.get(),
            next_keyspace: match fields.next_keyspace.get() {
                u32::MAX => return Err(Damage::Value { what: "the number of a keyspace", found: u64::from(u32::MAX) }),
                next_keyspace => next_keyspace,
            },
            allocator_epochs: AllocatorEpochs(fields.allocator_epochs.get()),
            units: fields.units.get(),
            write_fence: fields.write_fence.get(),
            catalogue: rows.iter().map(reference).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    fn superblock() -> Superblock {
        Superblock {
            incompatible: 1,
            owner_epoch: 2,
            log_first_chunk: 3,
            log_replay_from: 4,
            log_replay_sequence: 5,
            log_generation: 6,
            log_durable: 7,
            free_log: 8,
            next_keyspace: 9,
            allocator_epochs: AllocatorEpochs::of([10, 11].into_iter()),
            units: 12,
            write_fence: 13,
            catalogue: (0..200).map(|index| BlockReference { offset: index * 4096, epoch: index }).collect(),
        }
    }

    fn read_back(superblock: &Superblock, epoch: u64) -> Result<Superblock, Damage> {
        let block = superblock.to_block(Uuid::from_bytes([1; 16]), 8192, epoch);
        unseal(&block.0, Kind::Superblock, 8192).and_then(|sealed| Superblock::from_block(&sealed))
    }

    #[test]
    fn a_superblock_is_read_back() {
        assert_eq!(read_back(&superblock(), 4), Ok(superblock()));
    }

    #[test]
    fn numbers_that_cannot_be_counted_on_from_are_damage() {
        assert!(read_back(&superblock(), u64::MAX).is_err());
        for wrong in [
            Superblock { owner_epoch: 1 << 32, ..superblock() },
            Superblock { log_replay_sequence: u64::MAX, ..superblock() },
            Superblock { next_keyspace: u32::MAX, ..superblock() },
        ] {
            assert!(matches!(read_back(&wrong, 4), Err(Damage::Value { .. })), "{wrong:?}");
        }
    }
}
