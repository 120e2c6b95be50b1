//! The records that an opening finds in a segment's log, before its keyspaces are there.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use crate::error::{Damage, Result};
use crate::format::catalogue::KeyspaceEntry;
use crate::format::extents::LargeRecord;
use crate::format::record::RecordKind;
use crate::format::superblock::Superblock;
use crate::keyspace::MemtableBudget;
use crate::keyspace::memtable::{Memtable, space_for};
use crate::log::Replayed;
use crate::volume::segment::Segment;

/// More numbers than the records of a memtable span: it tells them apart by fewer bits.
pub(super) const NUMBERS_MAX: u64 = 1 << 46;

/// The records of the log that no level has, by keyspace.
pub(super) struct RecoveredRecords<'segment> {
    segment: &'segment Segment,
    /// The next keyspace gets this number.
    next_keyspace: u32,
    keyspaces: BTreeMap<u32, OfKeyspace>,
    count: u64,
    memtable_budget: Arc<MemtableBudget>,
    /// Whether records that the memtables have no space for are read again later.
    may_leave: bool,
    /// The place and number of the first record that was left out.
    left_from: Option<(u64, u64)>,
    /// There was a record of a large value.
    has_large: bool,
}

/// The records of one keyspace.
struct OfKeyspace {
    /// Its levels have all records with lower numbers.
    since: u64,
    /// The newest record of each key. Overwritten records take no memory, however many the log has.
    memtable: Option<Memtable>,
    /// The large values among them, by the pointers in the memtable.
    large: BTreeMap<u64, RecoveredLarge>,
}

/// The record of a large value, and its place.
struct RecoveredLarge {
    record_offset: u64,
    value: LargeRecord,
}

impl<'segment> RecoveredRecords<'segment> {
    /// No records yet, of a segment with these keyspaces.
    pub(super) fn new(
        segment: &'segment Segment,
        superblock: &Superblock,
        keyspaces: &[KeyspaceEntry],
        memtable_budget: &Arc<MemtableBudget>,
        may_leave: bool,
    ) -> Self {
        let empty =
            |entry: &KeyspaceEntry| OfKeyspace { since: entry.log_sequence, memtable: None, large: BTreeMap::new() };
        RecoveredRecords {
            segment,
            next_keyspace: superblock.next_keyspace,
            keyspaces: keyspaces.iter().map(|entry| (entry.number, empty(entry))).collect(),
            count: 0,
            memtable_budget: Arc::clone(memtable_budget),
            may_leave,
            left_from: None,
            has_large: false,
        }
    }

    /// The number of records.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The place and number of the first record that was left out, because the memtables had no space. They have to be flushed first, for
    /// which the log has to be open.
    pub(super) fn left_from(&self) -> Option<(u64, u64)> {
        self.left_from
    }

    /// Whether a large value came after a record that was left out. Its extents must be taken before any other space. Only all records
    /// together tell which values are the newest, so one pass has to recover them all.
    pub(super) fn must_take_all(&self) -> bool {
        self.has_large && self.left_from.is_some()
    }

    /// Takes the log's next record in, unless its keyspace is gone or has it in a level.
    pub(super) fn take(&mut self, record: Replayed<'_>) -> Result<()> {
        if !matches!(record.kind, RecordKind::Put | RecordKind::Delete | RecordKind::Extents) {
            return Ok(());
        }
        if record.keyspace >= self.next_keyspace {
            // A keyspace is committed before its first record is written: there was a newer superblock than this one.
            let what = "a record's keyspace, which is unknown,";
            return Err(self.segment.damaged_superblock(Damage::Value { what, found: u64::from(record.keyspace) }));
        }
        let Some(of_keyspace) =
            self.keyspaces.get_mut(&record.keyspace).filter(|keyspace| record.sequence >= keyspace.since)
        else {
            return Ok(());
        };
        let Replayed { key, sequence, mut pointer, .. } = record;
        let place = pointer.offset();
        let first = of_keyspace.memtable.as_ref().map_or(sequence, |memtable| memtable.first_sequence);
        if sequence - first >= NUMBERS_MAX {
            let what = "the first record that a keyspace's levels lack";
            return Err(self.segment.damaged_superblock(Damage::Value { what, found: first }));
        }
        self.count += 1;
        if record.kind == RecordKind::Extents {
            self.has_large = true;
        } else if self.may_leave && !self.has_large && !self.memtable_budget.has_space(space_for(key)) {
            self.left_from.get_or_insert((pointer.offset(), sequence));
        }
        if self.left_from.is_some() {
            return Ok(());
        }
        if record.kind == RecordKind::Extents {
            let damaged = |damage| self.segment.device.damaged("a record of the log", pointer.offset(), damage);
            let value = LargeRecord::from_bytes(record.value).map_err(damaged)?;
            self.segment.count_garbage(pointer);
            let record_offset = mem::replace(&mut pointer, value.pointer()).offset();
            of_keyspace.large.insert(pointer.to_bits(), RecoveredLarge { record_offset, value });
        }
        let memtable =
            of_keyspace.memtable.get_or_insert_with(|| Memtable::new(sequence, place, &self.memtable_budget));
        let replaced = memtable.fill().insert(key, sequence, pointer);
        if let Some(replaced) = replaced {
            of_keyspace.large.remove(&replaced.to_bits());
            self.segment.count_garbage(replaced);
        }
        Ok(())
    }

    /// The place and number of the record at which the memtable of a keyspace has to begin: its first one, or the first that was left out.
    pub(super) fn begins_at(&self, number: u32) -> Option<(u64, u64)> {
        let memtable = self.keyspaces.get(&number).and_then(|of_keyspace| of_keyspace.memtable.as_ref());
        memtable.map(|memtable| (memtable.log_offset, memtable.first_sequence)).or(self.left_from)
    }

    /// Takes the extents of the newest large values, which no bitmap has yet. It comes after the last record, and before any other space is
    /// taken. The extents of replaced values stay free.
    pub(super) fn take_extents(&self) -> Result<()> {
        for (number, OfKeyspace { memtable, large, .. }) in &self.keyspaces {
            for RecoveredLarge { record_offset, value } in large.values() {
                if let Some(memtable) = memtable {
                    memtable.add_large(value);
                }
                for extent in value.extents() {
                    if !self.segment.allocator().take_found_run(extent, *number) {
                        let what = "the place of an extent, which is taken,";
                        let damage = Damage::Value { what, found: extent.offset };
                        return Err(self.segment.device.damaged("a record of the log", *record_offset, damage));
                    }
                }
            }
        }
        Ok(())
    }

    /// A keyspace's memtable. It can be taken once.
    pub(super) fn take_memtable(&mut self, number: u32) -> Option<Memtable> {
        self.keyspaces.remove(&number).and_then(|of_keyspace| of_keyspace.memtable)
    }
}
