//! Reads many places of a backing at once, and bypasses every cache.

use std::io;

use crossbeam_queue::ArrayQueue;

use crate::backing::Backing;
use crate::sys::batch_ring::{BatchRing, BatchedRead};
use crate::sys::cpu;
use crate::sys::fork::OfProcess;

/// Reads that one ring takes at a time: 64 at most.
const READS_MAX: usize = 32;
/// Rings kept for each core: threads that wait for reads leave the core to others. Making and ending a ring costs more than a
/// batch.
const RINGS_PER_CORE: usize = 4;
/// The most rings, for any number of cores.
const RINGS_MAX: usize = 64;

/// Reads many places of a backing at once, into memory of the caller, for bytes that the program needs only once.
///
/// Where the kernel can read the backing's file ([`Backing::direct_reads`]), all reads of a batch are under way together, by
/// io_uring. Else the reads follow one another.
///
/// The reads do not see dirty pages that a mapping of the backing has not written back. Each thread that reads takes a ring of its
/// own.
///
/// # Examples
///
/// ```
/// use vmio::backing::{Access, BatchReader, FileBacking};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// # std::fs::write(&path, vec![7; 1 << 20])?;
/// let backing = FileBacking::open(&path, Access::ReadOnly)?;
/// let reader = BatchReader::new();
/// #[repr(align(4096))]
/// #[derive(Clone)]
/// struct Page([u8; 4096]);
/// let mut pages = vec![Page([0; 4096]); 3];
/// let places = [10, 200, 30].map(|page| page * 4096);
/// let reads = places.into_iter().zip(&mut pages).map(|(place, page)| (place, &mut page.0[..]));
/// let mut failed = 0;
/// reader.read(&backing, reads, |_place, result| failed += usize::from(!matches!(result, Ok(4096))));
/// assert!(failed == 0 && pages.iter().all(|page| page.0[0] == 7));
/// # Ok(())
/// # }
/// ```
pub struct BatchReader {
    /// The rings that no thread uses at the moment; `None` if vmio could not mark the process.
    rings: Option<OfProcess<ArrayQueue<Box<BatchRing>>>>,
}

impl BatchReader {
    /// Makes a reader. It has no ring yet.
    pub fn new() -> Self {
        let rings = ArrayQueue::new((RINGS_PER_CORE * cpu::count()).min(RINGS_MAX));
        BatchReader { rings: OfProcess::new(rings).ok() }
    }

    /// Fills each buffer from its offset, and returns when all reads have ended.
    ///
    /// It calls `ended` for each read with its index and the number of bytes, which is less than the buffer's length only at the
    /// end of the backing. Offsets, buffer addresses and buffer lengths are multiples of the page size, as for
    /// [`Backing::read_at`].
    pub fn read<'buffer>(
        &self,
        backing: &dyn Backing,
        reads: impl IntoIterator<Item = (u64, &'buffer mut [u8])>,
        mut ended: impl FnMut(usize, io::Result<usize>),
    ) {
        let mut reads = reads.into_iter().enumerate();
        let mut batch = Vec::with_capacity(READS_MAX);
        let mut places = Vec::with_capacity(READS_MAX);
        loop {
            for (place, (offset, buffer)) in reads.by_ref().take(READS_MAX) {
                places.push(place);
                batch.push(BatchedRead { offset, buffer, is_whole: false });
            }
            if batch.is_empty() {
                return;
            }
            // A single read gains nothing from a ring.
            if batch.len() > 1
                && let Some(file) = backing.direct_reads()
                && let Some(rings) = self.rings()
                && let Some(ring) = rings.pop().or_else(|| BatchRing::new(READS_MAX as u32).ok().map(Box::new))
            {
                // Where the list is full, the ring is dropped.
                ring.read_all(file, &mut batch).map(|ring| rings.push(ring));
            }
            for (read, place) in batch.drain(..).zip(places.drain(..)) {
                // `read_at` repeats a read that failed or came short.
                let bytes = read.buffer.len();
                ended(place, if read.is_whole { Ok(bytes) } else { backing.read_at(read.offset, read.buffer) });
            }
        }
    }

    fn rings(&self) -> Option<&ArrayQueue<Box<BatchRing>>> {
        self.rings.as_ref()?.get()
    }
}

impl Default for BatchReader {
    fn default() -> Self {
        BatchReader::new()
    }
}

impl std::fmt::Debug for BatchReader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("BatchReader").field("idle_rings", &self.rings().map(ArrayQueue::len)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ops::Range;

    use super::*;
    use crate::backing::{Access, FileBacking, MemoryBacking};
    use crate::sys::PAGE_BYTES;

    const PAGES: u64 = 100;

    #[repr(C, align(4096))]
    #[derive(Clone)]
    struct Page([u8; PAGE_BYTES]);

    /// Reads these pages, and returns for each the number of bytes and the first byte.
    fn read(reader: &BatchReader, backing: &dyn Backing, pages: impl IntoIterator<Item = u64>) -> Vec<(usize, u8)> {
        let pages: Vec<u64> = pages.into_iter().collect();
        let mut buffers = vec![Page([0xff; PAGE_BYTES]); pages.len()];
        let mut bytes = vec![None; pages.len()];
        let reads = pages.iter().zip(&mut buffers).map(|(page, buffer)| (page * PAGE_BYTES as u64, &mut buffer.0[..]));
        reader.read(backing, reads, |place, result| {
            assert_eq!(bytes[place].replace(result.unwrap()), None, "told twice");
        });
        bytes.into_iter().map(Option::unwrap).zip(buffers.iter().map(|buffer| buffer.0[0])).collect()
    }

    fn numbered(backing: &dyn Backing, pages: Range<u64>) {
        let write = |page: u64| backing.write_at(page * PAGE_BYTES as u64, &Page([page as u8; PAGE_BYTES]).0);
        pages.into_iter().try_for_each(write).unwrap();
    }

    #[test]
    fn all_places_are_read_and_told_of_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let len = PAGES * PAGE_BYTES as u64;
        let backings: [Box<dyn Backing>; 2] =
            [Box::new(FileBacking::create(&path, len).unwrap()), Box::new(MemoryBacking::new(len).unwrap())];
        let reader = BatchReader::new();
        for backing in &backings {
            numbered(&**backing, 0..PAGES);
            for count in [0, 1, 2, 31, 32, 33, 64, 99] {
                let pages = (0..count).map(|place| place * 37 % PAGES);
                let expected: Vec<_> = pages.clone().map(|page| (PAGE_BYTES, page as u8)).collect();
                assert_eq!(read(&reader, &**backing, pages), expected);
            }
        }
        drop(backings);
        // Only reads beyond the end come short.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * PAGE_BYTES as u64 + 100).unwrap();
        let file = FileBacking::open(&path, Access::ReadOnly).unwrap();
        assert_eq!(read(&reader, &file, [2, 3, 4, 0]), [(PAGE_BYTES, 2), (100, 3), (0, 0xff), (PAGE_BYTES, 0)]);
    }

    /// Making and ending a ring costs more than the read.
    #[test]
    fn a_read_alone_leaves_the_rings_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = FileBacking::create(folder.path().join("file"), PAGES * PAGE_BYTES as u64).unwrap();
        numbered(&file, 0..PAGES);
        let reader = BatchReader::new();
        read(&reader, &file, [3, 5]);
        let made = reader.rings().unwrap().len();
        assert_eq!(read(&reader, &file, [7]), [(PAGE_BYTES, 7)]);
        // The last read makes a second batch, alone.
        read(&reader, &file, 0..READS_MAX as u64 + 1);
        assert_eq!(reader.rings().unwrap().len(), made);
    }

    #[test]
    fn threads_read_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = FileBacking::create(folder.path().join("file"), PAGES * PAGE_BYTES as u64).unwrap();
        numbered(&file, 0..PAGES);
        let reader = BatchReader::new();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (reader, file) = (&reader, &file);
                scope.spawn(move || {
                    for round in 0..50 {
                        let pages = (0..20).map(|place| (thread * 13 + round + place * 7) % PAGES);
                        let expected: Vec<_> = pages.clone().map(|page| (PAGE_BYTES, page as u8)).collect();
                        assert_eq!(read(reader, file, pages), expected);
                    }
                });
            }
        });
    }
}
