//! `--preallocate`: what is mapped to be stored to gets room on the disk first. So a full disk is an error of mmap's, and no SIGBUS.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{FallocateFlags, fallocate, fstat, fstatvfs};
use rustix::io::retry_on_intr;
use vmio::SignalsBlocked;

use crate::errno::Errno;
use crate::settings::Settings;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Gives room to the holes in a part of an open file, as far as the file goes, if the user has asked for that. The length stays as it is.
pub(crate) fn give_room(fd: BorrowedFd<'_>, bytes: &Range<u64>) -> Result<(), Errno> {
    if !Settings::of_this_process().is_some_and(|settings| settings.preallocates) {
        return Ok(());
    }
    let stat = fstat(fd)?;
    let end = bytes.end.min(stat.st_size as u64);
    if end <= bytes.start {
        return Ok(());
    }
    // What cannot be had anyway is not begun: some file systems keep what they have found until it was too little.
    let (found, has) = (fstatvfs(fd)?, stat.st_blocks as u64 * BLOCK_BYTES);
    if (end - bytes.start).saturating_sub(has) > found.f_bfree.saturating_mul(found.f_frsize) {
        return Err(Errno::NOSPC);
    }
    // Some file systems begin anew after each signal.
    let _no_handlers = SignalsBlocked::new();
    retry_on_intr(|| fallocate(fd, FallocateFlags::KEEP_SIZE, bytes.start, end - bytes.start))
}
