//! Copies from and to mapped memory through the kernel (process_vm_readv). A page that is not available is an error,
//! not a signal. Races with stores of other threads are outside the language's memory model.

use std::io;
use std::ptr;

use crate::sys::PAGE_BYTES;

/// A copy that ended before it was complete.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// The bytes copied until then.
    pub(crate) done: usize,
    /// The reason; EFAULT for a page that is not available.
    pub(crate) why: io::Error,
}

/// The most pages of one call.
const PAGES_MAX: usize = 32;

/// Copies bytes of this process's memory out.
pub(crate) fn load(address: usize, buffer: &mut [u8]) -> Result<(), Stopped> {
    let len = buffer.len();
    let start = buffer.as_mut_ptr();
    copy(address, len, |done, remote| {
        // SAFETY: the result is within the buffer, which is borrowed.
        let local = libc::iovec { iov_base: unsafe { start.add(done) }.cast(), iov_len: len - done };
        let (pages, count) = (remote.as_ptr(), remote.len() as libc::c_ulong);
        // SAFETY: the call writes to the buffer alone. Memory that the process does not have is an error.
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, pages, count, 0) }
    })
}

/// Copies bytes into this process's memory.
///
/// # Safety
/// The target is memory to which the kernel may store as to that of another process: no reference points into it.
pub(crate) unsafe fn store(address: usize, data: &[u8]) -> Result<(), Stopped> {
    copy(address, data.len(), |done, remote| {
        let rest = &data[done..];
        let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let (pages, count) = (remote.as_ptr(), remote.len() as libc::c_ulong);
        // SAFETY: the call reads the data; the caller vouches for the target.
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, pages, count, 0) }
    })
}

/// Calls `call` until all bytes are copied. At a page that is not available, a call returns how far it came.
///
/// The kernel holds all pages of a range at once, up to 1024, while it copies. With a cache not much larger than that,
/// it would wait for a page that it holds itself. So each range lies within a page.
fn copy(address: usize, len: usize, mut call: impl FnMut(usize, &[libc::iovec]) -> isize) -> Result<(), Stopped> {
    let mut done = 0;
    while done < len {
        let mut pages = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PAGES_MAX];
        let mut count = 0;
        let mut at = done;
        while at < len && count < PAGES_MAX {
            let start = address + at;
            let bytes = (len - at).min(PAGE_BYTES - start % PAGE_BYTES);
            pages[count] = libc::iovec { iov_base: start as *mut _, iov_len: bytes };
            count += 1;
            at += bytes;
        }
        match call(done, &pages[..count]) {
            0 => return Err(Stopped { done, why: io::Error::from_raw_os_error(libc::EFAULT) }),
            copied if copied > 0 => done += copied as usize,
            _ => return Err(Stopped { done, why: io::Error::last_os_error() }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file_map::FileMap;
    use std::os::fd::AsFd;

    /// All bytes before the page that is not available are copied.
    #[test]
    fn a_missing_page_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * PAGE_BYTES as u64).unwrap();
        let map = FileMap::new(file.as_fd(), 3 * PAGE_BYTES, true).unwrap();
        let base = map.base() as usize;
        let written: Vec<u8> = (0..2 * PAGE_BYTES).map(|at| at as u8).collect();
        // SAFETY: nobody refers to the map.
        unsafe { store(base, &written).unwrap() };
        let mut read = vec![0; 3 * PAGE_BYTES];
        load(base, &mut read[..2 * PAGE_BYTES]).unwrap();
        assert_eq!(&read[..2 * PAGE_BYTES], written);
        let stopped = load(base + 10, &mut read).unwrap_err();
        assert_eq!((stopped.done, stopped.why.raw_os_error()), (2 * PAGE_BYTES - 10, Some(libc::EFAULT)));
        assert_eq!(read[..stopped.done], written[10..]);
        // SAFETY: nobody refers to the map.
        let stopped = unsafe { store(base + PAGE_BYTES, &read[..PAGE_BYTES + 1]) }.unwrap_err();
        assert_eq!((stopped.done, stopped.why.raw_os_error()), (PAGE_BYTES, Some(libc::EFAULT)));
    }
    /// Calls of several pages each, from and to the middle of pages. Bytes beside the range stay as they are.
    #[test]
    fn any_range_is_copied() {
        let file = tempfile::tempfile().unwrap();
        let pages = 3 * PAGES_MAX;
        file.set_len((pages * PAGE_BYTES) as u64).unwrap();
        let map = FileMap::new(file.as_fd(), pages * PAGE_BYTES, true).unwrap();
        let base = map.base() as usize;
        let mut expected = vec![0_u8; pages * PAGE_BYTES];
        for (round, range) in
            [0..pages * PAGE_BYTES, 1..5, 4095..4097, 4000..pages * PAGE_BYTES - 1, 7..7].iter().enumerate()
        {
            let data: Vec<u8> = range.clone().map(|at| (at * 31 + round) as u8).collect();
            expected[range.clone()].copy_from_slice(&data);
            // SAFETY: nobody refers to the map.
            unsafe { store(base + range.start, &data).unwrap() };
            let mut read = vec![0; range.len()];
            load(base + range.start, &mut read).unwrap();
            assert!(read == data, "{range:?}");
            let mut all = vec![0; expected.len()];
            load(base, &mut all).unwrap();
            assert!(all == expected, "{range:?}");
        }
    }

    /// For a copy of any length, no range passed to the kernel reaches beyond a page.
    #[test]
    fn one_page_is_held_at_a_time() {
        let (start, len) = (5 * PAGE_BYTES + 100, 100 * PAGE_BYTES);
        let mut next = start;
        copy(start, len, |done, ranges| {
            assert_eq!(next, start + done);
            for range in ranges {
                let first = range.iov_base as usize;
                assert!(
                    first == next
                        && range.iov_len > 0
                        && first / PAGE_BYTES == (first + range.iov_len - 1) / PAGE_BYTES
                );
                next += range.iov_len;
            }
            (next - start - done) as isize
        })
        .unwrap();
        assert_eq!(next, start + len);
    }
}
