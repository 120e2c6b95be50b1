//! The volume's header and its table of segments.

use crate::check::found::{Found, Structure};
use crate::check::{Check, whole};
use crate::error::Result;
use crate::format::block::{Block, Kind, Uuid, unseal};
use crate::format::geometry::UNIT_BYTES;
use crate::format::volume_header::{HEADER_OFFSETS, VolumeHeader, segment_tables, segments_from_block};
use crate::volume::Volume;

const HEADER: &str = "the volume's header";
const TABLE: &str = "the table of segments";

impl Check<'_> {
    /// Checks all of it.
    pub(super) fn volume(&mut self) -> Result<()> {
        // What is no volume, or none for this program, is an error; what is damaged is a finding.
        let segments = match Volume::read(self.device) {
            Ok(segments) => segments,
            Err(crate::Error::Damaged { structure, offset, damage, .. }) => {
                self.wrong(structure, offset, damage);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let volume = self.headers();
        self.tables(volume);
        let mut all: Vec<_> = segments.iter().flat_map(|segment| &segment.groups).collect();
        all.sort_unstable_by_key(|group| group.first_unit);
        for pair in all.windows(2).filter(|pair| pair[0].first_unit + pair[0].units > pair[1].first_unit) {
            self.wrong(TABLE, segment_tables(0)[0], format!("unit {} is of two groups", pair[1].first_unit));
        }
        for segment in &segments {
            self.found(Structure::Superblock, || Found {
                what: "segment",
                offset: segment.groups.first().map_or(0, |group| group.first_unit * UNIT_BYTES),
                fields: vec![
                    ("number", u64::from(segment.number).into()),
                    ("uuid", hex(segment.uuid).into()),
                    ("units", segment.groups.iter().map(|group| group.units).sum::<u64>().into()),
                ],
            });
            self.segment(segment);
        }
        Ok(())
    }

    /// Both copies; returns whose they are.
    fn headers(&mut self) -> Option<Uuid> {
        let mut uuid = None;
        for offset in HEADER_OFFSETS {
            let Some(block) = self.copy(HEADER, offset) else { continue };
            match unseal(&block.0, Kind::VolumeHeader, offset).and_then(|sealed| VolumeHeader::from_block(&sealed)) {
                Ok(header) => {
                    uuid = Some(header.uuid);
                    self.found(Structure::Superblock, || Found {
                        what: "volume header",
                        offset,
                        fields: vec![
                            ("uuid", hex(header.uuid).into()),
                            ("version", u64::from(header.version).into()),
                            ("units", header.units.into()),
                            ("segments", u64::from(header.segments).into()),
                        ],
                    });
                }
                Err(damage) => self.wrong(HEADER, offset, damage),
            }
        }
        uuid
    }

    fn tables(&mut self, volume: Option<Uuid>) {
        for offset in segment_tables(0) {
            let (Some(block), Some(volume)) = (self.copy(TABLE, offset), volume) else { continue };
            let segments = whole(&block, Kind::SegmentTable, offset, volume);
            if let Err(damage) = segments.and_then(|sealed| segments_from_block(&sealed)) {
                self.wrong(TABLE, offset, damage);
            }
        }
    }

    /// A block that lies there twice, unless this copy was never written.
    pub(super) fn copy(&mut self, structure: &'static str, offset: u64) -> Option<Box<Block>> {
        match self.block(offset) {
            Ok(block) => (block.0 != Block::ZERO.0).then_some(block),
            Err(why) => {
                self.wrong(structure, offset, why);
                None
            }
        }
    }
}

/// A UUID as people write it.
pub(super) fn hex(uuid: Uuid) -> String {
    uuid::Uuid::from_bytes(uuid.0).to_string()
}
