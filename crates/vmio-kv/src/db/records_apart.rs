//! Records that are to be written side by side.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::Result;
use crate::format::pointer::PointerKind;
use crate::keyspace::{Keyspace, KeyspaceCursor, View};
use crate::tree::Direction;

/// Neighbouring records that lie apart, as a scan has read them.
pub(crate) struct RecordsApart {
    pub(super) keyspace: Arc<Keyspace>,
    /// Protects the records' space from reuse.
    pub(super) view: Arc<View>,
    /// Where the scan was before the first record, and its direction.
    pub(super) from: Bound<Vec<u8>>,
    pub(super) direction: Direction,
    pub(super) records: BTreeMap<u64, ReadRecord>,
}

/// A record as a scan has read it.
pub(super) struct ReadRecord {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl RecordsApart {
    /// The records that are still the newest of their keys in a view, in the order of their keys.
    pub(super) fn newest(mut self, now: &Arc<View>) -> Result<Vec<ReadRecord>> {
        let from = self.from.as_ref().map(Vec::as_slice);
        let mut cursor = KeyspaceCursor::seek(&self.keyspace, now, from, self.direction)?;
        let mut records = Vec::with_capacity(self.records.len());
        // Other keys may have come between them, or deletions.
        for _ in 0..2 * self.records.len() {
            if self.records.is_empty() {
                break;
            }
            let Some(known) = cursor.next_or_deleted()? else { break };
            if known.pointer.kind() == PointerKind::Value {
                records.extend(self.records.remove(&known.pointer.offset()));
            }
        }
        if self.direction == Direction::Down {
            records.reverse();
        }
        Ok(records)
    }
}
