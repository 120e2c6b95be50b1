//! Checks the volume's header and its table of segments.

use crate::check::found::{Found, Structure};
use crate::check::{Check, whole};
use crate::error::{Damage, Result};
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::owner::{OwnerRecord, owner_records};
use crate::format::volume_header::{HEADER_OFFSETS, SegmentEntry, VolumeHeader, segment_tables, segments_from_block};
use crate::volume::{Layout, Volume};

const HEADER: &str = "the volume's header";
const OWNER: &str = "an owner's record";
const TABLE: &str = "the table of segments";

impl Check<'_> {
    /// Checks the whole volume.
    pub(super) fn volume(&mut self) -> Result<()> {
        // No volume, or one that this program does not know, is an error; damage is a finding.
        let Layout { header, epoch, segments } = match Volume::read(self.device) {
            Ok(layout) => layout,
            Err(crate::Error::Damaged { structure, offset, damage, .. }) => {
                self.wrong(structure, offset, damage);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // One copy may be torn in a volume that has grown, or was about to.
        let may_be_torn = epoch > 1 || self.device.len() > header.units * ALLOCATION_UNIT_BYTES;
        self.headers(may_be_torn);
        self.tables(header.uuid, may_be_torn);
        self.report.segments = segments.len() as u64;
        for segment in &segments {
            self.found(Structure::Superblock, || Found {
                what: "segment",
                offset: segment.groups.first().map_or(0, |group| group.first_unit * ALLOCATION_UNIT_BYTES),
                fields: vec![
                    ("number", u64::from(segment.number).into()),
                    ("uuid", segment.uuid.to_string().into()),
                    ("units", segment.groups.iter().map(|group| group.units).sum::<u64>().into()),
                ],
            });
            self.owners(segment);
            self.segment(segment);
        }
        Ok(())
    }

    /// Checks the records of owners that have taken over the segment. A record in force is stored twice; opening repairs the second copy.
    fn owners(&mut self, segment: &SegmentEntry) {
        for offset in owner_records(segment.number) {
            let Some(block) = self.copy(OWNER, offset) else { continue };
            if block.0 == Block::ZERO.0 {
                continue;
            }
            let record =
                whole(&block, Kind::Owner, offset, segment.uuid).and_then(|sealed| OwnerRecord::from_block(&sealed));
            match record {
                Ok(record) => self.found(Structure::Superblock, || Found {
                    what: "owner",
                    offset,
                    fields: vec![
                        ("segment", u64::from(segment.number).into()),
                        ("owner_epoch", record.owner_epoch.into()),
                        ("is_in_force", u64::from(record.is_in_force()).into()),
                        ("write_fence", record.write_fence.into()),
                    ],
                }),
                Err(damage) => self.note(OWNER, offset, format!("{damage}: a take-over was cut short")),
            }
        }
    }

    /// Checks both copies.
    fn headers(&mut self, may_be_torn: bool) {
        for offset in HEADER_OFFSETS {
            let Some(block) = self.copy(HEADER, offset) else { continue };
            match unseal(&block.0, Kind::VolumeHeader, offset).and_then(|sealed| VolumeHeader::from_block(&sealed)) {
                Ok(header) => {
                    self.found(Structure::Superblock, || Found {
                        what: "volume header",
                        offset,
                        fields: vec![
                            ("uuid", header.uuid.to_string().into()),
                            ("version", u64::from(header.version).into()),
                            ("units", header.units.into()),
                            ("segments", u64::from(header.segments).into()),
                        ],
                    });
                }
                Err(damage) => self.damaged_copy(HEADER, offset, &block, may_be_torn, damage),
            }
        }
    }

    fn tables(&mut self, volume: Uuid, may_be_torn: bool) {
        for offset in segment_tables(0) {
            let Some(block) = self.copy(TABLE, offset) else { continue };
            let segments = whole(&block, Kind::SegmentTable, offset, volume);
            if let Err(damage) = segments.and_then(|sealed| segments_from_block(&sealed)) {
                self.damaged_copy(TABLE, offset, &block, may_be_torn, damage);
            }
        }
    }

    /// Reports a damaged copy whose other copy is whole.
    fn damaged_copy(&mut self, what: &'static str, offset: u64, block: &Block, may_be_torn: bool, damage: Damage) {
        // Both were written when the volume was created: no crash leaves zeros.
        if may_be_torn && block.0 != Block::ZERO.0 {
            self.note(what, offset, format!("{damage}: growth or creation was cut short, and the other copy counts"));
        } else {
            self.wrong(what, offset, damage);
        }
    }

    /// Reads a copy of a block that is stored twice.
    pub(super) fn copy(&mut self, structure: &'static str, offset: u64) -> Option<Box<Block>> {
        match self.block(offset) {
            Ok(block) => Some(block),
            Err(why) => {
                self.wrong(structure, offset, why);
                None
            }
        }
    }
}
