//! What the tests of the reader-thread engine share: caches on it, and system calls that are given mapped pointers.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use vmio::{Cache, Engine, Error, Mapping, MappingOptions};

use super::device::Device;
use super::{PAGE, cache_of};

/// A cache of that many pages on the reader-thread engine.
pub fn cache(pages: u64) -> Cache {
    cache_of(pages).engine(Engine::ReaderThread).build().unwrap()
}

/// Whether this user may have the engine on this kernel; prints why a test is skipped if not.
pub fn available() -> bool {
    match cache_of(256).engine(Engine::ReaderThread).build() {
        Err(error @ (Error::KernelFaultsDenied { .. } | Error::NoUserfaultfd { .. })) => {
            test_depth::skipped(error);
            false
        }
        built => built.is_ok() || panic!("{built:?}"),
    }
}

/// Maps a device.
pub fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new()).unwrap()
}

/// A device whose every word tells where it stands.
pub fn numbered(pages: u64) -> Arc<Device> {
    let device = Device::of_pages(pages);
    (0..pages * PAGE / 8).for_each(|word| device.set_word(8 * word, word ^ 0x5EED));
    device
}

/// read(2) from a file into a range of the mapping; the number of bytes, or the error.
pub fn read_into(map: &Mapping, offset: u64, len: u64, file: &impl AsRawFd) -> std::io::Result<u64> {
    assert!(offset + len <= map.len());
    // SAFETY: the range lies in the mapping, and the test does not access it meanwhile.
    let got = unsafe { libc::read(file.as_raw_fd(), map.as_mut_ptr().add(offset as usize).cast(), len as usize) };
    if got < 0 { Err(std::io::Error::last_os_error()) } else { Ok(got as u64) }
}

/// write(2) to a file from a range that may reach behind the mapping's end.
pub fn write_from(map: &Mapping, offset: u64, len: u64, file: &impl AsRawFd) -> std::io::Result<u64> {
    // SAFETY: the addresses are reserved for the mapping; the kernel checks them itself.
    let got = unsafe { libc::write(file.as_raw_fd(), map.as_ptr().add(offset as usize).cast(), len as usize) };
    if got < 0 { Err(std::io::Error::last_os_error()) } else { Ok(got as u64) }
}

/// The system call failed because of its pointer.
pub fn is_efault(result: std::io::Result<u64>) {
    assert_eq!(result.map_err(|error| error.raw_os_error()), Err(Some(libc::EFAULT)));
}
