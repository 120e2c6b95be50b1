//! Inodes in memory: free numbers, and the map from a file's blocks to those of the medium.

pub(crate) mod block_map;
pub(crate) mod free;
pub(crate) mod growth_slots;
pub(crate) mod leases;
pub(crate) mod loaded;
pub(crate) mod lost_leases;
pub(crate) mod volume;

use crate::error::{Error, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::{INODE_BYTES, Inode};
use crate::medium::Medium;

/// Reads an inode; nothing if it is free.
pub(crate) fn read_inode(medium: &dyn Medium, geometry: &Geometry, ino: u64) -> Result<Option<Inode>> {
    Inode::from_bytes(ino, &inode_bytes(medium, geometry, ino)?, geometry.inode_at(ino))
}

/// The bytes of an inode, used or free.
pub(crate) fn inode_bytes(medium: &dyn Medium, geometry: &Geometry, ino: u64) -> Result<[u8; INODE_BYTES]> {
    if ino == 0 || ino >= geometry.all_inodes() {
        return Err(Error::NoInode { ino });
    }
    let mut bytes = [0; INODE_BYTES];
    medium.read(geometry.inode_at(ino), &mut bytes);
    Ok(bytes)
}
