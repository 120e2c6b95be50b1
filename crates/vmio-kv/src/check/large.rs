//! Checks large values: heads and pieces must be whole, and nothing else may have their blocks.

use std::collections::BTreeMap;

use crate::check::Check;
use crate::check::state::State;
use crate::error::Damage;
use crate::format::block::Uuid;
use crate::format::catalogue::KeyspaceEntry;
use crate::format::extents::{Extent, Head, LargeRecord, PIECE_BYTES, head_extent};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES};
use crate::format::pointer::Pointer;
use crate::format::record::{FRONT_BYTES, Record, RecordKind, Seed};
use crate::format::unit_table::Purpose;

const HEAD: &str = "the head of a large value";
const EXTENT: &str = "an extent";

/// A log record of a large value, and its place.
struct Placed {
    offset: u64,
    large: LargeRecord,
}

/// A keyspace, a key, and the record's contents if the value is large.
type Seen = (u32, Vec<u8>, Option<Placed>);

/// Large values that only the log refers to, as recovery would find them.
#[derive(Default)]
pub(super) struct LargeInLog {
    /// For each keyspace, the sequence number from which on no tree has its records.
    since: BTreeMap<u32, u64>,
    /// The large values whose log records are the newest of their keys.
    newest: BTreeMap<(u32, Vec<u8>), Placed>,
    /// Records of a batch whose last record has not come yet.
    batch: Vec<Seen>,
}

impl LargeInLog {
    pub(super) fn new(keyspaces: &[KeyspaceEntry]) -> Self {
        let since = keyspaces.iter().map(|keyspace| (keyspace.number, keyspace.log_sequence)).collect();
        LargeInLog { since, ..LargeInLog::default() }
    }

    /// The log continues after it was torn: an unfinished batch does not count.
    pub(super) fn begin_anew(&mut self) {
        self.batch.clear();
    }

    /// Takes the next record.
    pub(super) fn see(&mut self, record: &Record<'_>, offset: u64) -> Result<(), Damage> {
        let value = match record.kind {
            RecordKind::Extents => Some(Placed { offset, large: LargeRecord::from_bytes(record.value)? }),
            RecordKind::Put | RecordKind::Delete => None,
            _ => return Ok(()),
        };
        if self.since.get(&record.keyspace).is_some_and(|since| record.sequence >= *since) {
            self.batch.push((record.keyspace, record.key.to_vec(), value));
        }
        if !record.continues {
            for (keyspace, key, value) in self.batch.drain(..) {
                match value {
                    Some(value) => drop(self.newest.insert((keyspace, key), value)),
                    None => drop(self.newest.remove(&(keyspace, key))),
                }
            }
        }
        Ok(())
    }
}

/// A head that was read.
pub(super) struct FoundHead {
    pub(super) keyspace: u32,
    pub(super) key: Vec<u8>,
    /// The epoch in which the head was written.
    pub(super) epoch: u64,
    /// Length of the head.
    pub(super) bytes: u32,
    pub(super) head: Head,
}

impl FoundHead {
    pub(super) fn pointer(&self, offset: u64, number: u32) -> Pointer {
        Pointer::of_head(offset, number, self.bytes)
    }
}

impl Check<'_> {
    /// Checks the large values that only the log refers to: the bitmap does not include them yet.
    pub(super) fn large_in_log(&mut self, state: &mut State, large: LargeInLog) {
        for ((keyspace, key), Placed { offset: record, large: value }) in large.newest {
            for extent in value.extents() {
                let conflict = blocks_of(extent).find_map(|block| state.owners.own_pending(block).err());
                if let Some(conflict) = conflict {
                    self.wrong(EXTENT, extent.offset, conflict);
                }
            }
            match self.head(state.uuid, value.head_offset, value.head_number) {
                Ok(found) if (found.keyspace, &found.key, found.bytes) != (keyspace, &key, value.head_bytes) => {
                    self.wrong(HEAD, value.head_offset, format!("the record at byte {record} is of another value"));
                }
                Ok(found) if found.head.list != value.list => {
                    self.wrong(HEAD, value.head_offset, format!("the record at byte {record} has other extents"));
                }
                Ok(found) => self.pieces(&found.head),
                Err(why) => self.wrong(HEAD, value.head_offset, why),
            }
        }
    }

    /// Checks a large value that an entry of a tree refers to.
    pub(super) fn large_in_tree(&mut self, state: &mut State, offset: u64, found: &FoundHead) {
        let own = found.head.list.extents.iter().copied().map(|extent| (EXTENT, extent));
        for (structure, extent) in own.chain([(HEAD, head_extent(offset, found.bytes))]) {
            // One problem for each extent is enough.
            let before = self.report.problem_count;
            for block in blocks_of(extent) {
                let _ = self.own(state, structure, block, Purpose::Extents, found.keyspace);
                if self.report.problem_count > before {
                    break;
                }
            }
        }
        self.pieces(&found.head);
    }

    /// Reads a head.
    pub(super) fn head(&self, uuid: Uuid, offset: u64, number: u32) -> Result<FoundHead, String> {
        let at = (offset % ALLOCATION_UNIT_BYTES) as usize;
        if !offset.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(Damage::Value { what: "its place", found: offset }.to_string());
        }
        let front = self.bytes(offset, FRONT_BYTES)?;
        let length = front.first_chunk().ok_or(Damage::Length).and_then(Record::length);
        let length = length.map_err(|damage| damage.to_string())?;
        if at + length > ALLOCATION_UNIT_BYTES as usize {
            return Err(Damage::Length.to_string());
        }
        let bytes = self.bytes(offset, length)?;
        let record = Record::read(Seed::of_head(uuid, offset, number), &bytes).map_err(|damage| damage.to_string())?;
        if record.kind != RecordKind::Extents {
            return Err(format!("it is of kind {:?}", record.kind));
        }
        let head = Head::from_bytes(record.value).map_err(|damage| damage.to_string())?;
        let (keyspace, key, epoch) = (record.keyspace, record.key.to_vec(), record.sequence);
        Ok(FoundHead { keyspace, key, epoch, bytes: length as u32, head })
    }

    /// Checks all bytes of a value.
    fn pieces(&mut self, head: &Head) {
        self.report.large_values += 1;
        self.report.large_bytes += head.list.value_bytes;
        self.progress("large values", self.report.large_bytes, 0);
        let mut left = head.list.value_bytes;
        let mut checksums = head.checksums.iter();
        for extent in &head.list.extents {
            for offset in (extent.offset..extent.offset + extent.bytes()).step_by(PIECE_BYTES) {
                let length = left.min(PIECE_BYTES as u64);
                left -= length;
                let checksum = checksums.next();
                match self.bytes(offset, length as usize) {
                    Ok(bytes) if Some(&crc32c::crc32c(&bytes)) == checksum => {}
                    Ok(_) => self.wrong(EXTENT, offset, Damage::Checksum),
                    Err(why) => self.wrong(EXTENT, offset, why),
                }
            }
        }
    }
}

/// Places of an extent's blocks.
fn blocks_of(extent: Extent) -> impl Iterator<Item = u64> {
    (extent.offset..extent.offset + extent.bytes()).step_by(BLOCK_BYTES)
}
