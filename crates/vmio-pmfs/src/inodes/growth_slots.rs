//! The slots of growing files that are free.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::loaded::Loaded;
use crate::format::geometry::{BLOCK_BYTES, Geometry};
use crate::format::growth_slot::GrowthSlot;
use crate::format::inode::{FILE_BYTES_MAX, Kind};

/// The slots of growing files that are free, by area, each by its byte of the medium.
pub(crate) struct GrowthSlots {
    geometry: Geometry,
    free: Vec<Mutex<Vec<u64>>>,
    /// Slots that a process may still store to, though it has lost its lease. They are nobody's before it is gone.
    kept: Mutex<BTreeMap<u64, Vec<u64>>>,
}

impl GrowthSlots {
    /// All of them.
    pub(crate) fn new(geometry: &Geometry) -> GrowthSlots {
        let free = (0..geometry.areas).map(|area| Mutex::new(geometry.slots(area).rev().collect())).collect();
        GrowthSlots { geometry: *geometry, free, kept: Mutex::default() }
    }

    /// Takes one, of this area if there is one.
    pub(crate) fn take(&self, home: u32) -> Option<u64> {
        let areas = (home as usize..self.free.len()).chain(0..home as usize);
        areas.into_iter().find_map(|area| self.free[area].lock().pop())
    }

    /// Gives one back that no process stores to any more.
    pub(crate) fn give_back(&self, at: u64) {
        self.free[self.geometry.area_of(at / BLOCK_BYTES) as usize].lock().push(at);
    }

    /// Gives one back once its holder is gone.
    pub(crate) fn keep(&self, holder: u64, at: u64) {
        self.kept.lock().entry(holder).or_default().push(at);
    }

    /// A holder is gone.
    pub(crate) fn holder_is_gone(&self, holder: u64) {
        let kept = self.kept.lock().remove(&holder);
        kept.into_iter().flatten().for_each(|at| self.give_back(at));
    }
}

/// The fault of a slot whose bytes do not fit each other.
pub(crate) const DAMAGED: &str =
    "the slot of a growing file has another checksum than its bytes, or another check than its length";

/// The reason why a slot that says a length can be no file's, or not the present one's of its inode.
pub(crate) fn fault(slot: &GrowthSlot, end: u64, file: Option<&Loaded>) -> Option<String> {
    let GrowthSlot { ino, generation, .. } = *slot;
    let of_this = |file: &&Loaded| file.inode.kind == Kind::File && file.inode.generation == generation;
    let Some(file) = file.filter(of_this) else {
        return Some(format!("generation {generation} of file {ino} grows, and is not there"));
    };
    let size = file.inode.size;
    if end > FILE_BYTES_MAX {
        return Some(format!("file {ino} grows to {end}, and no file is so long"));
    }
    if end < size {
        return Some(format!("file {ino} of {size} bytes grows from {end}"));
    }
    let blocks = (size / BLOCK_BYTES) as u32..u32::try_from(end.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX);
    (end > size && file.map.has_hole(&blocks)).then(|| format!("file {ino} grows to {end}, and has no blocks there"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_taken_once_and_a_kept_one_waits_for_its_holder() {
        let geometry = Geometry::of(64 << 20, 2);
        let slots = GrowthSlots::new(&geometry);
        let mut taken: Vec<u64> = std::iter::from_fn(|| slots.take(1)).collect();
        assert_eq!(taken[0], geometry.slots_at(1));
        taken.sort_unstable();
        assert_eq!(taken, geometry.slots(0).chain(geometry.slots(1)).collect::<Vec<_>>());
        slots.keep(7, taken[0]);
        assert_eq!(slots.take(0), None);
        slots.holder_is_gone(8);
        assert_eq!(slots.take(0), None);
        slots.holder_is_gone(7);
        assert_eq!(slots.take(1), Some(taken[0]));
        slots.give_back(taken[600]);
        assert_eq!(slots.take(0), Some(taken[600]));
    }
}
