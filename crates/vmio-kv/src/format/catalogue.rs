//! A block of the catalogue: seven keyspaces, with the roots of their levels.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Damage;
use crate::format::block::{Block, Kind, Label, Sealed, Uuid, seal};
use crate::format::geometry::{BLOCK_BYTES, number};

/// Keyspaces in a block.
pub(crate) const KEYSPACES: usize = 7;
/// Levels of a keyspace, including the one in memory: the row of level 0 is for checkpoints of it.
pub(crate) const LEVELS: usize = 7;
/// The longest name of a keyspace, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

const START: usize = BLOCK_BYTES - KEYSPACES * size_of::<KeyspaceRow>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootRow {
    offset: U64,
    epoch: U64,
    entries: U64,
    height: U16,
    reserved: U16,
    blocks: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct KeyspaceRow {
    number: U32,
    flags: U32,
    log_sequence: U64,
    log_offset: U64,
    name_bytes: u8,
    reserved: [u8; 39],
    name: [u8; NAME_BYTES_MAX],
    roots: [[RootRow; 2]; LEVELS],
}

const _: () = assert!(size_of::<RootRow>() == 32 && size_of::<KeyspaceRow>() == 576 && START == 64);

/// The root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) offset: u64,
    pub(crate) epoch: u64,
    /// Entries in the leaves.
    pub(crate) entries: u64,
    /// Nodes on the way from the root to a leaf, both included.
    pub(crate) height: u16,
    /// Nodes of the tree.
    pub(crate) blocks: u32,
}

/// A level's two trees: one that receives compactions of the level above, and one that is being compacted into the level below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelRoots {
    pub(crate) active: Option<Root>,
    pub(crate) compacting: Option<Root>,
}

/// A keyspace of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyspaceEntry {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// Records of the keyspace from this sequence number on are only in the memtable.
    pub(crate) log_sequence: u64,
    /// Place of the first of them, or where it would be.
    pub(crate) log_offset: u64,
    pub(crate) levels: [LevelRoots; LEVELS],
}

fn root_row(root: Option<Root>) -> RootRow {
    let root = root.unwrap_or(Root { offset: 0, epoch: 0, entries: 0, height: 0, blocks: 0 });
    RootRow {
        offset: U64::new(root.offset),
        epoch: U64::new(root.epoch),
        entries: U64::new(root.entries),
        height: U16::new(root.height),
        reserved: U16::ZERO,
        blocks: U32::new(root.blocks),
    }
}

fn root(row: &RootRow) -> Option<Root> {
    let root = Root {
        offset: row.offset.get(),
        epoch: row.epoch.get(),
        entries: row.entries.get(),
        height: row.height.get(),
        blocks: row.blocks.get(),
    };
    (root.offset != 0).then_some(root)
}

/// Builds a block of the catalogue.
pub(crate) fn to_block(segment: Uuid, keyspaces: &[KeyspaceEntry], offset: u64, epoch: u64) -> Block {
    assert!(keyspaces.len() <= KEYSPACES, "{} keyspaces in a block", keyspaces.len());
    let row = |keyspace: &KeyspaceEntry| {
        let mut name = [0; NAME_BYTES_MAX];
        name[..keyspace.name.len()].copy_from_slice(keyspace.name.as_bytes());
        KeyspaceRow {
            number: U32::new(keyspace.number),
            flags: U32::ZERO,
            log_sequence: U64::new(keyspace.log_sequence),
            log_offset: U64::new(keyspace.log_offset),
            name_bytes: keyspace.name.len() as u8,
            reserved: [0; 39],
            name,
            roots: keyspace.levels.map(|level| [root_row(level.active), root_row(level.compacting)]),
        }
    };
    let rows: Vec<KeyspaceRow> = keyspaces.iter().map(row).collect();
    let bytes = rows.as_slice().as_bytes();
    let mut block = Block::ZERO;
    block.0[START..START + bytes.len()].copy_from_slice(bytes);
    seal(&mut block.0, segment, Label { kind: Kind::Catalogue, keyspace: 0, offset, epoch }, keyspaces.len() as u16);
    block
}

/// Reads a block of the catalogue.
pub(crate) fn from_block(sealed: &Sealed<'_>) -> Result<Vec<KeyspaceEntry>, Damage> {
    if sealed.count > KEYSPACES {
        return Err(Damage::Count { found: sealed.count, most: KEYSPACES });
    }
    let bytes = &sealed.bytes[START..START + sealed.count * size_of::<KeyspaceRow>()];
    let rows = <[KeyspaceRow]>::ref_from_bytes(bytes).map_err(|_| Damage::Length)?;
    let keyspace = |row: &KeyspaceRow| {
        let wrong = Damage::Value { what: "a keyspace's name", found: u64::from(row.name_bytes) };
        let name = row.name.get(..usize::from(row.name_bytes)).ok_or(wrong)?;
        let name = std::str::from_utf8(name).map_err(|_| wrong)?;
        let log_sequence = number("the number of a record", row.log_sequence.get())?;
        for root in row.roots.as_flattened() {
            number("a tree's entries", root.entries.get())?;
        }
        Ok(KeyspaceEntry {
            number: row.number.get(),
            name: name.to_owned(),
            log_sequence,
            log_offset: row.log_offset.get(),
            levels: std::array::from_fn(|level| LevelRoots {
                active: root(&row.roots[level][0]),
                compacting: root(&row.roots[level][1]),
            }),
        })
    };
    rows.iter().map(keyspace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::unseal;

    #[test]
    fn keyspaces_come_back() {
        let tree = Root { offset: 4096, epoch: 2, entries: 3, height: 4, blocks: 5 };
        let keyspace = |number: u32| KeyspaceEntry {
            number,
            name: "x".repeat(number as usize * 9),
            log_sequence: 6,
            log_offset: 7,
            levels: std::array::from_fn(|level| LevelRoots {
                active: (level % 2 == 0).then_some(tree),
                compacting: (level % 3 == 0).then_some(tree),
            }),
        };
        let keyspaces: Vec<KeyspaceEntry> = (1..=7).map(keyspace).collect();
        let block = to_block(Uuid::from_bytes([1; 16]), &keyspaces, 8192, 4);
        let sealed = unseal(&block.0, Kind::Catalogue, 8192).expect("whole");
        assert_eq!(from_block(&sealed).expect("whole"), keyspaces);
    }
}
