//! Reads the misses of a cache of another process while they happen.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::telemetry::layout::WORD_BYTES;
use crate::telemetry::miss_ring::{FIRST_MAPPING, FIRST_SLOT, Header, MAGIC, MAPPINGS_MAX, SLOTS, Slot, lap_of};

/// The most misses that one call reads.
const CHUNK: u64 = 64 << 10;

/// A load or store that missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The page number. A cache numbers the pages of its mappings in the order in which they were opened. Each mapping
    /// has as many numbers as its address space has pages.
    pub page: u64,
    /// Whether the access was a store.
    pub store: bool,
}

/// A mapping of a cache that publishes its misses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedMapping {
    /// The values of [`Miss::page`] for its pages: one for each page of its address space.
    pub pages: Range<u64>,
    /// The length of its file in bytes when it was opened.
    pub len: u64,
}

/// The misses of a cache that was built with [`crate::CacheBuilder::publish_misses`].
///
/// They stay readable until the reader is dropped, even after the process has ended.
#[derive(Debug)]
pub struct Misses {
    file: File,
    next: u64,
    lost: u64,
}

impl Misses {
    /// The misses in a file, if it is a complete one of this cache of this process.
    pub(super) fn of(file: File, process_id: u32, cache_number: u64) -> io::Result<Option<Self>> {
        if file.metadata()?.len() < (FIRST_SLOT * WORD_BYTES) as u64 {
            // The file is new, and about to get its length.
            return Ok(None);
        }
        let misses = Misses { file, next: 0, lost: 0 };
        let is_ours = misses.header(Header::Magic)? == MAGIC
            && misses.header(Header::ProcessId)? == u64::from(process_id)
            && misses.header(Header::CacheNumber)? == cache_number;
        Ok(is_ours.then_some(misses))
    }

    fn header(&self, word: Header) -> io::Result<u64> {
        let mut bytes = [0; WORD_BYTES];
        self.file.read_exact_at(&mut bytes, (word as usize * WORD_BYTES) as u64)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Appends the misses since the last call, in their order, and returns how many are left to read.
    ///
    /// After a long pause the oldest of them are lost.
    ///
    /// # Errors
    ///
    /// The error of reading the memory.
    pub fn read(&mut self, misses: &mut Vec<Miss>) -> io::Result<u64> {
        let total = self.header(Header::Misses)?;
        if total.saturating_sub(self.next) > SLOTS {
            self.lose(total - SLOTS - self.next);
        }
        let at = self.next % SLOTS;
        let count = total.saturating_sub(self.next).min(CHUNK).min(SLOTS - at);
        let mut bytes = vec![0; count as usize * WORD_BYTES];
        self.file.read_exact_at(&mut bytes, (FIRST_SLOT as u64 + at) * WORD_BYTES as u64)?;
        for word in words(&bytes) {
            let slot = Slot(word);
            match slot.lap().wrapping_sub(lap_of(self.next)) {
                0 => {
                    misses.push(Miss { page: slot.page(), store: slot.is_store() });
                    self.next += 1;
                }
                // A later miss has overwritten the slot.
                1..0x8000 => self.lose(1),
                // The miss is counted, and about to be written.
                _ => break,
            }
        }
        Ok(total.saturating_sub(self.next))
    }

    /// Returns the first 128 mappings so far, in the order of their pages.
    ///
    /// # Errors
    ///
    /// The error of reading the memory.
    pub fn mappings(&self) -> io::Result<Vec<PublishedMapping>> {
        let mut bytes = [0; 2 * MAPPINGS_MAX * WORD_BYTES];
        self.file.read_exact_at(&mut bytes, (FIRST_MAPPING * WORD_BYTES) as u64)?;
        let (ends, lens) = (words(&bytes).step_by(2), words(&bytes).skip(1).step_by(2));
        let mut found: Vec<(u64, u64)> = ends.zip(lens).filter(|(end, _)| *end > 0).collect();
        found.sort_unstable();
        let mut start = 0;
        let mapping = |(end, len)| {
            let pages = start..end;
            start = end;
            PublishedMapping { pages, len }
        };
        Ok(found.into_iter().map(mapping).collect())
    }

    /// Skips a miss whose thread was killed before it wrote the miss. Of use only after the process has ended.
    pub fn skip(&mut self) {
        self.lose(1);
    }

    fn lose(&mut self, misses: u64) {
        self.lost += misses;
        self.next += misses;
    }

    /// Returns the number of misses that this reader has lost: later ones overwrote them first, or [`Self::skip`]
    /// passed them.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// The little-endian words of a byte string.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(WORD_BYTES).map(|word| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process;

    use proptest::prelude::*;

    use super::*;
    use crate::telemetry::miss_ring::MissRing;

    /// A file of a ring's length with these words.
    fn reader_of(words: &[(u64, u64)]) -> Misses {
        let file = tempfile::tempfile().unwrap();
        file.set_len((FIRST_SLOT as u64 + SLOTS) * WORD_BYTES as u64).unwrap();
        for (at, value) in words {
            file.write_all_at(&value.to_le_bytes(), at * WORD_BYTES as u64).unwrap();
        }
        Misses { file, next: 0, lost: 0 }
    }

    proptest! {
        #[test]
        fn whatever_another_process_shows_is_no_panic(
            total in prop_oneof![0..2 * SLOTS, any::<u64>()],
            next in prop_oneof![Just(0), 0..2 * SLOTS, any::<u64>()],
            header in prop::collection::vec((0..FIRST_SLOT as u64, any::<u64>()), 0..20),
            slots in prop::collection::vec((0..SLOTS, any::<u64>()), 0..20),
        ) {
            let slots = slots.iter().map(|(at, value)| (FIRST_SLOT as u64 + at, *value));
            let words: Vec<_> = header.into_iter().chain(slots).chain([(Header::Misses as u64, total)]).collect();
            let mut reader = reader_of(&words);
            reader.next = next;
            let mut misses = Vec::new();
            let left = reader.read(&mut misses).unwrap();
            prop_assert!(misses.len() as u64 <= CHUNK && left <= SLOTS);
            prop_assert!(misses.iter().all(|miss| miss.page < 1 << 47));
            let mappings = reader.mappings().unwrap();
            prop_assert!(mappings.windows(2).all(|pair| pair[0].pages.end == pair[1].pages.start));
        }
    }

    #[test]
    fn a_ring_that_gets_shorter_is_an_error() {
        let mut reader = reader_of(&[(Header::Misses as u64, 5)]);
        reader.file.set_len(1000).unwrap();
        assert!(reader.read(&mut Vec::new()).is_err() && reader.mappings().is_err());
    }

    fn ring_and_reader() -> (MissRing, Misses) {
        let ring = MissRing::new(7).unwrap();
        let path = format!("/proc/self/fd/{}", ring.descriptor());
        assert!(Misses::of(File::open(&path).unwrap(), process::id(), 8).unwrap().is_none());
        let reader = Misses::of(File::open(path).unwrap(), process::id(), 7).unwrap().unwrap();
        (ring, reader)
    }

    #[test]
    fn misses_are_read_in_their_order_and_once() {
        let (ring, mut reader) = ring_and_reader();
        let mut misses = Vec::new();
        assert_eq!(reader.read(&mut misses).unwrap(), 0);
        ring.note(5, false);
        ring.note((1 << 47) - 1, true);
        assert_eq!(reader.read(&mut misses).unwrap(), 0);
        assert_eq!(misses, [Miss { page: 5, store: false }, Miss { page: (1 << 47) - 1, store: true }]);
        misses.clear();
        reader.read(&mut misses).unwrap();
        assert!(misses.is_empty() && reader.lost() == 0);
    }

    #[test]
    fn mappings_are_told_apart() {
        let (ring, reader) = ring_and_reader();
        assert!(reader.mappings().unwrap().is_empty());
        assert_eq!((ring.number_pages(100, 5000), ring.number_pages(30, 0)), (0, 100));
        let expected = [(0..100, 5000), (100..130, 0)].map(|(pages, len)| PublishedMapping { pages, len });
        assert_eq!(reader.mappings().unwrap(), expected);
        (2..MAPPINGS_MAX + 5).for_each(|_| _ = ring.number_pages(1, 1));
        ring.note(3, false);
        assert_eq!(reader.mappings().unwrap().len(), MAPPINGS_MAX, "and no slot is harmed");
        let (mut reader, mut misses) = (reader, Vec::new());
        reader.read(&mut misses).unwrap();
        assert_eq!(misses, [Miss { page: 3, store: false }]);
    }

    #[test]
    fn what_was_written_over_is_counted_as_lost() {
        let (ring, mut reader) = ring_and_reader();
        (0..SLOTS + 10).for_each(|page| ring.note(page, false));
        let mut misses = Vec::new();
        while reader.read(&mut misses).unwrap() > 0 {}
        assert_eq!((reader.lost(), misses.len() as u64), (10, SLOTS));
        assert!(misses.iter().zip(10..).all(|(miss, page)| miss.page == page));
    }
}
