//! The garbage that a compaction makes, in the log and of large values.

use std::collections::BTreeMap;

use crate::format::geometry::unit_of;
use crate::format::pointer::{Pointer, PointerKind};

/// Records that no entry points to any more. Records of the log are counted by chunk, since there may be as many as entries.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Bytes by unit.
    bytes: BTreeMap<u64, u32>,
    /// Large values, whose space is freed.
    large: Vec<Pointer>,
}

impl Garbage {
    /// Counts a record.
    pub(crate) fn count(&mut self, record: Pointer) {
        match record.kind() {
            PointerKind::Extents => self.large.push(record),
            // It goes with its leaf.
            PointerKind::Inline => {}
            PointerKind::Value | PointerKind::Tombstone => self.add(unit_of(record.offset()), record.record_bytes()),
        }
    }

    /// Adds all of another.
    pub(crate) fn append(&mut self, mut other: Self) {
        other.bytes.iter().for_each(|(unit, bytes)| self.add(*unit, *bytes));
        self.large.append(&mut other.large);
    }

    fn add(&mut self, unit: u64, more: u32) {
        let bytes = self.bytes.entry(unit).or_default();
        *bytes = bytes.saturating_add(more);
    }

    /// Units of the log, with their bytes of garbage.
    pub(crate) fn of_log(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.bytes.iter().map(|(unit, bytes)| (*unit, *bytes))
    }

    /// Large values.
    pub(crate) fn large(&self) -> &[Pointer] {
        &self.large
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::ALLOCATION_UNIT_BYTES;

    #[test]
    fn records_are_counted_by_chunks_and_large_values_are_kept() {
        let record = |unit: u64, at: u64, kind| Pointer::new(kind, unit * ALLOCATION_UNIT_BYTES + at, 128);
        let bytes = record(3, 64, PointerKind::Value).record_bytes();
        let mut garbage = Garbage::default();
        garbage.count(record(3, 64, PointerKind::Value));
        garbage.count(record(5, 0, PointerKind::Tombstone));
        let (mut next, large) = (Garbage::default(), Pointer::of_head(7 * ALLOCATION_UNIT_BYTES, 1, 4096));
        for record in [record(3, 512, PointerKind::Value), record(2, 8, PointerKind::Value), large] {
            next.count(record);
        }
        garbage.append(next);
        assert_eq!(garbage.of_log().collect::<Vec<_>>(), [(2, bytes), (3, 2 * bytes), (5, bytes)]);
        assert_eq!(garbage.large(), [large]);
    }
}
