//! The file of records that mappings map, two to a page.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use vmio_measure::content::{PAGE_BYTES, PageBuffer, WORD_BYTES, open_direct};
use vmio_measure::engines::pointer::PointerAccess;

use super::super::records::{CHANGED_BYTES, Change, RECORD_BYTES, Record, SLOT_BYTES, record_after};
use super::Setup;

const BLOCK_BYTES: u64 = 1 << 20;
const WORD: usize = WORD_BYTES as usize;
/// A word of a page that belongs to no record.
const SPARE_OFFSET: u64 = RECORD_BYTES as u64;
const _: () = assert!(RECORD_BYTES + WORD <= SLOT_BYTES as usize && CHANGED_BYTES.is_multiple_of(WORD));

/// Where the file is.
pub fn path(setup: &Setup) -> PathBuf {
    setup.folder.join("records")
}

/// Writes the file, past the page cache.
pub fn create(setup: &Setup) -> anyhow::Result<()> {
    write_blocks(&path(setup), setup.pages * PAGE_BYTES, |offset, block| {
        for (number, slot) in (offset / SLOT_BYTES..).zip(block.chunks_exact_mut(SLOT_BYTES as usize)) {
            if let Some(record) = slot.first_chunk_mut() {
                record_after(number, 0, record);
            }
        }
    })
}

/// Creates a file and writes all of it, so that later writes change neither its length nor where it is.
pub fn write_blocks(path: &Path, len_bytes: u64, mut fill: impl FnMut(u64, &mut [u8])) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", path.display());
    File::create_new(path).with_context(context)?;
    let file = open_direct(path, true)?;
    let mut buffer = PageBuffer::new(BLOCK_BYTES);
    for offset in (0..len_bytes).step_by(BLOCK_BYTES as usize) {
        let block = &mut buffer.as_mut_bytes()[..(len_bytes - offset).min(BLOCK_BYTES) as usize];
        fill(offset, block);
        file.write_all_at(block, offset).with_context(context)?;
    }
    file.sync_all().with_context(context)
}

/// Reads a record.
pub fn read(access: &PointerAccess<'_>, number: u64, record: &mut Record) {
    for (index, word) in record.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&access.load_word(number * SLOT_BYTES + (index * WORD) as u64).to_le_bytes());
    }
}

/// Stores what changes say.
pub fn change(access: &PointerAccess<'_>, changes: &[Change]) {
    for change in changes {
        for (at, word) in change.words() {
            access.store_word(change.record * SLOT_BYTES + at as u64, word);
        }
    }
}

/// Loads a word of a page.
pub fn load(access: &PointerAccess<'_>, page: u64) {
    std::hint::black_box(access.load_word(page * PAGE_BYTES + SPARE_OFFSET));
}

/// Stores a word of a page that belongs to no record.
pub fn store(access: &PointerAccess<'_>, page: u64) {
    access.store_word(page * PAGE_BYTES + SPARE_OFFSET, page);
}
