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

    /// The words that hold some bytes, of which the first begins a word.
    fn words(&self, offset: u64, len: usize) -> &[AtomicU64] {
        debug_assert!(offset.is_multiple_of(8), "bytes from {offset} on begin within a word");
        let first = (offset / 8) as usize;
        self.words.slice(first..first + len.div_ceil(8))
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
        let buffer = &mut buffer[..bytes as usize];
        let words = self.words(offset, buffer.len());
        let (whole, rest) = buffer.as_chunks_mut::<8>();
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if !rest.is_empty() {
            let last = words[words.len() - 1].load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
        Ok(bytes as usize)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset + data.len() as u64 > self.len().next_multiple_of(PAGE_BYTES as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let words = self.words(offset, data.len());
        let (whole, rest) = data.as_chunks::<8>();
        for (chunk, word) in whole.iter().zip(words) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let last = &words[words.len() - 1];
            let mut bytes = last.load(Ordering::Relaxed).to_le_bytes();
            bytes[..rest.len()].copy_from_slice(rest);
            last.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
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
}
