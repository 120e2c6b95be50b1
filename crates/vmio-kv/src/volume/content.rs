//! The content of a file or device before a store is created in it.

use vmio::backing::Backing;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::format::block::{Block, Kind, Label, Uuid, seal, unseal};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::volume_header::HEADER_OFFSETS;

/// The bytes that the check reads: partition tables and the superblocks of Linux's file systems begin within them. It does not recognize a
/// format with its mark further behind, or at the end.
const BEGINNING_BYTES: usize = 128 << 10;

/// The content of a file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Zeros, no bytes, or a store whose creation was cut short.
    Nothing,
    /// A store, of whatever version.
    Volume,
    /// Something else.
    Other,
}

impl Content {
    /// Looks at the beginning of a backing.
    pub(crate) fn of(backing: &dyn Backing) -> Result<Self> {
        let mut blocks = vec![Block::ZERO; BEGINNING_BYTES / BLOCK_BYTES];
        let failed = |source| Error::Device { volume: backing.describe(), action: "reading", offset: 0, source };
        // Bytes beyond its end stay zeros.
        backing.read_at(0, blocks.as_mut_slice().as_mut_bytes()).map_err(failed)?;
        let has = |kind: Kind| {
            HEADER_OFFSETS.iter().any(|offset| {
                let block = &blocks[*offset as usize / BLOCK_BYTES];
                unseal(&block.0, kind, *offset).is_ok()
            })
        };
        let is_nothing = || has(Kind::Creation) || blocks.as_slice().as_bytes().iter().all(|byte| *byte == 0);
        Ok(match has(Kind::VolumeHeader) {
            true => Content::Volume,
            false if is_nothing() => Content::Nothing,
            false => Content::Other,
        })
    }

    /// Fails unless there is nothing: the name may be a mistake.
    pub(crate) fn check_nothing(self, volume: &str) -> Result<()> {
        let volume = volume.to_owned();
        match self {
            Content::Nothing => Ok(()),
            Content::Volume => Err(Error::VolumeExists { volume }),
            Content::Other => Err(Error::OtherContent { volume }),
        }
    }
}

/// The block in place of a header until the volume is laid out. Only its first sector is not zeros, so that it is written whole or not at
/// all.
pub(super) fn creation_mark(volume: Uuid, offset: u64) -> Block {
    let mut block = Block::ZERO;
    seal(&mut block.0, volume, Label { kind: Kind::Creation, keyspace: 0, offset, epoch: 0 }, 0);
    block
}
