//! Making an empty file system.

use std::ops::Range;
use std::sync::Arc;

use super::Fs;
use crate::error::{Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry, ROOT};
use crate::format::inode::{Extent, INLINE_EXTENTS, Inode, Kind, Time};
use crate::format::superblock::Superblock;
use crate::medium::Medium;

const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

impl Fs {
    /// Makes an empty file system on a whole medium, of this layout, with the root directory owned by `uid` and `gid`.
    ///
    /// # Errors
    ///
    /// [`Error::TooSmall`], [`Error::Layout`]; [`Error::HasFileSystem`] and [`Error::HasOtherContent`] unless `overwrite`.
    pub fn make(
        medium: &Arc<dyn Medium>,
        geometry: Geometry,
        overwrite: bool,
        (uid, gid): (u32, u32),
    ) -> Result<Superblock> {
        let geometry = geometry.checked()?;
        if geometry.bytes() > medium.len() {
            return Err(Error::TooSmall { bytes: medium.len(), least: geometry.bytes() });
        }
        // Readers find the superblock's copy by the length of the medium.
        let Some(copy) = Geometry::copy_at(medium.len()).filter(|at| at + BLOCK_BYTES == geometry.bytes()) else {
            return Err(Error::Layout { field: "blocks on this medium", found: geometry.blocks });
        };
        let mut first = ZEROS;
        medium.read(0, &mut first);
        if !overwrite && first != ZEROS {
            return Err(match Superblock::from_block(&first, 0) {
                Err(Error::NoFileSystem { found }) => Error::HasOtherContent { at: 0, found },
                _ => Error::HasFileSystem,
            });
        }
        if !overwrite {
            // Other file systems leave their first block empty.
            changed(&geometry).try_for_each(|part| check_empty(&**medium, part))?;
            check_empty(&**medium, copy..copy + BLOCK_BYTES)?;
        }
        let mut uuid = [0; 16];
        rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::Io { action: "asking for random bytes", source: errno.into() })?;
        let superblock = Superblock { uuid, geometry };
        // Without a superblock there is no file system, whatever a crash leaves of the rest.
        medium.write(0, &ZEROS);
        medium.write(copy, &ZEROS);
        medium.fence();
        changed(&geometry).for_each(|part| clear(&**medium, part));
        let now = Time::now();
        let root = Inode {
            kind: Kind::Directory,
            mode: 0o755,
            links: 2,
            uid,
            gid,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            generation: 1,
            parent_or_device: ROOT,
            chain: 0,
            attributes: 0,
            wishes_alignment: false,
            extents: [Extent::default(); INLINE_EXTENTS],
        };
        medium.write(geometry.inode_at(ROOT), &root.to_bytes(ROOT));
        medium.fence();
        medium.write(copy, &superblock.to_block());
        medium.fence();
        medium.write(0, &superblock.to_block());
        medium.fence();
        medium.sync()?;
        Ok(superblock)
    }
}

/// The journals, the slots of growing files and the inode tables, as ranges of bytes: a new file system has them empty.
fn changed(geometry: &Geometry) -> impl Iterator<Item = Range<u64>> + use<'_> {
    (0..geometry.areas).flat_map(|area| {
        let pool = geometry.pool(area).start * BLOCK_BYTES;
        [geometry.journal_at(area)..geometry.saves_at(area), geometry.slots_at(area)..pool]
    })
}

/// Refuses blocks that hold anything.
fn check_empty(medium: &dyn Medium, blocks: Range<u64>) -> Result<()> {
    for block in blocks.step_by(BLOCK_BYTES as usize) {
        let mut there = ZEROS;
        medium.read(block, &mut there);
        let (words, _) = there.as_chunks::<8>();
        if let Some((word, found)) = words.iter().enumerate().find(|(_, word)| **word != [0; 8]) {
            return Err(Error::HasOtherContent { at: block + 8 * word as u64, found: *found });
        }
    }
    Ok(())
}

/// Makes a range of whole blocks zeros. Holes of a file stay holes.
fn clear(medium: &dyn Medium, blocks: Range<u64>) {
    for at in blocks.step_by(BLOCK_BYTES as usize) {
        let mut there = ZEROS;
        medium.read(at, &mut there);
        if there != ZEROS {
            medium.write(at, &ZEROS);
        }
    }
}
