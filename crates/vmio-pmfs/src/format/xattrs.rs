//! The block of an inode's extended attributes.

use std::collections::BTreeMap;

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Damage, Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::NAME_BYTES_MAX;
use crate::format::superblock::Block;

/// The attribute of the alignment wish. It has the value `1` or is not there. A flag of the inode stands for it, and no entry.
pub const ALIGNED: &str = "user.vmio.aligned";

const ENTRIES_BYTES: usize = BLOCK_BYTES as usize - 8;
/// Bytes of an entry before its name.
const HEAD_BYTES: usize = 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    checksum: U32,
    bytes: U16,
    reserved: U16,
    entries: [u8; ENTRIES_BYTES],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES as usize);

/// An inode's extended attributes: values by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xattrs(pub(crate) BTreeMap<Vec<u8>, Vec<u8>>);

fn checksum(ino: u64, block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), &block[4..])
}

impl Xattrs {
    /// Builds an inode's block; nothing if they do not fit one.
    pub(crate) fn to_block(&self, ino: u64) -> Option<Block> {
        let mut raw = Raw::new_zeroed();
        let mut end = 0;
        for (name, value) in &self.0 {
            let parts = [&[name.len() as u8, 0], &(value.len() as u16).to_le_bytes()[..], name, value];
            for part in parts {
                raw.entries.get_mut(end..end + part.len())?.copy_from_slice(part);
                end += part.len();
            }
        }
        raw.bytes = U16::new(end as u16);
        raw.checksum = U32::new(checksum(ino, raw.as_bytes()));
        let mut block = [0; BLOCK_BYTES as usize];
        block.copy_from_slice(raw.as_bytes());
        Some(block)
    }

    /// Reads an inode's block, which lies at byte `at`.
    pub(crate) fn from_block(ino: u64, block: &Block, at: u64) -> Result<Xattrs> {
        let mut raw = Raw::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(block);
        let damaged = |damage| Error::Damaged { structure: "a block of extended attributes", at, damage };
        let (stored, computed) = (raw.checksum.get(), checksum(ino, block));
        if stored != computed {
            return Err(damaged(Damage::Checksum { stored, computed }));
        }
        let field = |field, found: usize| damaged(Damage::Field { field, found: found as u64 });
        let mut xattrs = Xattrs::default();
        let bytes = usize::from(raw.bytes.get());
        let mut left = raw.entries.get(..bytes).ok_or_else(|| field("length", bytes))?;
        while !left.is_empty() {
            let place = bytes - left.len();
            let entry = cut(left).filter(|(name, ..)| is_name(name) && *name != ALIGNED.as_bytes());
            let (name, value, rest) = entry.ok_or_else(|| field("entry at", place))?;
            if xattrs.0.insert(name.to_vec(), value.to_vec()).is_some() {
                return Err(field("second entry of a name, at", place));
            }
            left = rest;
        }
        Ok(xattrs)
    }
}

/// The first entry's name and value, and the bytes behind it.
fn cut(entries: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = entries.split_at_checked(HEAD_BYTES)?;
    let (name, rest) = rest.split_at_checked(head[0].into())?;
    let (value, rest) = rest.split_at_checked(u16::from_le_bytes([head[2], head[3]]).into())?;
    Some((name, value, rest))
}

/// Whether an attribute can have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_for_their_inode_alone() {
        let mut xattrs = Xattrs::default();
        for number in 0..12_usize {
            xattrs.0.insert(vec![b'a' + number as u8; 1 + number * 20], vec![number as u8; number * 10]);
        }
        let block = xattrs.to_block(7).unwrap();
        assert_eq!(Xattrs::from_block(7, &block, 0).unwrap(), xattrs);
        assert!(Xattrs::from_block(8, &block, 0).is_err());
        let empty = Xattrs::default();
        assert_eq!(Xattrs::from_block(7, &empty.to_block(7).unwrap(), 0).unwrap(), empty);
    }

    #[test]
    fn a_block_has_4084_bytes_for_a_name_and_its_value() {
        let of = |value| Xattrs([(b"user.name".to_vec(), vec![1; value])].into()).to_block(7);
        assert!(of(4075).is_some_and(|block| Xattrs::from_block(7, &block, 0).is_ok()));
        assert!(of(4076).is_none());
        assert!(of(70_000).is_none());
    }

    /// Checksums that fit do not make entries that fit.
    #[test]
    fn entries_that_cannot_be_are_refused() {
        let of = |bytes: u16, entries: &[u8]| {
            let mut block = [0; BLOCK_BYTES as usize];
            block[4..6].copy_from_slice(&bytes.to_le_bytes());
            block[8..8 + entries.len()].copy_from_slice(entries);
            let sum = checksum(7, &block);
            block[..4].copy_from_slice(&sum.to_le_bytes());
            Xattrs::from_block(7, &block, 0)
        };
        assert!(of(5, &[1, 0, 0, 0, b'a']).is_ok());
        for (bytes, entries) in [
            (u16::MAX, &[][..]),
            (4, &[0, 0, 0, 0]),
            (4, &[1, 0, 0, 0, b'a']),
            (5, &[1, 0, 1, 0, b'a']),
            (5, &[1, 0, 0, 0, 0]),
            (10, &[1, 0, 0, 0, b'a', 1, 0, 0, 0, b'a']),
        ] {
            assert!(of(bytes, entries).is_err(), "{bytes} {entries:?}");
        }
    }
}
