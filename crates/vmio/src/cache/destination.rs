//! Where the copies of dirty pages go.

/// Where copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To the backing.
    Backing,
    /// To the journal, as part of the commit of this number, of which the batch holds a ticket.
    Spill(u64),
    /// To the journal, for the thread that leads the commit of this number.
    Commit(u64),
}

impl Destination {
    /// The epoch of the pages that may go there.
    pub(crate) fn epoch(self) -> Option<bool> {
        match self {
            Destination::Backing => None,
            Destination::Spill(commit) | Destination::Commit(commit) => Some(epoch_of(commit)),
        }
    }
}

/// The epoch of Dirty pages that belong to the commit of this number.
pub(crate) fn epoch_of(commit: u64) -> bool {
    commit % 2 == 1
}
