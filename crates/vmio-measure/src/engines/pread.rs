//! `pread` and `pwrite` of whole pages past the page cache: a cache must beat them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;

use super::{Access, Engine};
use crate::content::{PAGE_BYTES, PageBuffer, WORD_BYTES, open_direct};

/// A file opened past the page cache.
pub struct PreadEngine {
    file: File,
}

impl PreadEngine {
    /// Opens `path`, for stores too if `write`.
    pub fn open(path: &Path, write: bool) -> anyhow::Result<Self> {
        Ok(Self { file: open_direct(path, write)? })
    }
}

impl Engine for PreadEngine {
    type Access<'a> = PreadAccess<'a>;

    fn access(&self) -> anyhow::Result<Self::Access<'_>> {
        Ok(PreadAccess { file: &self.file, page: PageBuffer::new(PAGE_BYTES) })
    }

    fn finish(self) -> anyhow::Result<()> {
        self.file.sync_data().context("cannot sync the file")
    }
}

/// One thread's page.
pub struct PreadAccess<'a> {
    file: &'a File,
    page: PageBuffer,
}

impl PreadAccess<'_> {
    /// Reads the page around `offset`. Returns the page's offset and the word's place in the page.
    fn read_page(&mut self, offset: u64) -> anyhow::Result<(u64, usize)> {
        let page_offset = offset / PAGE_BYTES * PAGE_BYTES;
        self.file
            .read_exact_at(self.page.as_mut_bytes(), page_offset)
            .with_context(|| format!("cannot read the page at offset {page_offset}"))?;
        Ok((page_offset, (offset - page_offset) as usize))
    }
}

impl Access for PreadAccess<'_> {
    fn load(&mut self, offset: u64) -> anyhow::Result<u64> {
        let (_, start) = self.read_page(offset)?;
        let mut word = [0; WORD_BYTES as usize];
        word.copy_from_slice(&self.page.as_mut_bytes()[start..start + WORD_BYTES as usize]);
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, offset: u64, word: u64) -> anyhow::Result<()> {
        let (page_offset, start) = self.read_page(offset)?;
        let bytes = self.page.as_mut_bytes();
        bytes[start..start + WORD_BYTES as usize].copy_from_slice(&word.to_le_bytes());
        self.file
            .write_all_at(bytes, page_offset)
            .with_context(|| format!("cannot write the page at offset {page_offset}"))
    }
}
