//! The layout of a volume, which has two copies, and its growth while it is in use. A crash leaves the volume as it was, or longer.
//!
//! Growth takes these steps, each durable before the next. Nothing is written to new units before the last one:
//!
//! - make the file longer;
//! - write one copy of the table of segments and of the header, and then the other;
//! - commit the segment's new units.
//!
//! With one segment, the segment gets all new units. With several, they stay unused until a segment needs them.

use std::ops::Range;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::block::{Kind, Sealed, unseal};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, Group, grown, units_of};
use crate::format::volume_header::{
    HEADER_OFFSETS, SEGMENTS_A_TABLE, SegmentEntry, VolumeHeader, rows_of, segment_tables, segments_from_block,
    segments_to_block,
};
use crate::volume::committed::Changes;
use crate::volume::segment::Segment;
use crate::volume::space::give_own_units_space;
use crate::volume::{Layout, UNITS_MAX, Volume, groups_of};

impl Layout {
    /// The unit behind all segments' groups.
    pub(super) fn end_of_groups(&self) -> u64 {
        groups_of(&self.segments).map(Group::end).max().unwrap_or(1)
    }

    /// The next layout, in which the volume has at least that many units.
    pub(super) fn lengthened(&self, units: u64) -> Layout {
        let header = VolumeHeader { units: units.max(self.header.units), ..self.header };
        Layout { header, epoch: self.epoch + 1, segments: self.segments.clone() }
    }

    /// The next layout, in which a segment has some unused units more.
    pub(super) fn grown(&self, segment: u32, new: Range<u64>) -> Layout {
        let mut layout = self.lengthened(new.end);
        for segment in layout.segments.iter_mut().filter(|entry| entry.number == segment) {
            segment.groups = grown(&segment.groups, new.clone());
        }
        layout
    }

    /// The groups that count, wherever their own units are.
    fn places(segments: &[SegmentEntry]) -> Vec<(u32, u64, u64)> {
        let of_segment = |segment: &SegmentEntry| {
            let number = segment.number;
            segment.groups.iter().map(move |group| (number, group.first_unit, group.units)).collect::<Vec<_>>()
        };
        segments.iter().flat_map(of_segment).collect()
    }

    /// Writes both copies, one after the other, and asks `may_write` before each block. An owner that is stopped in between, while another
    /// one grows the volume, can be late with one block.
    pub(super) fn write(&self, device: &Device, may_write: &dyn Fn() -> Result<()>) -> Result<()> {
        let copies = [self.epoch, self.epoch + 1].map(|epoch| epoch as usize % 2);
        copies.into_iter().try_for_each(|copy| self.write_copy(device, copy, may_write))
    }

    /// The header comes last: it vouches for the table.
    fn write_copy(&self, device: &Device, copy: usize, may_write: &dyn Fn() -> Result<()>) -> Result<()> {
        let (table, header) = (segment_tables(0)[copy], HEADER_OFFSETS[copy]);
        may_write()?;
        device.write(table, &segments_to_block(self.header.uuid, &self.segments, table, self.epoch).0)?;
        device.flush()?;
        may_write()?;
        device.write(header, &self.header.to_block(header, self.epoch).0)?;
        device.flush()
    }

    /// Writes a copy again that differs from the other one, because of damage or a crash.
    pub(super) fn mend(&self, device: &Device, may_write: &dyn Fn() -> Result<()>) -> Result<()> {
        let is_right = |kind: Kind, offset: u64, says_so: &dyn Fn(&Sealed<'_>) -> bool| -> Result<bool> {
            let block = device.read_block(offset)?;
            Ok(unseal(&block.0, kind, offset).is_ok_and(|sealed| sealed.epoch == self.epoch && says_so(&sealed)))
        };
        let header_says_so =
            |sealed: &Sealed<'_>| VolumeHeader::from_block(sealed).is_ok_and(|found| found == self.header);
        let table_says_so = |sealed: &Sealed<'_>| {
            segments_from_block(sealed).is_ok_and(|found| Self::places(&found) == Self::places(&self.segments))
        };
        for (copy, (header, table)) in HEADER_OFFSETS.into_iter().zip(segment_tables(0)).enumerate() {
            if !is_right(Kind::VolumeHeader, header, &header_says_so)?
                || !is_right(Kind::SegmentTable, table, &table_says_so)?
            {
                tracing::warn!(volume = device.name(), copy, "the header or the table of segments is written again");
                self.write_copy(device, copy, may_write)?;
            }
        }
        Ok(())
    }
}

impl Volume {
    /// The volume's length in units.
    pub(crate) fn units(&self) -> u64 {
        self.layout.header.units
    }

    /// The volume's greatest length in units.
    pub(crate) fn units_max(&self) -> u64 {
        self.device.units_max().clamp(self.units(), UNITS_MAX)
    }

    /// Makes the volume that many units long. If it has one segment, that gets the new units; with several, each takes them as needed.
    pub(crate) fn grow(&mut self, segment: &Segment, units: u64) -> Result<()> {
        let (least, most) = ((self.units() + 1) * ALLOCATION_UNIT_BYTES, self.units_max() * ALLOCATION_UNIT_BYTES);
        if !(least..=most).contains(&(units * ALLOCATION_UNIT_BYTES)) {
            return Err(Error::VolumeLength { bytes: units * ALLOCATION_UNIT_BYTES, least, most });
        }
        let layout = match self.layout.segments.as_slice() {
            [only] => self.layout.grown(only.number, self.unused_from..units),
            _ => self.layout.lengthened(units),
        };
        self.change_for(segment, layout)?;
        self.finish_growth(segment)
    }

    /// Gives a segment up to `wanted` more units: unused ones, and if they are too few the volume grows. Returns whether it got any.
    pub(crate) fn give(&mut self, segment: &Segment, wanted: u64) -> Result<bool> {
        let end = self.units_max().min(self.unused_from + wanted);
        let layout = self.layout.grown(segment.number, self.unused_from..end);
        if Layout::places(&layout.segments) == Layout::places(&self.layout.segments) {
            return Ok(false);
        }
        self.change_for(segment, layout)?;
        self.finish_growth(segment)?;
        Ok(true)
    }

    /// Writes another layout, unless the segment was claimed.
    fn change_for(&mut self, segment: &Segment, layout: Layout) -> Result<()> {
        self.check_may_change(segment)?;
        self.change(layout, &|| segment.ownership.check_claims())
    }

    pub(super) fn check_may_change(&self, segment: &Segment) -> Result<()> {
        if let Some(why) = &self.failed {
            return Err(segment.ownership.stopped(why));
        }
        segment.ownership.check_claims()
    }

    /// Changes the volume to a layout.
    pub(super) fn change(&mut self, layout: Layout, may_write: &dyn Fn() -> Result<()>) -> Result<()> {
        let rows = rows_of(&layout.segments);
        if rows > SEGMENTS_A_TABLE {
            let why = "the table of segments has 63 rows, each with up to five groups";
            return Err(Error::Option { option: "rows of segments", value: rows as u64, why });
        }
        self.device.grow(layout.header.units * ALLOCATION_UNIT_BYTES)?;
        // Before the layout says that it is longer: growth must not begin if it cannot end for lack of space.
        layout.segments.iter().try_for_each(|segment| give_own_units_space(&self.device, &segment.groups))?;
        layout.write(&self.device, may_write).inspect_err(|error| self.failed = Some(error.with_causes()))?;
        self.unused_from = self.unused_from.max(layout.end_of_groups());
        self.layout = layout;
        Ok(())
    }

    /// Takes all units into use that the table gives a segment: a crash may have prevented that.
    pub(crate) fn finish_growth(&self, segment: &Segment) -> Result<()> {
        segment.grow(&self.segment(segment.number)?.groups)
    }
}

impl Segment {
    /// Takes more units into use, if these groups have more.
    pub(crate) fn grow(&self, groups: &[Group]) -> Result<()> {
        if units_of(groups) > self.allocator().units_in_all() {
            give_own_units_space(&self.device, groups)?;
            self.commit(Changes { groups: Some(groups.to_vec()), ..Changes::default() }, &[])?;
        }
        Ok(())
    }
}
