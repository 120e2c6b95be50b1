//! A backing in memory, for tests and for measurements without a device.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backing::{Access, Backing};
use crate::sys::PAGE_BYTES;
use crate::sys::sparse_array::SparseArray;

/// The greatest length of a memory backing, in bytes.
const MAX_LEN: u64 = 1 << 40;

/// A backing in memory, zeros until written. Nothing is durable.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use vmio::backing::{Backing, MemoryBacking};
///
/// let bytes = MemoryBacking::new(8192)?;
/// bytes.write_at(4096, &[7; 4096])?;
/// let mut page = [0; 4096];
/// assert_eq!((bytes.read_at(4096, &mut page)?, page[0]), (4096, 7));
/// # Ok(())
/// # }
/// ```
pub struct MemoryBacking {
    words: SparseArray<AtomicU64>,
    len: AtomicU64,
}

impl MemoryBacking {
    /// Makes a backing of `len` zeros, at most 1 TiB. It takes memory only for written bytes.
    ///
    /// # Errors
    ///
    /// [`crate::Error::BadOption`] for more than 1 TiB; [`crate::Error::System`] if the address space cannot be reserved.
    pub fn new(len: u64) -> crate::Result<Self> {
        if len > MAX_LEN {
            return Err(crate::Error::BadOption { option: "len", value: len.to_string(), expected: "at most 1 TiB" });
        }
        let words = SparseArray::new((MAX_LEN / 8) as usize)
            .map_err(crate::Error::system("reserving address space for a memory backing"))?;
        Ok(MemoryBacking { words, len: AtomicU64::new(len) })
    }

    fn word(&self, byte: u64) -> &AtomicU64 {
        self.words.get((byte / 8) as usize)
    }

    /// The words of some bytes that fill them.
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let first = (offset / 8) as usize;
        self.words.slice(first..first + count)
    }

    /// How many of some bytes come before the first that begins a word.
    fn bytes_before_words(offset: u64, len: usize) -> usize {
        ((offset.next_multiple_of(8) - offset) as usize).min(len)
    }

    /// Reads bytes that share words with others.
    fn read_bytes(&self, offset: u64, buffer: &mut [u8]) {
        for (at, byte) in (offset..).zip(buffer) {
            *byte = self.word(at).load(Ordering::Relaxed).to_le_bytes()[(at % 8) as usize];
        }
    }

    /// Writes bytes that share words with others.
    fn write_bytes(&self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            let word = self.word(at);
            let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
            bytes[(at % 8) as usize] = *byte;
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }
}

impl Backing for MemoryBacking {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.len().saturating_sub(offset).min(buffer.len() as u64);
        if bytes == 0 {
            return Ok(0);
        }
        let (before, rest) = buffer[..bytes as usize].split_at_mut(Self::bytes_before_words(offset, bytes as usize));
        let (whole, after) = rest.as_chunks_mut::<8>();
        let first = offset + before.len() as u64;
        self.read_bytes(offset, before);
        let words = self.words(first, whole.len());
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        self.read_bytes(first + 8 * whole.len() as u64, after);
        Ok(bytes as usize)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset + data.len() as u64 > self.len().next_multiple_of(PAGE_BYTES as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (before, data) = data.split_at(Self::bytes_before_words(offset, data.len()));
        let (whole, after) = data.as_chunks::<8>();
        let first = offset + before.len() as u64;
        self.write_bytes(offset, before);
        for (chunk, word) in whole.iter().zip(self.words(first, whole.len())) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        self.write_bytes(first + 8 * whole.len() as u64, after);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > MAX_LEN {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Bytes that are cut off must read as zeros if the length grows again.
        let old = self.len.swap(len, Ordering::AcqRel);
        if len < old && !len.is_multiple_of(8) {
            self.word(len).fetch_and((1 << (8 * (len % 8))) - 1, Ordering::Relaxed);
        }
        for byte in (len.next_multiple_of(8)..old).step_by(8) {
            // An unwritten word takes no memory.
            if self.word(byte).load(Ordering::Relaxed) != 0 {
                self.word(byte).store(0, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("memory backing of {} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_written_and_forgets_what_is_cut_off() {
        let backing = MemoryBacking::new(5000).unwrap();
        backing.write_at(4096, &[7; 904]).unwrap();
        backing.set_len(4100).unwrap();
        backing.set_len(5000).unwrap();
        let mut page = [1; 4096];
        assert_eq!(backing.read_at(4096, &mut page).unwrap(), 904);
        assert_eq!(page[..4], [7; 4]);
        assert!(page[4..904].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn bytes_may_begin_anywhere() {
        let backing = MemoryBacking::new(4096).unwrap();
        for offset in [0_u64, 3, 8, 13, 4080] {
            for len in [1_usize, 5, 8, 13] {
                backing.write_at(0, &[0; 4096]).unwrap();
                let data: Vec<u8> = (1..=len as u8).collect();
                backing.write_at(offset, &data).unwrap();
                let mut all = vec![9; 4096];
                backing.read_at(0, &mut all).unwrap();
                let mut expected = vec![0; 4096];
                expected[offset as usize..offset as usize + len].copy_from_slice(&data);
                assert_eq!(all, expected, "{len} bytes at {offset}");
                let mut read = vec![9; len];
                assert_eq!((backing.read_at(offset, &mut read).unwrap(), read), (len, data));
            }
        }
        assert_eq!(backing.read_at(u64::MAX, &mut [0]).unwrap(), 0);
    }
}
