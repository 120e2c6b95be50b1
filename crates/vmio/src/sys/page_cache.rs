//! The kernel's page cache of a file, controlled from outside. Ranges are in bytes and consist of whole pages.

use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::general::{__NR_cachestat, cachestat, cachestat_range};

/// The pages of a range that the page cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cached {
    /// All of them.
    pub(crate) pages: u64,
    /// Pages that are newer than the device and not on the way to it.
    pub(crate) dirty: u64,
    /// Pages on the way to the device.
    pub(crate) in_write: u64,
}

/// Starts to write the dirty pages; does not wait for them.
pub(crate) fn start_write(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    sync_file_range(file, range, libc::SYNC_FILE_RANGE_WRITE)
}

/// Waits for the writes under way.
pub(crate) fn await_write(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    sync_file_range(file, range, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
}

/// Writes the dirty pages and waits for the writes. That alone makes nothing durable.
pub(crate) fn finish_write(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(file, range, wait | libc::SYNC_FILE_RANGE_WRITE)
}

fn sync_file_range(file: BorrowedFd<'_>, range: &Range<u64>, flags: libc::c_uint) -> io::Result<()> {
    let len = range.end - range.start;
    if len == 0 {
        return Ok(()); // To the kernel, a length of 0 is the whole file.
    }
    // SAFETY: the descriptor is open; the call reads and writes no memory of ours.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), range.start as _, len as _, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Drops the clean pages that no process has mapped.
pub(crate) fn drop_clean(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let Some(len) = NonZeroU64::new(range.end - range.start) else { return Ok(()) };
    Ok(rustix::fs::fadvise(file, range.start, Some(len), rustix::fs::Advice::DontNeed)?)
}

/// Begins to read the missing pages, many at a time; does not wait for them.
pub(crate) fn read_ahead(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    let Some(len) = NonZeroU64::new(range.end - range.start) else { return Ok(()) };
    Ok(rustix::fs::fadvise(file, range.start, Some(len), rustix::fs::Advice::WillNeed)?)
}

/// The size of the kernel's read-ahead window for a file, in bytes, where the kernel tells.
pub(crate) fn read_ahead_window(file: BorrowedFd<'_>) -> Option<u64> {
    let status = rustix::fs::fstat(file).ok()?;
    let is_device = rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::BlockDevice;
    let device = if is_device { status.st_rdev } else { status.st_dev };
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has the window of its disk.
    let places = [
        format!("/sys/class/bdi/{name}/read_ahead_kb"),
        format!("/sys/dev/block/{name}/queue/read_ahead_kb"),
        format!("/sys/dev/block/{name}/../queue/read_ahead_kb"),
    ];
    let read = |place: &String| std::fs::read_to_string(place).ok()?.trim().parse::<u64>().ok();
    places.iter().find_map(read).map(|kib| kib << 10)
}

/// Looks at the page cache; `None` if the kernel cannot tell (before Linux 6.5) or refuses to, and of a file with DAX, which has none.
pub(crate) fn look(file: BorrowedFd<'_>, range: &Range<u64>) -> Option<Cached> {
    // The kernel takes such a file's entries for those of evicted pages, and dies of them (seen with Linux 6.12).
    if has_dax(file) {
        return None;
    }
    let range = cachestat_range { off: range.start, len: range.end - range.start };
    // SAFETY: all integers, for which zeros are valid.
    let mut found: cachestat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads the one structure and writes the other; both are ours.
    let done =
        unsafe { libc::syscall(__NR_cachestat.into(), file.as_raw_fd(), &raw const range, &raw mut found, 0_u32) };
    (done == 0).then_some(Cached { pages: found.nr_cache, dirty: found.nr_dirty, in_write: found.nr_writeback })
}

/// Whether loads and stores reach the device itself. Known since Linux 5.8, which is before cachestat(2).
fn has_dax(file: BorrowedFd<'_>) -> bool {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
    let status = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    status.is_ok_and(|status| status.stx_attributes.contains(StatxAttributes::DAX))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_written_can_be_dropped() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 3 * 4096], 0).unwrap();
        let all = 0..3 * 4096;
        if let Some(cached) = look(file.as_fd(), &all) {
            assert_eq!(cached.pages, 3);
        }
        finish_write(file.as_fd(), &all).unwrap();
        drop_clean(file.as_fd(), &(0..0)).unwrap();
        drop_clean(file.as_fd(), &all).unwrap();
        let mut bytes = [0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 8192).unwrap();
        assert_eq!(bytes, [1; 4096]);
    }
}
