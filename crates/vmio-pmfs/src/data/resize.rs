//! A new length.

use super::{end_of, zero_behind_end};
use crate::error::Result;
use crate::format::geometry::BLOCK_BYTES;
use crate::inodes::loaded::{Loaded, Remapped};
use crate::inodes::volume::Volume;

/// Gives a file another length, in memory; the caller's transaction makes it so. After an error the file is to be loaded again.
pub(crate) fn resize<'volume>(
    volume: &'volume Volume,
    file: &mut Loaded,
    size: u64,
) -> Result<Option<Remapped<'volume>>> {
    end_of(size, 0)?;
    zero_behind_end(volume, file, size);
    let kept = size.div_ceil(BLOCK_BYTES) as u32;
    if size < file.inode.size {
        volume.give_back_reserved(file.ino);
    }
    let remapped = match file.map.end() > kept {
        true => Some(file.remap(volume, &[(kept..file.map.end(), Vec::new())])?),
        false => None,
    };
    file.inode.size = size;
    Ok(remapped)
}
