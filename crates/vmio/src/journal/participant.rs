//! Participants of commits: mappings that keep pages in memory which belong to the next one.

use std::io;

use crate::error::Result;
use crate::journal::delta_batch::CommitDeltas;

/// What holds the pages of a file that has joined. The first three methods are called by the thread that leads a commit, with
/// signals blocked, in this order.
pub(crate) trait Participant: Send + Sync {
    /// Protects every page that was stored to. Called before the store gate is closed, which leaves little to be done
    /// while it is, and then.
    fn protect(&self) -> Result<()>;

    /// Writes what was protected: pages of the present commit. Stores go on. Called once more when nobody has a ticket of the
    /// commit any longer, for the pages that such a one could not write.
    fn write(&self, deltas: &mut CommitDeltas<'_>) -> Result<()>;

    /// A delta of a page has been written for that commit, or not. Until then nobody else writes the page.
    fn settle(&self, page: u64, commit: u64, written: io::Result<()>);

    /// The commit has failed: what was not written becomes part of the next.
    fn pass_on(&self, commit: u64);

    /// Copies a page that is in memory and the same as its newest version in the log or the file, if it stays so until
    /// `is_newest` has been asked afterwards; false if not. Waits for nothing: the checkpoint calls it, from several threads.
    fn copy_clean(&self, page: u64, target: &mut [u8], is_newest: &dyn Fn() -> bool) -> bool;
}
