//! A volume: its allocation units, its segments, and the commits of each segment.

pub(crate) mod allocator;
pub(crate) mod block_runs;
pub(crate) mod chunk_generations;
mod commit;
pub(crate) mod committed;
pub(crate) mod content;
mod creation;
mod empty_segment;
pub(crate) mod epoch;
pub(crate) mod extents;
pub(crate) mod free_reserve;
pub(crate) mod garbage;
mod growth;
pub(crate) mod log_chunks;
pub(crate) mod merges;
pub(crate) mod ownership;
pub(crate) mod segment;
mod space;
pub(crate) mod space_reservation;
pub(crate) mod take_over;
mod taking;

use std::cmp::Reverse;
use std::sync::Arc;

use crate::device::{Device, Newest};
use crate::error::{Damage, Error, Result};
use crate::format::block::{Block, Kind, Sealed, random_uuid, unseal};
use crate::format::geometry::{
    ALLOCATION_UNIT_BYTES, BLOCK_BYTES, GROUP_UNITS_MAX, Group, VOLUME_BYTES_MAX, VOLUME_UNITS_MIN, groups,
};
use crate::format::volume_header::{
    HEADER_OFFSETS, MOVED_OWN_UNITS, ROW_GROUPS, SEGMENTS_A_TABLE, SegmentEntry, VERSION, VOLUME_FEATURES,
    VolumeHeader, segment_tables, segments_from_block, segments_to_block,
};

use crate::volume::content::creation_mark;
use crate::volume::ownership::Standing;
use crate::volume::space::give_own_units_space;

/// The longest volume in units: one block of the table of segments is in use.
pub(crate) const UNITS_MAX: u64 = (SEGMENTS_A_TABLE * ROW_GROUPS) as u64 * GROUP_UNITS_MAX;

/// The layout of a volume and its segments.
#[derive(Clone)]
pub(crate) struct Layout {
    pub(crate) header: VolumeHeader,
    /// The epoch of the header and the table of segments.
    pub(crate) epoch: u64,
    pub(crate) segments: Vec<SegmentEntry>,
}

/// An open volume.
pub(crate) struct Volume {
    pub(crate) device: Arc<Device>,
    layout: Layout,
    /// From this unit on no segment has any, and no other owner writes there.
    unused_from: u64,
    /// Our standing in each segment that existed when the volume was opened.
    standing: Vec<Standing>,
    /// Why growth has stopped: the layout on the device is not known.
    failed: Option<String>,
}

impl Volume {
    /// Lays out a volume with one segment. The headers are written last: a volume whose creation a crash has cut short counts as nothing.
    pub(crate) fn create(device: Arc<Device>, overwrites: bool) -> Result<Self> {
        check_length(device.len())?;
        if !overwrites {
            device.content()?.check_nothing(device.name())?;
        }
        let failed = |source| Error::Device { volume: device.name().to_owned(), action: "naming", offset: 0, source };
        let uuid = random_uuid().map_err(failed)?;
        device.allocate(0)?;
        HEADER_OFFSETS.into_iter().try_for_each(|offset| device.write(offset, &creation_mark(uuid, offset).0))?;
        device.flush()?;
        let units = device.len() / ALLOCATION_UNIT_BYTES;
        let segment = SegmentEntry { uuid: random_uuid().map_err(failed)?, number: 0, groups: groups(1, units) };
        empty_segment::format(&device, &segment)?;
        let segments = vec![segment];
        let epoch = 1;
        // Both copies: with one damaged copy it must still be a volume.
        for table in segment_tables(0) {
            device.write(table, &segments_to_block(uuid, &segments, table, epoch).0)?;
        }
        device.flush()?;
        let header = VolumeHeader { uuid, version: VERSION, incompatible: 0, units, segments: segments.len() as u32 };
        for offset in HEADER_OFFSETS {
            device.write(offset, &header.to_block(offset, epoch).0)?;
        }
        device.flush()?;
        Ok(Self::of(device, Layout { header, epoch, segments }))
    }

    /// Reads a volume's layout.
    pub(crate) fn open(device: Arc<Device>) -> Result<Self> {
        let layout = Self::read(&device)?;
        Ok(Self::of(device, layout))
    }

    fn of(device: Arc<Device>, layout: Layout) -> Self {
        Volume { device, unused_from: layout.end_of_groups(), layout, standing: Vec::new(), failed: None }
    }

    /// Makes both copies of the layout good. Not before a claim: a former owner may be writing them.
    pub(crate) fn mend(&self) -> Result<()> {
        let may_write = self.may_write();
        self.layout.mend(&self.device, &may_write)?;
        self.layout.segments.iter().try_for_each(|segment| segment.mend_owner(&self.device, &may_write))
    }

    /// Gives the volume's fixed blocks space, as far as there is any: older volumes were made without.
    pub(crate) fn ensure_fixed_space(&self) {
        let of_segments =
            || self.segments().iter().try_for_each(|entry| give_own_units_space(&self.device, &entry.groups));
        if let Err(error) = self.device.allocate(0).and_then(|()| of_segments()) {
            tracing::warn!(%error, "the volume's own blocks may have no space on the device");
        }
    }

    /// Notes the present claims, and reads the layout again. A later claim has a higher epoch than the owner that opens the volume with
    /// this, and fences it.
    pub(crate) fn note_claims(&mut self) -> Result<()> {
        let note = |segment: &SegmentEntry| Standing::unclaimed(&self.device, segment.number, segment.uuid);
        self.standing = self.layout.segments.iter().map(note).collect::<Result<_>>()?;
        self.layout = Self::read_again(&self.device)?;
        self.unused_from = self.layout.end_of_groups();
        Ok(())
    }

    /// The least epoch of a segment's new owner: claims from before its opening are lower, and later ones are higher.
    pub(crate) fn least_epoch(&self, number: u32) -> u64 {
        self.standing.iter().find(|standing| standing.number == number).map_or(0, |standing| standing.epoch)
    }

    /// The check of an opening before it writes a block of the header, the table or owners' records: whether another owner has claimed a
    /// segment. An opening that is stopped in between can be late with one block.
    fn may_write(&self) -> impl Fn() -> Result<()> + use<> {
        let (device, standing) = (Arc::clone(&self.device), self.standing.clone());
        move || standing.iter().try_for_each(|standing| standing.check(&device))
    }

    /// Reads the layout again: another owner may have made the volume longer.
    fn read_again(device: &Device) -> Result<Layout> {
        match Self::read(device) {
            Err(Error::Truncated { wanted, .. }) if wanted <= device.units_max() * ALLOCATION_UNIT_BYTES => {
                device.grow(wanted)?;
                Self::read(device)
            }
            read => read,
        }
    }

    /// Makes programs refuse the volume that do not know of moved own units: they would look for superblocks in their old places.
    fn say_that_own_units_moved(&mut self) -> Result<()> {
        if self.layout.header.incompatible & MOVED_OWN_UNITS != 0 {
            return Ok(());
        }
        self.layout.header.incompatible |= MOVED_OWN_UNITS;
        self.layout.epoch += 1;
        self.layout.write(&self.device, &self.may_write())
    }

    /// Reads the layout by the better header.
    pub(crate) fn read(device: &Device) -> Result<Layout> {
        let headers = read_headers(device)?;
        let Some((newest, offset)) = headers.first() else {
            return Err(Error::NoVolume { volume: device.name().to_owned() });
        };
        match (Self::read_by(device, newest, *offset), headers.get(1)) {
            // An owner that was fenced while it changed the layout may have written a header late, without its table.
            (Err(error @ Error::Damaged { .. }), Some((other, offset))) => Self::read_by(device, other, *offset)
                .map_err(|other| match other {
                    Error::Damaged { .. } => error,
                    other => other,
                }),
            (read, _) => read,
        }
    }

    /// Reads the layout by one header.
    fn read_by(device: &Device, block: &Block, offset: u64) -> Result<Layout> {
        let volume = || device.name().to_owned();
        let damaged = |offset, damage| device.damaged("the volume's header", offset, damage);
        let sealed = unseal(&block.0, Kind::VolumeHeader, offset).map_err(|damage| damaged(offset, damage))?;
        let epoch = sealed.epoch;
        let header = VolumeHeader::from_block(&sealed).map_err(|damage| damaged(offset, damage))?;
        if header.version > VERSION {
            return Err(Error::NewerVersion { volume: volume(), found: header.version, known: VERSION });
        }
        let unknown = header.incompatible & !VOLUME_FEATURES;
        if unknown != 0 {
            return Err(Error::UnknownFeatures { volume: volume(), features: unknown });
        }
        if header.units > VOLUME_BYTES_MAX / ALLOCATION_UNIT_BYTES
            || header.units * ALLOCATION_UNIT_BYTES > device.len()
        {
            return Err(Error::Truncated {
                volume: volume(),
                found: device.len(),
                wanted: header.units.saturating_mul(ALLOCATION_UNIT_BYTES),
            });
        }
        let tables = segment_tables(0);
        // An owner that was fenced while it made the volume longer may have written one of them late.
        let units_within = |sealed: &Sealed<'_>| {
            let segments = segments_from_block(sealed).unwrap_or_default();
            let end = groups_of(&segments).map(|group| group.end()).max();
            Some(end.filter(|end| *end <= header.units).unwrap_or(0))
        };
        let Some(Newest { copy, block, .. }) = device.read_best(Kind::SegmentTable, tables, epoch, units_within)?
        else {
            let damage = unseal(&Block::ZERO.0, Kind::SegmentTable, tables[0]).err();
            let damage = damage.unwrap_or(Damage::Magic);
            return Err(device.damaged("the table of segments", tables[0], damage));
        };
        let segments =
            unseal(&block.0, Kind::SegmentTable, tables[copy]).and_then(|sealed| segments_from_block(&sealed));
        let mut segments = segments
            .and_then(|segments| check_segments(segments, &header))
            .map_err(|damage| device.damaged("the table of segments", tables[copy], damage))?;
        segments.iter_mut().try_for_each(|segment| segment.find_own_units(device))?;
        Ok(Layout { header, epoch, segments })
    }

    /// All segments in the order of their numbers.
    pub(crate) fn segments(&self) -> &[SegmentEntry] {
        &self.layout.segments
    }

    /// The segment of a number.
    pub(crate) fn segment(&self, number: u32) -> Result<&SegmentEntry> {
        let none = Damage::Value { what: "the number of a segment that it lacks", found: u64::from(number) };
        let table = segment_tables(0)[0];
        let found = self.layout.segments.iter().find(|segment| segment.number == number);
        found.ok_or_else(|| self.device.damaged("the table of segments", table, none))
    }

    /// Sets a segment's groups, whose own units have moved.
    fn set_groups(&mut self, number: u32, groups: &[Group]) {
        if let Some(segment) = self.layout.segments.iter_mut().find(|segment| segment.number == number) {
            segment.groups = groups.to_vec();
        }
    }

    /// Forgets former owners, which could write to unused units.
    pub(crate) fn forget_former_owners(&mut self) {
        self.unused_from = self.layout.end_of_groups();
    }
}

/// The groups of some segments.
fn groups_of(segments: &[SegmentEntry]) -> impl Iterator<Item = Group> + '_ {
    segments.iter().flat_map(|segment| &segment.groups).copied()
}

/// Refuses a table that no volume can have. Segments' numbers rise from 0. Each segment has groups, which lie within the volume and do not
/// overlap.
fn check_segments(segments: Vec<SegmentEntry>, header: &VolumeHeader) -> Result<Vec<SegmentEntry>, Damage> {
    if segments.len() != header.segments as usize || segments.is_empty() {
        return Err(Damage::Value { what: "its number of segments", found: segments.len() as u64 });
    }
    let is_in_order = segments.windows(2).all(|pair| pair[0].number < pair[1].number) && segments[0].number == 0;
    let wrong = segments.iter().find(|segment| segment.groups.is_empty() || !is_in_order);
    if let Some(wrong) = wrong {
        return Err(Damage::Value {
            what: "the number of a segment, or of one before it,",
            found: wrong.number.into(),
        });
    }
    let mut groups: Vec<Group> = groups_of(&segments).collect();
    groups.sort_unstable_by_key(|group| group.first_unit);
    for (index, group) in groups.iter().enumerate() {
        let next = groups.get(index + 1).map_or(header.units, |next| next.first_unit);
        if group.first_unit == 0 || !(2..=GROUP_UNITS_MAX).contains(&group.units) || group.end() > next {
            return Err(Damage::Value { what: "the end of a group", found: group.end() });
        }
    }
    let rises = |segment: &SegmentEntry| segment.groups.windows(2).all(|pair| pair[0].first_unit < pair[1].first_unit);
    match segments.iter().find(|segment| !rises(segment)) {
        Some(wrong) => Err(Damage::Value { what: "the order of a segment's groups", found: wrong.number.into() }),
        None => Ok(segments),
    }
}

/// Whether a file of that length has a whole block there.
fn has_block(length: u64, offset: u64) -> bool {
    offset + BLOCK_BYTES as u64 <= length
}

/// The whole headers with their places, the newest first.
fn read_headers(device: &Device) -> Result<Vec<(Box<Block>, u64)>> {
    let units_there = |sealed: &Sealed<'_>| {
        let units = VolumeHeader::from_block(sealed).map_or(0, |header| header.units);
        if units.saturating_mul(ALLOCATION_UNIT_BYTES) <= device.len() { units } else { 0 }
    };
    let mut found = Vec::new();
    for offset in HEADER_OFFSETS.into_iter().filter(|offset| has_block(device.len(), *offset)) {
        let block = device.read_block(offset)?;
        let rank = unseal(&block.0, Kind::VolumeHeader, offset).map(|sealed| (sealed.epoch, units_there(&sealed)));
        found.extend(rank.ok().map(|rank| (rank, block, offset)));
    }
    found.sort_by_key(|(rank, ..)| Reverse(*rank));
    Ok(found.into_iter().map(|(_, block, offset)| (block, offset)).collect())
}

/// Refuses a length that no volume can have.
pub(crate) fn check_length(bytes: u64) -> Result<()> {
    let (least, most) = (VOLUME_UNITS_MIN * ALLOCATION_UNIT_BYTES, UNITS_MAX * ALLOCATION_UNIT_BYTES);
    if (least..=most).contains(&bytes) { Ok(()) } else { Err(Error::VolumeLength { bytes, least, most }) }
}

#[cfg(test)]
mod tests {
    use vmio::Cache;
    use vmio::backing::MemoryBacking;

    use super::*;

    #[test]
    fn a_header_without_its_table_is_skipped() -> Result<()> {
        for late in HEADER_OFFSETS {
            let cache = Cache::builder().capacity(8 << 20).build()?;
            let device = Arc::new(Device::open(&cache, Arc::new(MemoryBacking::new(64 * ALLOCATION_UNIT_BYTES)?), 0)?);
            let layout = Volume::create(Arc::clone(&device), false)?.layout;
            let header = VolumeHeader { segments: 2, ..layout.header };
            device.write(late, &header.to_block(late, layout.epoch + 1).0)?;
            let read = Volume::read(&device)?;
            assert!((read.header, read.epoch, read.segments.len()) == (layout.header, layout.epoch, 1));
            read.mend(&device, &|| Ok(()))?;
            for offset in HEADER_OFFSETS {
                assert_eq!(device.read_block(offset)?.0, layout.header.to_block(offset, layout.epoch).0);
            }
            // With both it is not known how many segments there are.
            for offset in HEADER_OFFSETS {
                device.write(offset, &header.to_block(offset, layout.epoch + 1).0)?;
            }
            assert!(matches!(Volume::read(&device), Err(Error::Damaged { .. })));
        }
        Ok(())
    }
}
