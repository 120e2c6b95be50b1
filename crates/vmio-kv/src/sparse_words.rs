//! An array of words that mostly stay zero: it takes memory only where a word was written.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::atomic::AtomicU64;

use memmap2::{Advice, MmapMut, MmapRaw};

/// Words that are zero until they are written.
pub(crate) struct SparseWords {
    memory: MmapRaw,
    len: usize,
}

impl SparseWords {
    /// An array of `len` words.
    pub(crate) fn new(len: u64) -> Self {
        let len = len as usize;
        let layout = Layout::array::<u64>(len.max(1)).unwrap_or(Layout::new::<u64>());
        let Ok(memory) = MmapMut::map_anon(layout.size()) else {
            // As any other failed allocation does.
            handle_alloc_error(layout)
        };
        // A huge page would take more memory than the words that are written. It is advice: a kernel without huge pages refuses it.
        let _ = memory.advise(Advice::NoHugePage);
        SparseWords { memory: memory.into(), len }
    }

    /// The word at a place, if the array is that long.
    pub(crate) fn get(&self, place: u64) -> Option<&AtomicU64> {
        let place = usize::try_from(place).ok().filter(|place| *place < self.len)?;
        // SAFETY: the place is within the memory, which begins at a page and lives as long as self; only these atomics reach it.
        Some(unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().cast::<u64>().add(place)) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_until_they_are_written() {
        let words = SparseWords::new(1 << 30);
        let at = |place: u64| words.get(place).map(|word| word.load(Ordering::Relaxed));
        for place in [0, 7, 123_456_789, (1 << 30) - 1] {
            assert_eq!(at(place), Some(0));
            words.get(place).expect("it is there").store(place + 1, Ordering::Relaxed);
            assert_eq!(at(place), Some(place + 1));
        }
        assert_eq!((at(8), at(1 << 30), at(u64::MAX)), (Some(0), None, None));
        assert!(SparseWords::new(0).get(0).is_none());
    }
}
