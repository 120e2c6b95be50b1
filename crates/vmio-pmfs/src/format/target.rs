//! The checksum of a symbolic link's target. The inode has it: the target may fill its block.

use crate::error::{Damage, Error, Result};

/// The bit that tells a checksum from none.
const HAS_CHECKSUM: u64 = 1 << 32;

/// The field of the inode that a target has.
pub(crate) fn sealed(ino: u64, target: &[u8]) -> u64 {
    HAS_CHECKSUM | u64::from(crc32c::crc32c_append(crc32c::crc32c(&ino.to_le_bytes()), target))
}

/// Whether the target, which lies at byte `at`, is the one that the inode's field is of. Links that older programs have made have 0 there.
pub(crate) fn check(ino: u64, field: u64, target: &[u8], at: u64) -> Result<()> {
    let computed = sealed(ino, target);
    if field == 0 || field == computed {
        return Ok(());
    }
    let damage = Damage::Checksum { stored: field as u32, computed: computed as u32 };
    Err(Error::Damaged { structure: "the target of a symbolic link", at, damage })
}
