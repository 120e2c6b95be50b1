//! What an opening finds in a segment's log, before the regions that it belongs to are there.

use std::collections::BTreeMap;
use std::mem;

use crate::error::{Damage, Result};
use crate::format::catalogue::RegionEntry;
use crate::format::extents::LargeRecord;
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::RecordKind;
use crate::format::superblock::Superblock;
use crate::log::Replayed;
use crate::region::Region;
use crate::volume::segment::Segment;

/// The records that no level has yet, by region.
pub(super) struct FoundRecords<'segment> {
    segment: &'segment Segment,
    /// The number that no region has had.
    next_region: u32,
    regions: BTreeMap<u32, OfRegion>,
    count: u64,
}

/// Those of a region.
struct OfRegion {
    /// Its levels have what is older.
    since: u64,
    /// Where the first of them is in the log, and its number.
    first: Option<(u64, u64)>,
    /// In the order in which they were written.
    records: Vec<Found>,
    /// What is large among the newest records of their keys.
    large: BTreeMap<Box<[u8]>, FoundLarge>,
}

struct Found {
    key: Box<[u8]>,
    sequence: u64,
    pointer: Pointer,
}

/// A record of a large value, and where it is.
struct FoundLarge {
    record_offset: u64,
    value: LargeRecord,
}

impl<'segment> FoundRecords<'segment> {
    /// None yet, of a segment with these regions.
    pub(super) fn new(segment: &'segment Segment, superblock: &Superblock, regions: &[RegionEntry]) -> Self {
        let empty = |since| OfRegion { since, first: None, records: Vec::new(), large: BTreeMap::new() };
        FoundRecords {
            segment,
            next_region: superblock.next_region,
            regions: regions.iter().map(|entry| (entry.number, empty(entry.log_sequence))).collect(),
            count: 0,
        }
    }

    /// How many they are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Takes a record in, the next of the log, if its region is there and does not have it in a level.
    pub(super) fn take(&mut self, record: Replayed<'_>) -> Result<()> {
        if !matches!(record.kind, RecordKind::Put | RecordKind::Delete | RecordKind::Extents) {
            return Ok(());
        }
        if record.region >= self.next_region {
            // Regions are committed before anything is put into them: this superblock is not the newest that there was.
            let what = "a record's region, which it does not know,";
            return Err(self.segment.damaged_superblock(Damage::Value { what, found: u64::from(record.region) }));
        }
        let Some(of_region) = self.regions.get_mut(&record.region).filter(|region| record.sequence >= region.since)
        else {
            return Ok(());
        };
        self.count += 1;
        of_region.first.get_or_insert((record.pointer.offset(), record.sequence));
        let Replayed { key, sequence, mut pointer, .. } = record;
        if record.kind == RecordKind::Extents {
            let damaged = |damage| self.segment.device.damaged("a record of the log", pointer.offset(), damage);
            let value = LargeRecord::from_bytes(record.value).map_err(damaged)?;
            self.segment.count_garbage(pointer);
            let record_offset = mem::replace(&mut pointer, value.pointer()).offset();
            of_region.large.insert(key.into(), FoundLarge { record_offset, value });
        } else if !of_region.large.is_empty() {
            of_region.large.remove(key);
        }
        of_region.records.push(Found { key: key.into(), sequence, pointer });
        Ok(())
    }

    /// Where the first record of a region is, and its number.
    pub(super) fn first(&self, number: u32) -> Option<(u64, u64)> {
        self.regions.get(&number).and_then(|of_region| of_region.first)
    }

    /// After the last record, before anybody looks for room: takes the extents of large values, which no bitmap has yet. Of values that were replaced
    /// nothing is taken, and nobody may give it back.
    pub(super) fn take_extents(&mut self) -> Result<()> {
        for (number, OfRegion { records, large, .. }) in &mut self.regions {
            records.retain(|Found { key, pointer, .. }| {
                let is_newest = || large.get(key).is_some_and(|found| found.value.pointer() == *pointer);
                pointer.kind() != PointerKind::Extents || is_newest()
            });
            for FoundLarge { record_offset, value } in large.values() {
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

    /// Puts a region's records into its level in memory.
    pub(super) fn replay(&mut self, number: u32, region: &Region) {
        let Some(OfRegion { records, large, .. }) = self.regions.remove(&number) else { return };
        large.values().for_each(|found| region.replay_large(&found.value));
        records.iter().for_each(|Found { key, sequence, pointer }| region.replay(key, *sequence, *pointer));
    }
}
