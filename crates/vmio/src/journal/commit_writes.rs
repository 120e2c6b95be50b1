//! Pages that the leader of a commit adds to it.

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::journal::commit::{Commit, append_deltas, deltas};
use crate::journal::format::RecordKind;
use crate::journal::journaled_backing::JournaledBacking;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

impl Commit<'_> {
    /// Adds pages of a file, under the rules of [`crate::backing::Backing::write_at`].
    ///
    /// # Errors
    ///
    /// [`Error::JournalFull`] or [`Error::Journal`]. After an error the commit must fail. Pages already written become
    /// part of the next one.
    pub fn write(&self, file: &JournaledBacking, offset: u64, data: &[u8]) -> Result<()> {
        self.core.check_not_forked()?;
        // If the caller writes a page twice, the second version counts.
        append_deltas(self)?;
        let number = |at: usize| offset / PAGE_BYTES as u64 + at as u64;
        let appended = self.core.append(RecordKind::Batch, self.frozen().number, file.joined(), &number, data);
        appended.map_err(|refusal| self.core.log.refused(refusal))
    }

    /// Adds a page of a file whose newest version, `before`, the caller knows.
    ///
    /// Writes only the bytes that differ in `after`, or the whole page if much differs. Nobody may spill the page until
    /// the commit has ended. If the commit fails, the newest version may be the one before: read the page.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write`]; [`Error::BadOption`] if the arguments are no whole page of the file.
    pub fn write_changes(&self, file: &JournaledBacking, page: u64, before: &[u8], after: &[u8]) -> Result<()> {
        self.core.check_not_forked()?;
        let is_page = before.len() == PAGE_BYTES && after.len() == PAGE_BYTES;
        if !is_page || page >= file.len().div_ceil(PAGE_BYTES as u64) {
            let expected = "whole pages of the file";
            let value = format!("{} and {} bytes of page {page}", before.len(), after.len());
            return Err(Error::BadOption { option: "changes of a page", value, expected });
        }
        let number = self.frozen().number;
        if self.core.deltas().has(file.joined(), page) {
            append_deltas(self)?;
        }
        let written = {
            let _signals = SignalsBlocked::new();
            let mut deltas = deltas(self.core, number);
            deltas.make_room()?;
            deltas.add(file.joined(), page, before, after).is_some()
        };
        if written { Ok(()) } else { self.write(file, page * PAGE_BYTES as u64, after) }
    }
}
