//! The slots of growing files that say something, also where it makes no sense.

use std::ops::Range;

use vmio_pmfs_protocol::{CLOSED, length_in};

use crate::format::geometry::Geometry;
use crate::format::growth_slot::{GrowthSlot, SLOT_BYTES, Said};
use crate::inodes::growth_slots::{self, DAMAGED};
use crate::inodes::loaded::Loaded;
use crate::inodes::read_inode;
use crate::medium::Medium;

/// A slot of a growing file that says something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFound {
    /// Where it lies.
    pub at: u64,
    /// The inode.
    pub ino: u64,
    /// Which of the inodes that have this number one after the other.
    pub generation: u32,
    /// The length that the file has with what was appended.
    pub length: u64,
    /// Whether it is closed: nobody stores another length.
    pub is_closed: bool,
    /// The blocks of the file that it got for its growth.
    pub reserved: Range<u32>,
    /// The reason why a mount ignores it, if it does.
    pub fault: Option<String>,
}

pub(super) fn read(medium: &dyn Medium, geometry: &Geometry) -> Vec<SlotFound> {
    let found = |at: u64| {
        let mut bytes = [0; SLOT_BYTES];
        medium.read(at, &mut bytes);
        let fault = match GrowthSlot::from_bytes(&bytes, at) {
            Said::Nothing => return None,
            Said::Damaged => Some(DAMAGED.to_owned()),
            Said::Length(slot, length) => {
                let file = read_inode(medium, geometry, slot.ino).ok().flatten();
                let file = file.and_then(|inode| Loaded::of(medium, geometry, slot.ino, inode).ok());
                growth_slots::fault(&slot, length, file.as_ref())
            }
        };
        let (word, GrowthSlot { ino, generation, reserved_from, reserved_to }) = GrowthSlot::unverified(&bytes);
        let (length, is_closed) = (length_in(word), word & CLOSED != 0);
        Some(SlotFound { at, ino, generation, length, is_closed, reserved: reserved_from..reserved_to, fault })
    };
    (0..geometry.areas).flat_map(|area| geometry.slots(area)).filter_map(found).collect()
}
