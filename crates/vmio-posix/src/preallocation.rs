//! `--preallocate`: a mapping for stores gets space on the disk first, so that a full disk is an error of mmap and not a SIGBUS.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{FallocateFlags, fallocate, fstat, fstatvfs};
use rustix::io::retry_on_intr;
use vmio::SignalsBlocked;

use crate::errno::Errno;
use crate::settings::Settings;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Allocates the holes in a part of an open file, up to its length, with `--preallocate`.
pub(crate) fn allocate(fd: BorrowedFd<'_>, bytes: &Range<u64>) -> Result<(), Errno> {
    if !Settings::of_this_process().is_some_and(|settings| settings.preallocates) {
        return Ok(());
    }
    let stat = fstat(fd)?;
    let end = bytes.end.min(stat.st_size as u64);
    if end <= bytes.start {
        return Ok(());
    }
    // Not begun if there is too little space anyway: some file systems keep their allocations before they fail.
    let (found, has) = (fstatvfs(fd)?, stat.st_blocks as u64 * BLOCK_BYTES);
    if (end - bytes.start).saturating_sub(has) > found.f_bfree.saturating_mul(found.f_frsize) {
        return Err(Errno::NOSPC);
    }
    // Some file systems start over after each signal.
    let _no_handlers = SignalsBlocked::new();
    retry_on_intr(|| fallocate(fd, FallocateFlags::KEEP_SIZE, bytes.start, end - bytes.start))
}
