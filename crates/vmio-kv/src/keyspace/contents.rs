//! What levels hold of the log: bytes of records, and deletions. Trees do not say it on the device, so it is known of those that were made since
//! the store was opened.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::format::catalogue::Root;

/// What a level's entries point to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    pub(crate) bytes: u64,
    pub(crate) deletions: u64,
}

/// A level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents {
    pub(crate) entries: u64,
    pub(crate) records: Option<Records>,
}

/// Those of a keyspace's trees that are known.
#[derive(Default)]
pub(super) struct TreeRecords(Mutex<HashMap<(u64, u64), Records>>);

fn key(root: Root) -> (u64, u64) {
    (root.offset, root.epoch)
}

impl TreeRecords {
    pub(super) fn of(&self, root: Root) -> Contents {
        Contents { entries: root.entries, records: self.0.lock().get(&key(root)).copied() }
    }

    /// What a tree is known to hold, which is about to be replaced; nothing if there was none.
    pub(super) fn take(&self, root: Option<Root>) -> Option<Records> {
        root.map_or(Some(Records::default()), |root| self.0.lock().remove(&key(root)))
    }

    pub(super) fn put(&self, root: Root, records: Records) {
        self.0.lock().insert(key(root), records);
    }

    /// All trees have gone.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
