//! A medium in a mapped file or device: persistent memory (stores past the caches are durable at a fence), huge pages, or an ordinary file.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use super::Medium;
use super::dax_device::DaxDevice;
use crate::error::{Error, Result};
use crate::format::geometry::BLOCK_BYTES;

/// Whether a medium is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody writes it meanwhile. Others may read it at the same time.
    Read,
    /// Nobody else uses it meanwhile.
    Write,
}

/// A file or device, mapped as a whole. A lock (flock) on it keeps other users of this crate away.
///
/// Behind a mapping of ordinary files, or of a file system without DAX, stores survive the end of the process at once, and a power cut only
/// after [`Medium::sync`]. A device in mode devdax is memory itself: a fence makes stores as durable as they ever become, and it has nothing to flush.
pub struct MappedFile {
    _file: File,
    base: NonNull<u8>,
    bytes: usize,
    access: Access,
    /// Whether a fence makes stores durable: the kernel has granted MAP_SYNC, and the processor is an x86-64 one.
    synchronous: bool,
    /// The unit in which parts of it can be mapped.
    alignment: u64,
}

// SAFETY: the mapping is memory that every thread may use; users of `Medium` lock what they read and write.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

fn failed(action: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Io { action, source: errno.into() }
}

impl MappedFile {
    /// Opens and maps a file or device.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`], [`Error::NoMedium`], for writing [`Error::StillMapped`], and those of the system calls.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<MappedFile> {
        let io = |action| move |source| Error::Io { action, source };
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(io("opening the file"))?;
        let kind = metadata.file_type();
        // Opening others may change them, or wait.
        if !kind.is_file() && !kind.is_block_device() && DaxDevice::of(&metadata)?.is_none() {
            return Err(Error::NoMedium);
        }
        // The kernel refuses a block device that is mounted.
        let flags = if kind.is_block_device() && access == Access::Write { libc::O_EXCL } else { 0 };
        let open = OpenOptions::new().read(true).write(access == Access::Write).custom_flags(flags).open(path);
        let file = open.map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => Error::InUse,
            _ => Error::Io { action: "opening the file", source },
        })?;
        MappedFile::new(file, access)
    }

    /// Maps an open file.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn new(file: File, access: Access) -> Result<MappedFile> {
        let lock = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Write => FlockOperation::NonBlockingLockExclusive,
        };
        flock(&file, lock).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => Error::InUse,
            other => failed("locking the file")(other),
        })?;
        if access == Access::Write {
            expect_no_holders(&file)?;
        }
        let metadata = file.metadata().map_err(|source| Error::Io { action: "asking for the length", source })?;
        let device = DaxDevice::of(&metadata)?;
        let bytes = device.map_or_else(|| length(&file), |device| Ok(device.bytes))?;
        if bytes == 0 {
            return Err(Error::TooSmall { bytes: 0, least: 1 });
        }
        let bytes = usize::try_from(bytes).map_err(|_| Error::TooLarge { bytes, most: usize::MAX as u64 })?;
        let rights = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let map = |flags| {
            // SAFETY: a new mapping at an address that the kernel chooses hits no memory in use.
            unsafe { mmap(std::ptr::null_mut(), bytes, rights, flags, file.as_fd(), 0) }
        };
        // Elsewhere stores stay in the caches at a fence, and only a flush by the kernel makes them durable.
        let is_past_caches = cfg!(target_arch = "x86_64");
        if device.is_some() && !is_past_caches {
            let source = std::io::Error::new(std::io::ErrorKind::Unsupported, "it cannot be flushed on this processor");
            return Err(Error::Io { action: "mapping a device in mode devdax", source });
        }
        let synchronous =
            is_past_caches.then(|| map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC)).and_then(|map| map.ok());
        let is_synchronous = synchronous.is_some();
        let base = synchronous.map_or_else(|| map(MapFlags::SHARED), Ok).map_err(failed("mapping the file"))?;
        let base = NonNull::new(base.cast()).ok_or(Error::InUse)?;
        let alignment = device.map_or(BLOCK_BYTES, |device| device.alignment);
        Ok(MappedFile { _file: file, base, bytes, access, synchronous: is_synchronous, alignment })
    }

    /// The unit in which parts of it can be mapped: [`BLOCK_BYTES`], but for devices in mode devdax.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Whether a fence makes stores durable. Else only [`Medium::sync`] does.
    pub fn is_synchronous(&self) -> bool {
        self.synchronous
    }

    fn place(&self, at: u64, len: usize) -> *mut u8 {
        assert!(at + len as u64 <= self.bytes as u64, "{len} bytes at {at} of a medium of {}", self.bytes);
        self.base.as_ptr().wrapping_add(at as usize)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "a word at {at}");
        // SAFETY: `place` has checked the range, which stays mapped as long as this value lives, and the word is aligned. Other processes change it by
        // whole words alone.
        unsafe { AtomicU64::from_ptr(self.place(at, 8).cast()) }
    }
}

/// Refuses a medium of which processes may have extents mapped. Each has a shared lock of a byte of it.
fn expect_no_holders(file: &File) -> Result<()> {
    let unlocked = fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
        .and_then(|()| fcntl_lock(file, FlockOperation::NonBlockingUnlock));
    unlocked.map_err(|errno| match errno {
        rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::ACCESS => Error::StillMapped,
        other => failed("asking for locks")(other),
    })
}

/// The length of a file, or of a device by its end.
fn length(mut file: &File) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::End(0)).map_err(|source| Error::Io { action: "asking for the length", source })
}

impl Medium for MappedFile {
    fn len(&self) -> u64 {
        self.bytes as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let from = self.place(at, into.len());
        // SAFETY: `place` has checked the range, which stays mapped as long as this value lives; users of `Medium` lock.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.access == Access::Write, "a write to a medium that is open for reading");
        let to = self.place(at, bytes.len());
        let head = ((8 - at % 8) % 8).min(bytes.len() as u64) as usize;
        let words = (bytes.len() - head) / 8 * 8;
        // SAFETY: `place` has checked the range, whose parts follow each other; it is mapped for writing; users of `Medium` lock.
        unsafe {
            store_part(to, &bytes[..head]);
            store_words(to.add(head), &bytes[head..head + words]);
            store_part(to.add(head + words), &bytes[head + words..]);
        }
    }

    fn load_word(&self, at: u64) -> u64 {
        u64::from_le(self.word(at).load(Ordering::Acquire))
    }

    fn set_bits(&self, at: u64, bits: u64) {
        assert!(self.access == Access::Write, "a write to a medium that is open for reading");
        self.word(at).fetch_or(bits.to_le(), Ordering::AcqRel);
    }

    fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence has no other effect.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn sync(&self) -> Result<()> {
        if self.synchronous || self.access == Access::Read {
            return Ok(());
        }
        // SAFETY: the range is this value's mapping.
        unsafe { msync(self.base.as_ptr().cast(), self.bytes, MsyncFlags::SYNC) }.map_err(failed("flushing the file"))
    }
}

/// Stores less than a word and writes its line back.
///
/// # Safety
/// The range is mapped for writing.
unsafe fn store_part(to: *mut u8, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    // SAFETY: the caller vouches for the range.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the line is of mapped memory; every x86-64 processor has the instruction.
    unsafe {
        std::arch::x86_64::_mm_clflush(to);
    }
}

/// Stores whole words past the caches: two at a time where both are in one aligned 16 bytes, since a block of zeros is stored at each allocation.
///
/// # Safety
/// The range is mapped for writing and begins at a multiple of 8.
unsafe fn store_words(to: *mut u8, bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si64, _mm_stream_si128};

        let first = if to.addr().is_multiple_of(16) { 0 } else { 8.min(bytes.len()) };
        let pairs = first..first + (bytes.len() - first) / 16 * 16;
        let store_word = |at: usize, word: [u8; 8]| {
            // SAFETY: the caller vouches for the range and its alignment.
            unsafe { _mm_stream_si64(to.add(at).cast(), i64::from_ne_bytes(word)) };
        };
        bytes[..first].as_chunks::<8>().0.iter().for_each(|word| store_word(0, *word));
        for (index, pair) in bytes[pairs.clone()].as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: the caller vouches for the range, whose bytes from `first` on lie at a multiple of 16.
            unsafe {
                _mm_stream_si128(to.add(first + 16 * index).cast::<__m128i>(), _mm_loadu_si128(pair.as_ptr().cast()))
            };
        }
        bytes[pairs.end..].as_chunks::<8>().0.iter().for_each(|word| store_word(pairs.end, *word));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller vouches for the range.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len())
    };
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nobody else points into it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "cannot unmap a medium");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_wherever_they_start_and_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let medium = MappedFile::new(file, Access::Write).unwrap();
        for start in [0, 1, 7, 8, 9, 16, 24, 4090] {
            for len in [0, 1, 7, 8, 9, 15, 16, 24, 31, 32, 40, 100] {
                medium.write(0, &[0xEE; 8192]);
                let bytes: Vec<u8> = (0..len as u8).collect();
                medium.write(start, &bytes);
                medium.fence();
                let mut all = [0; 8192];
                medium.read(0, &mut all);
                let end = start as usize + len;
                assert_eq!(all[start as usize..end], bytes, "{start} {len}");
                assert!(all[..start as usize].iter().chain(&all[end..]).all(|byte| *byte == 0xEE), "{start} {len}");
            }
        }
        medium.write(8, &7_u64.to_le_bytes());
        medium.set_bits(8, 1 << 63);
        assert_eq!(medium.load_word(8), 7 | 1 << 63);
        medium.sync().unwrap();
    }

    #[test]
    fn a_medium_has_one_writer() {
        let path = tempfile::NamedTempFile::new().unwrap();
        path.as_file().set_len(4096).unwrap();
        let readers = [(); 2].map(|()| MappedFile::open(path.path(), Access::Read).unwrap());
        assert!(matches!(MappedFile::open(path.path(), Access::Write), Err(Error::InUse)));
        drop(readers);
        let _writer = MappedFile::open(path.path(), Access::Write).unwrap();
        assert!(matches!(MappedFile::open(path.path(), Access::Read), Err(Error::InUse)));
    }
}
