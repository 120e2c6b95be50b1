//! An inode, its extents and its entries, also where they are damaged.

use std::collections::BTreeSet;

use crate::check::Fault;
use crate::directories::{self, Found};
use crate::error::Result;
use crate::format::chain::{self, CHAIN_EXTENTS};
use crate::format::geometry::{BLOCK_BYTES, EXTENT_BLOCKS, Geometry};
use crate::format::inode::{Extent, INLINE_EXTENTS, INODE_BYTES, Inode, Kind, Time, Unverified};
use crate::format::xattrs::Xattrs;
use crate::inodes::block_map::aligned_blocks;
use crate::inodes::inode_bytes;
use crate::inodes::loaded::Loaded;
use crate::medium::Medium;

/// Where the extents of an inode, and those of a block of the chain, begin in it.
const INLINE_AT: u64 = (INODE_BYTES - INLINE_EXTENTS * EXTENT_BYTES) as u64;
const CHAIN_AT: u64 = BLOCK_BYTES - (CHAIN_EXTENTS * EXTENT_BYTES) as u64;
const EXTENT_BYTES: usize = 16;

/// An inode as its bytes say, and what is wrong with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeFound {
    /// Its number.
    pub ino: u64,
    /// Where it lies.
    pub at: u64,
    /// The byte of its kind: 0 if it is free.
    pub kind_byte: u8,
    /// Its kind, if there is one of this byte.
    pub kind: Option<Kind>,
    /// The byte of its flags.
    pub flags: u8,
    /// Permissions.
    pub mode: u32,
    /// Names that it counts.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its length.
    pub size: u64,
    /// When it was read.
    pub accessed: Time,
    /// When its contents changed.
    pub modified: Time,
    /// When anything of it changed.
    pub changed: Time,
    /// Tells apart the inodes that have this number one after the other.
    pub generation: u32,
    /// The target of a symbolic link, if it can be read.
    pub target: Option<Vec<u8>>,
    /// Of a directory the one that it is in, of a device its number, of a symbolic link the checksum of its target.
    pub parent_or_device: u64,
    /// The block of extended attributes, 0 for none.
    pub attributes: u64,
    /// Extended attributes: names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The blocks of the chain.
    pub chain: Vec<u64>,
    /// The extents, in the order of their places.
    pub extents: Vec<ExtentFound>,
    /// Everything that is wrong with it.
    pub faults: Vec<Fault>,
}

/// An extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentFound {
    /// Where its place lies.
    pub at: u64,
    /// The first block of the file.
    pub file_block: u32,
    /// How many blocks.
    pub blocks: u32,
    /// The first block on the medium.
    pub start: u64,
    /// How many aligned extents are in it, aligned in the file too: huge pages map them.
    pub aligned_extents: u64,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryFound {
    /// Where it lies.
    pub at: u64,
    /// The number of its first slot.
    pub slot: u32,
    /// The inode.
    pub ino: u64,
    /// The kind that it says of the inode.
    pub kind: Kind,
    /// The name.
    pub name: Vec<u8>,
}

fn fault(at: u64, what: impl ToString) -> Fault {
    Fault { at, what: what.to_string() }
}

pub(super) fn read(medium: &dyn Medium, geometry: &Geometry, ino: u64) -> Result<InodeFound> {
    let bytes = inode_bytes(medium, geometry, ino)?;
    let at = geometry.inode_at(ino);
    let Unverified { kind, flags, inode } = Inode::unverified(&bytes);
    let read = Inode::from_bytes(ino, &bytes, at);
    let is_free = matches!(read, Ok(None));
    let mut found = InodeFound {
        ino,
        at,
        kind_byte: kind,
        kind: Kind::from_byte(kind),
        flags,
        mode: inode.mode,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size,
        accessed: inode.accessed,
        modified: inode.modified,
        changed: inode.changed,
        generation: inode.generation,
        parent_or_device: inode.parent_or_device,
        attributes: inode.attributes,
        xattrs: Vec::new(),
        target: None,
        chain: Vec::new(),
        extents: Vec::new(),
        faults: read.err().map(|error| fault(at, error)).into_iter().collect(),
    };
    // Of a free inode nothing else means anything.
    if is_free {
        return Ok(found);
    }
    found.add_extents(at + INLINE_AT, &inode.extents);
    found.read_chain(medium, geometry, inode.chain);
    found.read_xattrs(medium, geometry);
    if found.faults.is_empty() {
        match Loaded::of(medium, geometry, ino, inode) {
            Ok(loaded) if loaded.inode.kind == Kind::Symlink => match loaded.target(medium) {
                Ok(target) => found.target = Some(target),
                Err(error) => found.faults.push(fault(at, error)),
            },
            Ok(_) => (),
            Err(error) => found.faults.push(fault(at, error)),
        }
    }
    Ok(found)
}

impl InodeFound {
    fn add_extents(&mut self, first: u64, places: &[Extent]) {
        for (at, extent) in (first..).step_by(EXTENT_BYTES).zip(places).filter(|(_, extent)| extent.count > 0) {
            let aligned = aligned_blocks(extent);
            self.extents.push(ExtentFound {
                at,
                file_block: extent.file_block,
                blocks: extent.count,
                start: extent.start,
                aligned_extents: aligned.end.saturating_sub(aligned.start) / EXTENT_BLOCKS,
            });
        }
    }

    fn read_chain(&mut self, medium: &dyn Medium, geometry: &Geometry, first: u64) {
        let (mut next, mut seen) = (first, BTreeSet::new());
        while next != 0 {
            if next >= geometry.blocks || !seen.insert(next) {
                return self.faults.push(fault(self.at, format!("the chain goes on at block {next}")));
            }
            self.chain.push(next);
            let at = next * BLOCK_BYTES;
            let mut block = [0; BLOCK_BYTES as usize];
            medium.read(at, &mut block);
            if let Err(error) = chain::from_block(self.ino, &block, at) {
                self.faults.push(fault(at, error));
            }
            let (after, places) = chain::unverified(&block);
            self.add_extents(at + CHAIN_AT, &places);
            next = after;
        }
    }

    fn read_xattrs(&mut self, medium: &dyn Medium, geometry: &Geometry) {
        if self.attributes == 0 {
            return;
        }
        if self.attributes >= geometry.blocks {
            let what = format!("the extended attributes are in block {}", self.attributes);
            return self.faults.push(fault(self.at, what));
        }
        let at = self.attributes * BLOCK_BYTES;
        let mut block = [0; BLOCK_BYTES as usize];
        medium.read(at, &mut block);
        match Xattrs::from_block(self.ino, &block, at) {
            Ok(xattrs) => self.xattrs = xattrs.0.into_iter().collect(),
            Err(error) => self.faults.push(fault(at, error)),
        }
    }
}

/// The entries of a directory, and the faults of others.
pub(super) fn entries(medium: &dyn Medium, directory: &Loaded) -> (Vec<EntryFound>, Vec<Fault>) {
    let (mut entries, mut faults) = (Vec::new(), Vec::new());
    for found in directories::scan(medium, directory) {
        match found {
            Err(error) => faults.push(fault(directory.at, error)),
            Ok(all) => {
                for Found { slot, at, entry } in all {
                    match entry {
                        Ok(entry) => {
                            entries.push(EntryFound { at, slot, ino: entry.ino, kind: entry.kind, name: entry.name })
                        }
                        Err(error) => faults.push(fault(at, error)),
                    }
                }
            }
        }
    }
    (entries, faults)
}
