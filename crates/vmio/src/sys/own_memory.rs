//! Copies from and to mapped memory that the kernel makes (process_vm_readv): a page that cannot be had is an error, not a
//! signal, and what other threads do with the bytes meanwhile is no concern of the language's.

use std::io;

/// A copy that came to an end before it was complete.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// After so many bytes.
    pub(crate) done: usize,
    /// Why; EFAULT for a page that cannot be had.
    pub(crate) why: io::Error,
}

/// Copies bytes of this process out.
pub(crate) fn load(address: usize, buffer: &mut [u8]) -> Result<(), Stopped> {
    let len = buffer.len();
    let start = buffer.as_mut_ptr();
    copy(len, |done| {
        // SAFETY: the rest of the buffer, which is borrowed.
        let local = libc::iovec { iov_base: unsafe { start.add(done) }.cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: (address + done) as *mut _, iov_len: len - done };
        // SAFETY: it writes to the buffer alone; memory of the process's that is not there is an error.
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Copies bytes in.
///
/// # Safety
/// The bytes that are written to lie in memory that may be stored to like that of another process: nothing refers to it.
pub(crate) unsafe fn store(address: usize, data: &[u8]) -> Result<(), Stopped> {
    copy(data.len(), |done| {
        let rest = &data[done..];
        let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let remote = libc::iovec { iov_base: (address + done) as *mut _, iov_len: rest.len() };
        // SAFETY: it reads the data; the caller vouches for what it writes to.
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) }
    })
}

/// Calls until all bytes are copied: a call that comes to a page which it cannot have says how far it came.
fn copy(len: usize, mut call: impl FnMut(usize) -> isize) -> Result<(), Stopped> {
    let mut done = 0;
    while done < len {
        match call(done) {
            0 => return Err(Stopped { done, why: io::Error::from_raw_os_error(libc::EFAULT) }),
            copied if copied > 0 => done += copied as usize,
            _ => return Err(Stopped { done, why: io::Error::last_os_error() }),
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::PAGE_BYTES;
    use crate::sys::file_map::FileMap;
    use std::os::fd::AsFd;

    /// Up to the page that cannot be had, everything is copied.
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
        // SAFETY: as above.
        let stopped = unsafe { store(base + PAGE_BYTES, &read[..PAGE_BYTES + 1]) }.unwrap_err();
        assert_eq!((stopped.done, stopped.why.raw_os_error()), (PAGE_BYTES, Some(libc::EFAULT)));
    }
}
