//! Memory that a file system lies on: bytes that are loaded and stored one by one, and fences that make stores durable.

mod dax_device;
pub(crate) mod mapped;
pub(crate) mod overlay;
pub(crate) mod simulated;

use crate::error::Result;

/// Memory that a file system lies on.
///
/// Its users lock: nobody reads bytes that another thread writes. Offsets beyond the end are a mistake of the caller.
pub trait Medium: Send + Sync {
    /// How many bytes it has.
    fn len(&self) -> u64;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    fn read(&self, at: u64, into: &mut [u8]);

    /// Copies bytes in, past the caches. After a crash any of the aligned words of 8 bytes may have them or not, until a fence.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Loads an aligned word, which another process may change meanwhile.
    fn load_word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    /// Sets bits of an aligned word, which another process may change meanwhile.
    fn set_bits(&self, at: u64, bits: u64) {
        self.write(at, &(self.load_word(at) | bits).to_le_bytes());
    }

    /// Waits until what this thread has written is durable.
    fn fence(&self);

    /// Makes everything durable where fences alone do not: in an ordinary file.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
