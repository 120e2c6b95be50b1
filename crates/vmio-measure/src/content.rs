//! The content of the benchmark's file: a reader can verify every word, wherever in the file it is.
//!
//! The word at byte offset `o` holds the upper 40 bits of a hash of `o` above a 24-bit version
//! that stores are free to change.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

use anyhow::{Context, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use vmio_report::progress::ByteProgress;
use vmio_report::size::format_size;

/// The size of a page of the cache.
pub const PAGE_BYTES: u64 = vmio::PAGE_BYTES as u64;
/// The size of a word.
pub const WORD_BYTES: u64 = 8;
/// Words in a page.
pub const WORDS_PER_PAGE: u64 = PAGE_BYTES / WORD_BYTES;

const VERSION_BITS: u32 = 24;
const BLOCK_BYTES: u64 = 1 << 20;
const FILL_THREADS: u64 = 2;

/// A buffer that O_DIRECT accepts: whole pages, page-aligned.
pub struct PageBuffer {
    pages: Vec<Page>,
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES as usize]);

impl PageBuffer {
    /// A zeroed buffer of `bytes`, a multiple of the page size.
    pub fn new(bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(PAGE_BYTES));
        Self { pages: vec![Page([0; PAGE_BYTES as usize]); (bytes / PAGE_BYTES) as usize] }
    }

    /// The bytes.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        // SAFETY: `Page` is `repr(C)` around a byte array whose size is its alignment, so the
        // vector's pages are contiguous initialised bytes; the borrow of `self` keeps them ours.
        unsafe {
            std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast::<u8>(), self.pages.len() * PAGE_BYTES as usize)
        }
    }
}

/// The finaliser of SplitMix64.
pub fn mix64(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The word for byte offset `offset` with the lower bits of `version`.
pub fn word_at(offset: u64, version: u64) -> u64 {
    (mix64(offset) >> VERSION_BITS) << VERSION_BITS | version & ((1 << VERSION_BITS) - 1)
}

/// Whether `word` belongs at byte offset `offset`, in any version.
pub fn word_is_valid(offset: u64, word: u64) -> bool {
    word >> VERSION_BITS == mix64(offset) >> VERSION_BITS
}

/// Writes the words from byte offset `offset` on into `bytes`.
pub fn write_words(offset: u64, bytes: &mut [u8], seed: u64) {
    for (index, word) in bytes.chunks_exact_mut(WORD_BYTES as usize).enumerate() {
        let offset = offset + index as u64 * WORD_BYTES;
        word.copy_from_slice(&word_at(offset, offset.wrapping_mul(seed | 1) >> 13).to_le_bytes());
    }
}

/// Counts the words of `bytes`, read from byte offset `offset`, that do not belong there.
pub fn count_invalid(offset: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(WORD_BYTES as usize).enumerate();
    words
        .filter(|(index, bytes)| {
            let mut word = [0; WORD_BYTES as usize];
            word.copy_from_slice(bytes);
            !word_is_valid(offset + *index as u64 * WORD_BYTES, u64::from_le_bytes(word))
        })
        .count() as u64
}

/// Opens a file or block device past the page cache. Opens a block device for writing only if nobody else uses it.
pub fn open_direct(path: &Path, write: bool) -> anyhow::Result<File> {
    let exclusive = write && path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    let flags = libc::O_DIRECT | if exclusive { libc::O_EXCL } else { 0 };
    OpenOptions::new().read(true).write(write).custom_flags(flags).open(path).with_context(|| {
        format!(
            "cannot open {} with O_DIRECT (a mounted or busy device, or a file system without direct I/O?)",
            path.display()
        )
    })
}

/// Fills the first `len_bytes` of the file (a multiple of the page size), past the page cache.
pub fn fill(path: &Path, len_bytes: u64, seed: u64) -> anyhow::Result<()> {
    let file = open_direct(path, true)?;
    let what = format!("filling {} with {} to verify", path.display(), format_size(len_bytes));
    let progress = ByteProgress::start(&what, len_bytes);
    let fill_part = |part: u64| -> anyhow::Result<()> {
        let mut buffer = PageBuffer::new(BLOCK_BYTES);
        let mut offset = part * BLOCK_BYTES;
        while offset < len_bytes {
            let bytes = &mut buffer.as_mut_bytes()[..(len_bytes - offset).min(BLOCK_BYTES) as usize];
            write_words(offset, bytes, seed);
            file.write_all_at(bytes, offset)
                .with_context(|| format!("cannot write {} at offset {offset}", path.display()))?;
            progress.add(bytes.len() as u64);
            offset += FILL_THREADS * BLOCK_BYTES;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let parts: Vec<_> = (0..FILL_THREADS).map(|part| scope.spawn(move || fill_part(part))).collect();
        parts.into_iter().try_for_each(|part| match part.join() {
            Ok(result) => result,
            Err(_) => bail!("a filling thread panicked"),
        })
    })?;
    file.sync_all().with_context(|| format!("cannot sync {}", path.display()))
}

/// Reads `pages` random pages and the last one past the page cache. Counts the words that do not belong where they are.
pub fn count_invalid_in_sample(path: &Path, len_bytes: u64, pages: u64, seed: u64) -> anyhow::Result<u64> {
    let file = open_direct(path, false)?;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut buffer = PageBuffer::new(PAGE_BYTES);
    let all = len_bytes / PAGE_BYTES;
    let mut invalid = 0;
    for index in 0..=pages.min(all) {
        let page = if index == 0 { all - 1 } else { random.random_range(0..all) };
        let bytes = buffer.as_mut_bytes();
        file.read_exact_at(bytes, page * PAGE_BYTES)
            .with_context(|| format!("cannot read page {page} of {}", path.display()))?;
        invalid += count_invalid(page * PAGE_BYTES, bytes);
    }
    Ok(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_valid_where_they_belong_in_any_version() {
        for version in [0, 1, 0xff_ffff, u64::MAX] {
            assert!(word_is_valid(8 * 17, word_at(8 * 17, version)));
            assert!(!word_is_valid(8 * 18, word_at(8 * 17, version)));
        }
        let mut bytes = vec![0; 4096];
        write_words(8192, &mut bytes, 7);
        assert_eq!(count_invalid(8192, &bytes), 0);
        assert_eq!(count_invalid(0, &bytes), 512);
        bytes[4095] ^= 0x80;
        assert_eq!(count_invalid(8192, &bytes), 1);
    }
}
