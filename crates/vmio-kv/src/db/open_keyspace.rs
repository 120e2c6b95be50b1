//! A keyspace of an open store, and the writes to it.

use std::sync::Arc;

use crate::db::lengths::check_key;
use crate::db::open_segment::OpenSegment;
use crate::db::reading::Reading;
use crate::durability::Durability;
use crate::error::Result;
use crate::format::record::RecordKind;
use crate::keyspace::memtable::{NEWEST, space_for};
use crate::keyspace::{Admitted, Keyspace, Version, WriteTurn};
use crate::log::Append;
use crate::volume::free_reserve::SpacePriority;

/// A keyspace and its segment.
#[derive(Clone)]
pub(crate) struct OpenKeyspace {
    pub(crate) home: Arc<OpenSegment>,
    pub(crate) keyspace: Arc<Keyspace>,
}

impl OpenKeyspace {
    /// The durability of writes that do not name one.
    pub(super) fn durability(&self) -> Durability {
        self.home.store.options.default_durability()
    }

    pub(super) fn delete(&self, key: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        self.write_one(RecordKind::Delete, key, &[], durability)
    }

    pub(super) fn write_one(&self, kind: RecordKind, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let priority = if kind == RecordKind::Delete { SpacePriority::Delete } else { SpacePriority::Put };
        let record = Append { kind, keyspace: self.keyspace.number, key, value };
        self.home.write_or_make_space(priority, || self.try_write_one(&record, priority, durability))
    }

    fn try_write_one(&self, record: &Append<'_>, priority: SpacePriority, durability: Durability) -> Result<()> {
        let admitted = self.home.admit(self.keyspace.space_to_begin() + space_for(record.key))?;
        self.append(admitted, self.keyspace.begin_write()?, record, priority, durability)
    }

    /// Writes a record and ends the turn. The record's memory has been admitted.
    pub(super) fn append(
        &self,
        admitted: Admitted<'_>,
        turn: WriteTurn<'_>,
        record: &Append<'_>,
        priority: SpacePriority,
        durability: Durability,
    ) -> Result<()> {
        let home = &self.home;
        let at = home.log.append_one_record(record, priority)?;
        let is_full = turn.put(record.key, at.sequence, at.pointer);
        drop(turn);
        drop(admitted);
        home.compact_if_due(&self.keyspace, is_full);
        home.slow_down(1, u64::from(at.pointer.record_bytes()));
        home.log.keep(durability, at.sequence + 1)
    }

    /// The keyspace as it is now, in one of its versions.
    pub(super) fn newest<'keyspace>(&'keyspace self, version: &'keyspace Version) -> Reading<'keyspace> {
        Reading { keyspace: &self.keyspace, version, before: NEWEST }
    }
}
