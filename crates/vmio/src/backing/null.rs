//! A backing without a device: the papers' null_blk.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backing::{Access, Backing};

/// A backing that discards writes. The 8-byte word at offset `o` reads as `o`, little-endian.
///
/// # Examples
///
/// ```
/// use vmio::backing::{Backing, NullBacking};
///
/// let mut page = [0; 4096];
/// NullBacking::new(1 << 40).read_at(1 << 30, &mut page)?;
/// assert_eq!(page[..8], (1_u64 << 30).to_le_bytes());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct NullBacking {
    len: AtomicU64,
}

impl NullBacking {
    /// Makes a backing that pretends to hold `len` bytes.
    pub fn new(len: u64) -> Self {
        NullBacking { len: AtomicU64::new(len) }
    }
}

impl Backing for NullBacking {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.len().saturating_sub(offset).min(buffer.len() as u64) as usize;
        for (at, chunk) in (offset..).step_by(8).zip(buffer[..bytes].chunks_mut(8)) {
            chunk.copy_from_slice(&at.to_le_bytes()[..chunk.len()]);
        }
        Ok(bytes)
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("null backing of {} bytes", self.len())
    }
}
