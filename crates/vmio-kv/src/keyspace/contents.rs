//! Counts of the log's records that levels point to: their bytes, and deletions. Trees do not have these counts on the device. The counts
//! exist for trees built since the store was opened.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::format::catalogue::Root;

/// The log's records that a level's entries point to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    pub(crate) bytes: u64,
    pub(crate) deletions: u64,
}

/// The contents of a level, in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents {
    pub(crate) entries: u64,
    pub(crate) records: Option<Records>,
}

/// The known counts of a keyspace's trees.
#[derive(Default)]
pub(super) struct TreeRecords(Mutex<HashMap<(u64, u64), Records>>);

fn key(root: Root) -> (u64, u64) {
    (root.offset, root.epoch)
}

impl TreeRecords {
    pub(super) fn of(&self, root: Root) -> Contents {
        Contents { entries: root.entries, records: self.0.lock().get(&key(root)).copied() }
    }

    /// Removes and returns the counts of a tree that a new one replaces; `None` if they are unknown. Without a tree they are zero.
    pub(super) fn take(&self, root: Option<Root>) -> Option<Records> {
        root.map_or(Some(Records::default()), |root| self.0.lock().remove(&key(root)))
    }

    pub(super) fn put(&self, root: Root, records: Records) {
        self.0.lock().insert(key(root), records);
    }

    /// Forgets all trees.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
