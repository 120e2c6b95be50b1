//! The limits of keys and values.

use crate::error::{Error, Result};
use crate::format::extents::LARGE_BYTES_MAX;

/// The longest key: 64 KiB, in bytes.
pub const KEY_BYTES_MAX: usize = crate::format::record::KEY_BYTES_MAX;

/// The longest value: 1 GiB, in bytes.
pub const VALUE_LENGTH_MAX: u64 = LARGE_BYTES_MAX;

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::KeyLength { bytes: key.len(), most: KEY_BYTES_MAX })
}

pub(crate) fn check_value_length(bytes: u64) -> Result<()> {
    if bytes <= VALUE_LENGTH_MAX {
        return Ok(());
    }
    Err(Error::ValueLength { bytes, most: VALUE_LENGTH_MAX })
}
