//! Who keeps pages in memory that belong to the next commit.

use crate::error::Result;

/// What holds the pages of a file that has joined. The methods are called by the thread that leads a commit, with signals
/// blocked, in this order.
pub(crate) trait Participant: Send + Sync {
    /// Protects every page that was stored to. Called before the store gate is closed, which leaves little to be done
    /// while it is, and then.
    fn protect(&self) -> Result<()>;

    /// Writes what was protected: pages of the present commit, whose number this is. Stores go on. Called once more when
    /// nobody has a ticket of the commit any longer, for the pages that such a one could not write.
    fn write(&self, commit: u64) -> Result<()>;

    /// The commit has failed: what was not written becomes part of the next.
    fn pass_on(&self, commit: u64);
}
