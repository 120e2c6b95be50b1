//! A volume: units for segments; of a segment what is taken, and commits of what is known of it.

pub(crate) mod allocator;
pub(crate) mod commit;
pub(crate) mod era;
pub(crate) mod reserve;
pub(crate) mod segment;
pub(crate) mod unit_lives;

use std::sync::Arc;

use crate::device::{Device, Newest};
use crate::error::{Damage, Error, Result};
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::geometry::{GROUP_UNITS_MAX, Group, UNIT_BYTES, VOLUME_BYTES_MAX, VOLUME_UNITS_MIN};
use crate::format::volume_header::{
    HEADER_OFFSETS, ROW_GROUPS, SEGMENTS_A_TABLE, SegmentEntry, VERSION, VolumeHeader, segment_tables,
    segments_from_block, segments_to_block,
};

/// What a volume says of itself, and its segments.
pub(crate) struct Volume {
    pub(crate) device: Arc<Device>,
    pub(crate) segments: Vec<SegmentEntry>,
}

impl Volume {
    /// Lays out a volume with one segment. The header comes last: without it there is no volume.
    pub(crate) fn create(device: Arc<Device>) -> Result<Self> {
        check_length(device.len())?;
        if find_header(&device)?.is_some() {
            return Err(Error::VolumeExists { volume: device.name().to_owned() });
        }
        let failed = |source| Error::Device { volume: device.name().to_owned(), action: "naming", offset: 0, source };
        let uuid = Uuid::random().map_err(failed)?;
        let units = device.len() / UNIT_BYTES;
        let segment = SegmentEntry { uuid: Uuid::random().map_err(failed)?, number: 0, groups: groups(1, units) };
        segment::format(&device, &segment)?;
        let segments = vec![segment];
        // Both copies: one that is damaged must not make the volume look like none.
        for table in segment_tables(0) {
            device.write(table, &segments_to_block(uuid, &segments, table, 1).0)?;
        }
        device.flush()?;
        let header = VolumeHeader { uuid, version: VERSION, incompatible: 0, units, segments: segments.len() as u32 };
        for offset in HEADER_OFFSETS {
            device.write(offset, &header.to_block(offset, 1).0)?;
        }
        device.flush()?;
        Ok(Volume { device, segments })
    }

    /// Reads what is there.
    pub(crate) fn open(device: Arc<Device>) -> Result<Self> {
        let segments = Self::read(&device)?;
        Ok(Volume { device, segments })
    }

    /// The segments of the volume that is there.
    pub(crate) fn read(device: &Device) -> Result<Vec<SegmentEntry>> {
        let volume = || device.name().to_owned();
        let Some((block, offset)) = find_header(device)? else {
            return Err(Error::NoVolume { volume: volume() });
        };
        let damaged = |offset, damage| device.damaged("the volume's header", offset, damage);
        let sealed = unseal(&block.0, Kind::VolumeHeader, offset).map_err(|damage| damaged(offset, damage))?;
        let epoch = sealed.epoch;
        let header = VolumeHeader::from_block(&sealed).map_err(|damage| damaged(offset, damage))?;
        if header.version > VERSION {
            return Err(Error::NewerVersion { volume: volume(), found: header.version, known: VERSION });
        }
        if header.incompatible != 0 {
            return Err(Error::UnknownFeatures { volume: volume(), features: header.incompatible });
        }
        if header.units > VOLUME_BYTES_MAX / UNIT_BYTES || header.units * UNIT_BYTES > device.len() {
            return Err(Error::Truncated {
                volume: volume(),
                found: device.len(),
                wanted: header.units.saturating_mul(UNIT_BYTES),
            });
        }
        let tables = segment_tables(0);
        let Some(Newest { copy, block, .. }) = device.read_pair(Kind::SegmentTable, tables, epoch)? else {
            let damage = unseal(&Block::ZERO.0, Kind::SegmentTable, tables[0]).err();
            let damage = damage.unwrap_or(Damage::Magic);
            return Err(device.damaged("the table of segments", tables[0], damage));
        };
        let segments =
            unseal(&block.0, Kind::SegmentTable, tables[copy]).and_then(|sealed| segments_from_block(&sealed));
        let segments = segments.map_err(|damage| device.damaged("the table of segments", tables[copy], damage))?;
        for group in segments.iter().flat_map(|segment| &segment.groups) {
            let end = group.first_unit + group.units;
            if group.first_unit == 0 || !(2..=GROUP_UNITS_MAX).contains(&group.units) || end > header.units {
                let damage = Damage::Value { what: "the end of a group", found: end };
                return Err(device.damaged("the table of segments", tables[copy], damage));
            }
        }
        Ok(segments)
    }

    /// The segment, of which there is one at present.
    pub(crate) fn take_segment(&mut self) -> Result<SegmentEntry> {
        let none = Damage::Count { found: 0, most: 1 };
        self.segments.pop().ok_or_else(|| self.device.damaged("the table of segments", segment_tables(0)[0], none))
    }
}

/// Whether a backing holds a volume, whatever version.
pub(crate) fn holds_volume(backing: &dyn vmio::backing::Backing) -> Result<bool> {
    for offset in HEADER_OFFSETS {
        let mut block = Box::new(Block::ZERO);
        let failed = |source| Error::Device { volume: backing.describe(), action: "reading", offset, source };
        backing.read_at(offset, &mut block.0).map_err(failed)?;
        if unseal(&block.0, Kind::VolumeHeader, offset).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The newest whole header.
fn find_header(device: &Device) -> Result<Option<(Box<Block>, u64)>> {
    let found = device.read_pair(Kind::VolumeHeader, HEADER_OFFSETS, u64::MAX)?;
    Ok(found.map(|newest| (newest.block, HEADER_OFFSETS[newest.copy])))
}

/// Refuses a length that no volume can have.
pub(crate) fn check_length(bytes: u64) -> Result<()> {
    // One block of the table of segments is in use.
    let groups = (SEGMENTS_A_TABLE * ROW_GROUPS) as u64;
    let (least, most) = (VOLUME_UNITS_MIN * UNIT_BYTES, groups * GROUP_UNITS_MAX * UNIT_BYTES);
    if (least..=most).contains(&bytes) { Ok(()) } else { Err(Error::VolumeLength { bytes, least, most }) }
}

/// Groups that cover these units of the volume.
fn groups(first_unit: u64, end: u64) -> Vec<Group> {
    (first_unit..end)
        .step_by(GROUP_UNITS_MAX as usize)
        .map(|first_unit| Group { first_unit, units: GROUP_UNITS_MAX.min(end - first_unit) })
        // A group's first unit is its own: one alone would be of no use.
        .filter(|group| group.units > 1)
        .collect()
}
