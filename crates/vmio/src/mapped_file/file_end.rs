//! The end of a file that other processes may shorten or append to.

use std::io;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::sys::PAGE_BYTES;

/// The file's present length; for a device, its length at the opening.
pub(crate) fn file_len(backing: &dyn Backing) -> io::Result<u64> {
    let Some(file) = backing.file() else { return Ok(backing.len()) };
    let stat = rustix::fs::fstat(file)?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
    Ok(if is_file { stat.st_size as u64 } else { backing.len() })
}

/// Fails if somebody else has made the file shorter than `len`: the bytes behind its end are gone, stored to or not.
pub(crate) fn check_not_shortened(backing: &dyn Backing, len: u64) -> Result<()> {
    let found = file_len(backing).map_err(Error::system("asking for the length of the file"))?;
    if found >= len {
        return Ok(());
    }
    let page = PAGE_BYTES as u64;
    Err(Error::Write {
        backing: backing.describe(),
        offset: found,
        failed_pages: len.div_ceil(page) - found / page,
        source: io::ErrorKind::UnexpectedEof.into(),
    })
}
