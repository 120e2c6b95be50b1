//! A chunk of the log that is being filled. Its bytes are read from memory until they are on the device.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::format::block::Block;
use crate::format::chunk::{CHUNK_BYTES, ChunkHeader, RECORDS_AT};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::record::Seed;

/// Memory for a chunk. The next chunk reuses it: new memory costs a page fault for each page.
pub(crate) struct ChunkMemory(Box<[UnsafeCell<Block>]>);

impl ChunkMemory {
    pub(crate) fn new() -> Self {
        ChunkMemory((0..CHUNK_BYTES / BLOCK_BYTES).map(|_| UnsafeCell::new(Block::ZERO)).collect())
    }
}

/// A chunk in memory. The owner of its [`Appender`] appends; any thread may read the appended bytes.
pub(crate) struct TailChunk {
    pub(crate) header: ChunkHeader,
    pub(crate) seed: Seed,
    memory: ChunkMemory,
    filled: AtomicUsize,
}

// SAFETY: bytes below `filled` never change again; those behind it belong to the appender, of which there is one.
unsafe impl Sync for TailChunk {}

/// The right to append to a chunk. There is one for each chunk.
pub(crate) struct Appender(Arc<TailChunk>);

impl TailChunk {
    /// A chunk with its header alone, and its appender.
    pub(crate) fn new(header: ChunkHeader, memory: ChunkMemory) -> (Arc<Self>, Appender) {
        let seed = Seed::new(header.segment, header.generation);
        let chunk = TailChunk { header, seed, memory, filled: AtomicUsize::new(0) };
        let chunk = Arc::new(chunk);
        let mut appender = Appender(Arc::clone(&chunk));
        appender.append(RECORDS_AT, |place| place.copy_from_slice(&header.to_bytes()));
        (chunk, appender)
    }

    /// Its memory, for the next chunk.
    pub(crate) fn into_memory(self) -> ChunkMemory {
        self.memory
    }

    fn start(&self) -> *mut u8 {
        self.memory.0.as_ptr().cast_mut().cast()
    }

    /// How many bytes were appended.
    pub(crate) fn filled(&self) -> usize {
        self.filled.load(Ordering::Acquire)
    }

    /// The appended bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: bytes below `filled` were written before it was raised, and never change again.
        unsafe { std::slice::from_raw_parts(self.start(), self.filled()) }
    }
}

impl Appender {
    /// The chunk.
    pub(crate) fn chunk(&self) -> &TailChunk {
        &self.0
    }

    /// How many more bytes there is space for.
    pub(crate) fn space(&self) -> usize {
        CHUNK_BYTES - self.0.filled()
    }

    /// Appends bytes. Returns where they begin in the chunk.
    pub(crate) fn append(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) -> usize {
        let at = self.0.filled.load(Ordering::Relaxed);
        assert!(bytes <= CHUNK_BYTES - at, "{bytes} bytes for a chunk that holds {at}");
        // SAFETY: the range lies within the chunk and behind what others read, and `self` is the only appender.
        write(unsafe { std::slice::from_raw_parts_mut(self.0.start().add(at), bytes) });
        self.0.filled.store(at + bytes, Ordering::Release);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block::Uuid;

    #[test]
    fn appended_bytes_are_read_while_more_is_appended() {
        let header = ChunkHeader {
            segment: Uuid::from_bytes([1; 16]),
            offset: 0,
            generation: 1,
            first_sequence: 1,
            previous: 0,
            next: 0,
            begins_anew: false,
        };
        let (chunk, mut appender) = TailChunk::new(header, ChunkMemory::new());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..10_000_u64 {
                    appender.append(16, |place| place.copy_from_slice(&[number.to_le_bytes(); 2].concat()));
                }
            });
            let mut seen = 0;
            while seen < 10_000 {
                let (numbers, _) = chunk.bytes()[RECORDS_AT..].as_chunks::<16>();
                for (index, number) in numbers.iter().enumerate().skip(seen) {
                    let expected = (index as u64).to_le_bytes();
                    assert_eq!(*number, *[expected; 2].concat());
                }
                seen = numbers.len();
            }
        });
        assert_eq!(chunk.filled(), RECORDS_AT + 160_000);
    }
}
