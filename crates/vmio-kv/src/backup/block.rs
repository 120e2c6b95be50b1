//! The bytes of a backup: its beginning, and the header of each block.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;

/// The version of new backups, and the newest that this program reads.
pub(crate) const VERSION: u32 = 1;
/// The longest contents of a block.
pub(crate) const CONTENTS_BYTES_MAX: usize = 1 << 20;
/// The longest value that stands beside its key; a longer one has blocks of its own.
pub(crate) const SMALL_VALUE_BYTES_MAX: usize = 256 << 10;

pub(crate) const START_BYTES: usize = size_of::<Start>();
pub(crate) const HEADER_BYTES: usize = size_of::<BlockHeader>();
pub(crate) const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();

const MAGIC: [u8; 8] = *b"vmiokvbk";

/// The random bytes of a backup: blocks of another one fail their checksums.
pub(crate) type BackupId = [u8; 16];

/// The beginning of a backup.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Start {
    magic: [u8; 8],
    /// CRC-32C of all that follows in it.
    checksum: U32,
    version: U32,
    id: BackupId,
}

/// The kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// The first block.
    Store = 1,
    Keyspace = 2,
    /// Whole records, one behind the other.
    Records = 3,
    /// The key of a large value, whose parts follow.
    Large = 4,
    Part = 5,
    /// The last block.
    End = 6,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockHeader {
    /// CRC-32C of the backup's ID, the rest of the header, and the contents.
    checksum: U32,
    kind: u8,
    zeros: [u8; 3],
    contents_bytes: U32,
    more_zeros: U32,
    /// How many blocks are before it.
    number: U64,
}

/// The contents of a block of kind [`BlockKind::Store`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StoreContents {
    pub(crate) volume_bytes: U64,
    pub(crate) segments: U32,
    pub(crate) zeros: U32,
}

/// The front of a record, before its key and its value.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeader {
    pub(crate) key_bytes: U32,
    pub(crate) value_bytes: U32,
}

/// The contents of a block of kind [`BlockKind::End`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct EndContents {
    pub(crate) keyspaces: U64,
    pub(crate) records: U64,
    pub(crate) key_bytes: U64,
    pub(crate) value_bytes: U64,
}

const _: () = assert!(START_BYTES == 32 && HEADER_BYTES == 24 && RECORD_HEADER_BYTES == 8);
const _: () = assert!(size_of::<StoreContents>() == 16 && size_of::<EndContents>() == 32);

/// The checksum in the beginning of a backup.
fn checksum_of_start(version: U32, id: &BackupId) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(version.as_bytes()), id)
}

/// The beginning of a backup.
pub(crate) fn start(id: BackupId) -> [u8; START_BYTES] {
    let version = U32::new(VERSION);
    let checksum = U32::new(checksum_of_start(version, &id));
    zerocopy::transmute!(Start { magic: MAGIC, checksum, version, id })
}

/// Reads the beginning of a backup: its version and its ID.
pub(crate) fn read_start(bytes: [u8; START_BYTES]) -> Result<(u32, BackupId), Damage> {
    let Start { magic, checksum, version, id } = zerocopy::transmute!(bytes);
    if magic != MAGIC {
        return Err(Damage::Magic);
    }
    if checksum.get() != checksum_of_start(version, &id) {
        return Err(Damage::Checksum);
    }
    Ok((version.get(), id))
}

/// Writes the header into the front of a block.
///
/// # Panics
///
/// If the block has no space for its header, or is too long.
pub(crate) fn seal(block: &mut [u8], kind: BlockKind, id: &BackupId, number: u64) {
    let contents_bytes = block.len() - HEADER_BYTES;
    assert!(contents_bytes <= CONTENTS_BYTES_MAX, "a block of {contents_bytes} bytes");
    let header = BlockHeader {
        checksum: U32::ZERO,
        kind: kind as u8,
        zeros: [0; 3],
        contents_bytes: U32::new(contents_bytes as u32),
        more_zeros: U32::ZERO,
        number: U64::new(number),
    };
    block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(id), &block[size_of::<U32>()..]);
    block[..size_of::<U32>()].copy_from_slice(&checksum.to_le_bytes());
}

/// The length of the contents behind a header, which nothing has verified yet.
pub(crate) fn contents_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, Damage> {
    let BlockHeader { contents_bytes, .. } = zerocopy::transmute_ref!(header);
    match contents_bytes.get() as usize {
        bytes if bytes > CONTENTS_BYTES_MAX => {
            Err(Damage::Value { what: "the length of its contents", found: bytes as u64 })
        }
        bytes => Ok(bytes),
    }
}

/// Verifies a block; returns its kind.
pub(crate) fn unseal(
    header: &[u8; HEADER_BYTES],
    contents: &[u8],
    id: &BackupId,
    number: u64,
) -> Result<BlockKind, Damage> {
    let sum = crc32c::crc32c_append(crc32c::crc32c(id), &header[size_of::<U32>()..]);
    let BlockHeader { checksum, kind, zeros, more_zeros, number: found, .. } = zerocopy::transmute_ref!(header);
    if checksum.get() != crc32c::crc32c_append(sum, contents) {
        return Err(Damage::Checksum);
    }
    if found.get() != number {
        return Err(Damage::Value { what: "the block's number", found: found.get() });
    }
    if *zeros != [0; 3] || *more_zeros != U32::ZERO {
        return Err(Damage::Value { what: "a field that has to be zero", found: u64::from(more_zeros.get()) });
    }
    Ok(match kind {
        1 => BlockKind::Store,
        2 => BlockKind::Keyspace,
        3 => BlockKind::Records,
        4 => BlockKind::Large,
        5 => BlockKind::Part,
        6 => BlockKind::End,
        _ => return Err(Damage::Value { what: "the block's kind", found: u64::from(*kind) }),
    })
}
