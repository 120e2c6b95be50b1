//! An arena: allocations lie one behind the other, and are freed all at once.

use std::alloc::{Layout, handle_alloc_error};

use memmap2::{Advice, MmapMut};

/// How much is mapped at a time. The system gives memory only for pages that are written to.
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Addresses count words.
const WORD_BYTES: usize = 8;
const CHUNK_WORDS: u32 = (CHUNK_BYTES / WORD_BYTES) as u32;

/// The most bytes that addresses reach.
pub(crate) const ARENA_BYTES_MAX: u64 = (u32::MAX as u64 - CHUNK_WORDS as u64) * WORD_BYTES as u64;

/// Mapped memory, which goes back to the system at once when the arena is dropped, unlike memory of `malloc`.
#[derive(Default)]
pub(super) struct Arena {
    chunks: Vec<MmapMut>,
    /// Bytes of the last chunk that are taken.
    taken: usize,
}

impl Arena {
    /// How many bytes are taken.
    pub(super) fn bytes(&self) -> u64 {
        let before = self.chunks.len().saturating_sub(1) * CHUNK_BYTES;
        (before + self.taken) as u64
    }

    /// Takes zeroed bytes at a multiple of eight. Returns their address.
    pub(super) fn take(&mut self, bytes: usize) -> u32 {
        assert!(bytes <= CHUNK_BYTES, "{bytes} bytes at once");
        if self.chunks.is_empty() || self.taken + bytes > CHUNK_BYTES {
            assert!(self.bytes() <= ARENA_BYTES_MAX, "a memtable has no more addresses");
            self.chunks.push(chunk());
            self.taken = 0;
        }
        let address = (self.chunks.len() - 1) as u32 * CHUNK_WORDS + (self.taken / WORD_BYTES) as u32;
        self.taken += bytes.next_multiple_of(WORD_BYTES);
        address
    }

    /// The bytes from an address on.
    pub(super) fn at(&self, address: u32) -> &[u8] {
        &self.chunks[(address / CHUNK_WORDS) as usize][(address % CHUNK_WORDS) as usize * WORD_BYTES..]
    }

    /// The bytes from an address on, to be changed.
    pub(super) fn at_mut(&mut self, address: u32) -> &mut [u8] {
        &mut self.chunks[(address / CHUNK_WORDS) as usize][(address % CHUNK_WORDS) as usize * WORD_BYTES..]
    }
}

fn chunk() -> MmapMut {
    let Ok(chunk) = MmapMut::map_anon(CHUNK_BYTES) else {
        // As any other failed allocation does.
        handle_alloc_error(Layout::new::<[u8; CHUNK_BYTES]>())
    };
    // A huge page would take more memory than the written bytes. It is advice: a kernel without huge pages refuses it.
    let _ = chunk.advise(Advice::NoHugePage);
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_keep_their_bytes() {
        let mut arena = Arena::default();
        assert_eq!(arena.bytes(), 0);
        let places: Vec<u32> = (0..100_000_u64)
            .map(|number| {
                let address = arena.take(17);
                arena.at_mut(address)[..8].copy_from_slice(&number.to_le_bytes());
                address
            })
            .collect();
        for (number, address) in places.into_iter().enumerate() {
            assert_eq!(arena.at(address)[..8], (number as u64).to_le_bytes());
        }
        assert!((2_400_000..2_401_000).contains(&arena.bytes()), "{}", arena.bytes());
        let whole = arena.take(CHUNK_BYTES);
        arena.at_mut(whole)[CHUNK_BYTES - 1] = 1;
    }
}
