//! Memory that other processes may read: a memory file without a name in any folder, found through /proc/PID/fd.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::process::{Resource, getrlimit};

use crate::sys::reservation::Reservation;

/// Makes a memory file of zeros with this name, and returns the descriptor by which other processes find it. The file
/// goes with the process, however that ends. Only this mapping can change it, and forked children do not have the
/// mapping.
///
/// All of its memory is allocated here. So a store to it cannot fail, neither for want of memory nor because the file
/// was cut.
pub(crate) fn publish(name: &str, len: usize) -> io::Result<(OwnedFd, Reservation)> {
    // Exceeding the limit is not an error but a signal that ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len as u64) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag. Later ones may insist on it (vm.memfd_noexec).
    let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd_create(name, flags))?;
    fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
    let mut memory = Reservation::of_file(file.as_fd(), len)?;
    memory.leave_out_on_fork()?;
    memory.small_pages_only()?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok((file, memory))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::sys::PAGE_BYTES;
    use crate::sys::sparse_array::SparseArray;

    #[test]
    fn others_read_what_the_mapping_stores_and_can_change_nothing() -> io::Result<()> {
        let (file, memory) = publish("vmio-test", 2 * PAGE_BYTES)?;
        let words: SparseArray<AtomicU64> = SparseArray::over(memory);
        words.get(513).store(7, Ordering::Relaxed);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut word = [0; 8];
        File::open(&path)?.read_exact_at(&mut word, 513 * 8)?;
        assert_eq!(u64::from_le_bytes(word), 7);
        let writable = OpenOptions::new().write(true).open(&path)?;
        assert!(writable.write_all_at(&[1], 0).is_err());
        assert!(writable.set_len(0).is_err());
        assert!(writable.set_len(1 << 20).is_err());
        Ok(())
    }
}
