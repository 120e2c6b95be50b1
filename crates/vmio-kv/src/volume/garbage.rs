//! What a spill leaves behind in the log and in large values, by what somebody has to do about it.

use std::collections::BTreeMap;

use crate::format::geometry::unit_of;
use crate::format::pointer::{Pointer, PointerKind};

/// Records that no entry points to any longer: those of the log by the chunks that they are in, since there may be as many as
/// entries.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Bytes, by units.
    bytes: BTreeMap<u64, u32>,
    /// Large values, whose room is given back.
    large: Vec<Pointer>,
}

impl Garbage {
    /// Counts a record.
    pub(crate) fn count(&mut self, record: Pointer) {
        if record.kind() == PointerKind::Extents {
            self.large.push(record);
        } else {
            self.add(unit_of(record.offset()), record.record_bytes());
        }
    }

    /// Counts all of another.
    pub(crate) fn append(&mut self, mut other: Self) {
        other.bytes.iter().for_each(|(unit, bytes)| self.add(*unit, *bytes));
        self.large.append(&mut other.large);
    }

    fn add(&mut self, unit: u64, more: u32) {
        let bytes = self.bytes.entry(unit).or_default();
        *bytes = bytes.saturating_add(more);
    }

    /// Units of the log, and how many bytes of each.
    pub(crate) fn of_log(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.bytes.iter().map(|(unit, bytes)| (*unit, *bytes))
    }

    /// Large values.
    pub(crate) fn large(&self) -> &[Pointer] {
        &self.large
    }
}
