//! Plain loads and stores through a pointer, the same machine code for every mapping.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Access;
use crate::content::WORD_BYTES;

/// A thread's access to a mapping of words.
pub struct PointerAccess<'a> {
    words: *mut u64,
    len_bytes: u64,
    mapping: PhantomData<&'a ()>,
}

impl<'a> PointerAccess<'a> {
    /// Access to the `len_bytes` bytes at `base`.
    ///
    /// # Safety
    ///
    /// `base` is aligned to a word. For all of `'a` the bytes stay mapped, for writing if the caller uses `store`. Other threads touch them
    /// only by atomic accesses to whole words.
    pub unsafe fn new(base: *mut u8, len_bytes: u64) -> Self {
        assert!(base.cast::<u64>().is_aligned());
        Self { words: base.cast(), len_bytes, mapping: PhantomData }
    }

    /// The word at an offset. A relaxed atomic load or store is an ordinary instruction on the machines we run on.
    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(WORD_BYTES) && offset + WORD_BYTES <= self.len_bytes);
        // SAFETY: the streams give out offsets of whole words below the length, so the pointer stays inside the mapping and aligned; the
        // caller of `new` upholds the rest.
        unsafe { AtomicU64::from_ptr(self.words.add((offset / WORD_BYTES) as usize)) }
    }

    /// The word at byte offset `offset`.
    #[inline]
    pub fn load_word(&self, offset: u64) -> u64 {
        u64::from_le(self.word(offset).load(Ordering::Relaxed))
    }

    /// Replaces the word at byte offset `offset`.
    #[inline]
    pub fn store_word(&self, offset: u64, word: u64) {
        self.word(offset).store(word.to_le(), Ordering::Relaxed);
    }
}

impl Access for PointerAccess<'_> {
    #[inline]
    fn load(&mut self, offset: u64) -> anyhow::Result<u64> {
        Ok(self.load_word(offset))
    }

    #[inline]
    fn store(&mut self, offset: u64, word: u64) -> anyhow::Result<()> {
        self.store_word(offset, word);
        Ok(())
    }
}
