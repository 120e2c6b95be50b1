//! What an opening finds in a segment's log, before the keyspaces that it belongs to are there.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use crate::error::{Damage, Result};
use crate::format::catalogue::KeyspaceEntry;
use crate::format::extents::LargeRecord;
use crate::format::record::RecordKind;
use crate::format::superblock::Superblock;
use crate::log::Replayed;
use crate::keyspace::MemtableBudget;
use crate::keyspace::memtable::{Memtable, space_for};
use crate::volume::segment::Segment;

/// So many numbers no memtable comes by: it tells its records apart by fewer bits.
pub(super) const NUMBERS_MAX: u64 = 1 << 46;

/// The records that no level has yet, by keyspace.
pub(super) struct RecoveredRecords<'segment> {
    segment: &'segment Segment,
    /// The number that no keyspace has had.
    next_keyspace: u32,
    keyspaces: BTreeMap<u32, OfKeyspace>,
    count: u64,
    memtable_budget: Arc<MemtableBudget>,
    /// Whether somebody reads again what the levels have no space for.
    may_leave: bool,
    /// The first record that was left.
    left_from: Option<(u64, u64)>,
    /// There are large values.
    has_large: bool,
}

/// Those of a keyspace.
struct OfKeyspace {
    /// Its levels have what is older.
    since: u64,
    /// The newest of each key, from the first record on: what was overwritten takes no memory, however much of it the log has.
    memtable: Option<Memtable>,
    /// What is large among them, by what the level points to.
    large: BTreeMap<u64, RecoveredLarge>,
}

/// A record of a large value, and where it is.
struct RecoveredLarge {
    record_offset: u64,
    value: LargeRecord,
}

impl<'segment> RecoveredRecords<'segment> {
    /// None yet, of a segment with these keyspaces.
    pub(super) fn new(
        segment: &'segment Segment,
        superblock: &Superblock,
        keyspaces: &[KeyspaceEntry],
        memtable_budget: &Arc<MemtableBudget>,
        may_leave: bool,
    ) -> Self {
        let empty = |entry: &KeyspaceEntry| OfKeyspace { since: entry.log_sequence, memtable: None, large: BTreeMap::new() };
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

    /// How many they are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// From which record on, by its place and number, some were left, since the levels had no space for them: others have to be compacted
    /// first, and for that the log has to be there.
    pub(super) fn left_from(&self) -> Option<(u64, u64)> {
        self.left_from
    }

    /// Whether records were left, and a large value came after them. What those have taken has to be known before anybody takes space, and
    /// which of them are the newest of their keys: all has to be taken in.
    pub(super) fn must_take_all(&self) -> bool {
        self.has_large && self.left_from.is_some()
    }

    /// Takes a record in, the next of the log, if its keyspace is there and does not have it in a level.
    pub(super) fn take(&mut self, record: Replayed<'_>) -> Result<()> {
        if !matches!(record.kind, RecordKind::Put | RecordKind::Delete | RecordKind::Extents) {
            return Ok(());
        }
        if record.keyspace >= self.next_keyspace {
            // Keyspaces are committed before anything is put into them: this superblock is not the newest that there was.
            let what = "a record's keyspace, which it does not know,";
            return Err(self.segment.damaged_superblock(Damage::Value { what, found: u64::from(record.keyspace) }));
        }
        let Some(of_keyspace) = self.keyspaces.get_mut(&record.keyspace).filter(|keyspace| record.sequence >= keyspace.since)
        else {
            return Ok(());
        };
        let Replayed { key, sequence, mut pointer, .. } = record;
        let place = pointer.offset();
        let first = of_keyspace.memtable.as_ref().map_or(sequence, |memtable| memtable.first_sequence);
        if sequence - first >= NUMBERS_MAX {
            let what = "of the records that a keyspace's levels lack the first one's number";
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
        let memtable = of_keyspace.memtable.get_or_insert_with(|| Memtable::new(sequence, place, &self.memtable_budget));
        let replaced = memtable.fill().insert(key, sequence, pointer);
        if let Some(replaced) = replaced {
            of_keyspace.large.remove(&replaced.to_bits());
            self.segment.count_garbage(replaced);
        }
        Ok(())
    }

    /// Where the memtable of a keyspace has to begin, by a record's place and number: at the first that was found, or was left.
    pub(super) fn begins_at(&self, number: u32) -> Option<(u64, u64)> {
        let memtable = self.keyspaces.get(&number).and_then(|of_keyspace| of_keyspace.memtable.as_ref());
        memtable.map(|memtable| (memtable.log_offset, memtable.first_sequence)).or(self.left_from)
    }

    /// After the last record, before anybody looks for space: takes the extents of large values, which no bitmap has yet. Of values that were replaced
    /// nothing is taken, and nobody may give it back.
    pub(super) fn take_extents(&self) -> Result<()> {
        for (number, OfKeyspace { memtable, large, .. }) in &self.keyspaces {
            for RecoveredLarge { record_offset, value } in large.values() {
                if let Some(memtable) = memtable {
                    memtable.add_large(value);
                }
                for extent in value.extents() {
                    if !self.segment.allocator().take_found_run(extent, *number) {
                        let what = "the place of an extent, which is not free,";
                        let damage = Damage::Value { what, found: extent.offset };
                        return Err(self.segment.device.damaged("a record of the log", *record_offset, damage));
                    }
                }
            }
        }
        Ok(())
    }

    /// A keyspace's memtable; it is asked for once.
    pub(super) fn level(&mut self, number: u32) -> Option<Memtable> {
        self.keyspaces.remove(&number).and_then(|of_keyspace| of_keyspace.memtable)
    }
}
