//! What a file or device holds before a volume is created there.

use vmio::backing::Backing;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::format::block::{Block, Kind, Label, Uuid, seal, unseal};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::volume_header::HEADER_OFFSETS;

/// Of what somebody may have something in: tables of partitions and the superblocks of Linux's file systems begin before this. What has its
/// mark further behind, or at the end, is not seen.
const BEGINNING_BYTES: usize = 128 << 10;

/// What is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Zeros, or no byte, or a volume whose creation was cut short: it never had anything.
    Nothing,
    /// A volume, of whatever version.
    Volume,
    /// Something else, which may be somebody's.
    Other,
}

impl Content {
    /// What a backing has.
    pub(crate) fn of(backing: &dyn Backing) -> Result<Self> {
        let mut blocks = vec![Block::ZERO; BEGINNING_BYTES / BLOCK_BYTES];
        let failed = |source| Error::Device { volume: backing.describe(), action: "reading", offset: 0, source };
        // What lies behind its end stays zeros.
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

    /// Fails unless it is nothing: a name may be a mistake. `volume` is what it is called.
    pub(crate) fn check_nothing(self, volume: &str) -> Result<()> {
        let volume = volume.to_owned();
        match self {
            Content::Nothing => Ok(()),
            Content::Volume => Err(Error::VolumeExists { volume }),
            Content::Other => Err(Error::OtherContent { volume }),
        }
    }
}

/// What stands in place of a header until the volume is laid out. Its first sector alone is not zeros: it is there or not.
pub(super) fn creation_mark(volume: Uuid, offset: u64) -> Block {
    let mut block = Block::ZERO;
    seal(&mut block.0, volume, Label { kind: Kind::Creation, keyspace: 0, offset, epoch: 0 }, 0);
    block
}
