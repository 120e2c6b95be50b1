//! Creation of a segment in a volume that is in use. A crash leaves the volume as it was, perhaps with some unused units, or with the
//! segment.
//!
//! Creation takes these steps, each durable before the next:
//!
//! - make the file longer;
//! - write a header with that length, so that a new owner knows which units may be written to late;
//! - write the segment's own blocks;
//! - write the table of segments and the header that name it.

use zerocopy::IntoBytes;

use crate::error::{Error, FullPlace, Result};
use crate::format::block::{Block, random_uuid};
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, groups, units_of};
use crate::format::volume_header::{SEGMENTS_A_TABLE, SEVERAL_SEGMENTS, SegmentEntry};
use crate::volume::Volume;
use crate::volume::empty_segment::format;
use crate::volume::segment::Segment;

/// The most segments of a volume: half of the table's rows are for segments that grow.
pub(crate) const SEGMENTS_MAX: usize = SEGMENTS_A_TABLE / 2;

impl Volume {
    /// Creates a segment of `units` units. `owned` is an existing segment: a claim of that segment is a claim of all.
    pub(crate) fn create_segment(&mut self, owned: &Segment, units: u64) -> Result<SegmentEntry> {
        let failed =
            |source| Error::Device { volume: self.device.name().to_owned(), action: "naming", offset: 0, source };
        let uuid = random_uuid().map_err(failed)?;
        let numbers = self.layout.segments.iter().map(|segment| segment.number + 1);
        let number = numbers.max().unwrap_or(0);
        if number as usize >= SEGMENTS_MAX {
            let why = "a volume has 31 segments or fewer";
            return Err(Error::Option { option: "segments", value: u64::from(number) + 1, why });
        }
        let end = self.unused_from + units;
        if end > self.units_max() {
            let wanted = (end - self.layout.header.units) * ALLOCATION_UNIT_BYTES;
            return Err(Error::Full { volume: self.device.name().to_owned(), wanted, place: FullPlace::Volume });
        }
        let entry = SegmentEntry { uuid, number, groups: groups(self.unused_from, end) };
        debug_assert_eq!(units_of(&entry.groups), units);
        self.check_may_change(owned)?;
        let may_write = || owned.ownership.check_claims();
        if end > self.layout.header.units {
            self.change(self.layout.lengthened(end), &may_write)?;
        }
        // From here on a new owner leaves these units alone, or we see its claim now.
        may_write()?;
        let zeros = vec![Block::ZERO; ALLOCATION_UNIT_BLOCKS as usize];
        for group in &entry.groups {
            // Blocks of a segment whose creation was cut short must not be taken for this one's.
            self.device.write(group.own_unit * ALLOCATION_UNIT_BYTES, zeros.as_slice().as_bytes())?;
        }
        format(&self.device, &entry)?;
        let mut layout = self.layout.lengthened(end);
        layout.segments.push(entry.clone());
        layout.header.segments = layout.segments.len() as u32;
        // Programs that know volumes of one segment alone would use the last one.
        layout.header.incompatible |= SEVERAL_SEGMENTS;
        self.change(layout, &may_write)?;
        may_write()?;
        Ok(entry)
    }
}
