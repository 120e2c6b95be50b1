//! Participants of commits: mappings that keep pages of the next commit in memory.

use std::io;

use crate::error::Result;
use crate::journal::delta_batch::CommitDeltas;

/// The owner of the pages of a file that has joined. The thread that leads a commit calls the first three methods in
/// this order, with signals blocked.
pub(crate) trait Participant: Send + Sync {
    /// Protects every page that was stored to. A commit calls it before it closes the store gate, which leaves little
    /// to do meanwhile, and once more while the gate is closed.
    fn protect(&self) -> Result<()>;

    /// Writes the protected pages, which belong to the present commit. Stores go on meanwhile. A second call comes when
    /// nobody has a ticket of the commit any longer. It is for pages that the owner of a ticket could not write.
    fn write(&self, deltas: &mut CommitDeltas<'_>) -> Result<()>;

    /// Tells whether a delta of a page has been written for that commit. Until then nobody else writes the page.
    fn settle(&self, page: u64, commit: u64, written: io::Result<()>);

    /// Tells that the commit has failed: pages it did not write become part of the next one.
    fn pass_on(&self, commit: u64);

    /// Copies a page if memory has it unchanged: the same as its newest version in the log or the file. It must stay so
    /// until `is_newest` has been asked afterwards; returns false if not. Waits for nothing: the checkpoint calls it,
    /// from several threads.
    fn copy_clean(&self, page: u64, target: &mut [u8], is_newest: &dyn Fn() -> bool) -> bool;
}
