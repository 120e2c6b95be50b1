//! The parts of a large value in a backup, read like a file.

use std::io::{self, Read};

use crate::backup::BackupReader;
use crate::backup::block::{BlockKind, CONTENTS_BYTES_MAX};
use crate::error::{Damage, Error, Result};

/// Reads a large value from the blocks that have its parts.
pub(super) struct Parts<'reader, R> {
    reader: &'reader mut BackupReader<R>,
    /// Bytes of the value in blocks that were not read yet.
    left: u64,
    /// Bytes that went out of the last block.
    taken: usize,
    /// Why a read failed. The reads' own errors do not get past [`Read`].
    error: Option<Error>,
}

impl<'reader, R: Read> Parts<'reader, R> {
    pub(super) fn new(reader: &'reader mut BackupReader<R>, value_bytes: u64) -> Self {
        reader.contents.clear();
        Parts { reader, left: value_bytes, taken: 0, error: None }
    }

    /// Reads what nobody has taken. Fails with the error of an earlier read, if there is one, else with that of `taken`.
    pub(super) fn end(mut self, taken: Result<()>) -> Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        taken?;
        while self.left > 0 {
            self.next()?;
        }
        Ok(())
    }

    /// Reads the next block.
    fn next(&mut self) -> Result<()> {
        let offset = self.reader.offset();
        let damaged = |damage| Err(Error::DamagedBackup { structure: "a part of a value", offset, damage });
        let kind = self.reader.next_block()?;
        if kind != BlockKind::Part {
            return damaged(Damage::Kind { found: kind as u8, wanted: BlockKind::Part as u8 });
        }
        let wanted = self.left.min(CONTENTS_BYTES_MAX as u64);
        let found = self.reader.contents.len() as u64;
        if found != wanted {
            return damaged(Damage::Value { what: "the length of its contents", found });
        }
        self.left -= wanted;
        self.taken = 0;
        Ok(())
    }
}

impl<R: Read> Read for Parts<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.reader.contents.len() && self.left > 0 && !buffer.is_empty() {
            self.next().map_err(|error| {
                let short = io::Error::other(error.to_string());
                self.error = Some(error);
                short
            })?;
        }
        let rest = &self.reader.contents[self.taken..];
        let bytes = rest.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}
