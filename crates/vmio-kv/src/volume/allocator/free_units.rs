//! The free units of an allocator.

use std::collections::BTreeSet;

/// The free units, by their space on the device.
#[derive(Default)]
pub(super) struct FreeUnits {
    /// Units with space: they are taken once they are within the write fence.
    pub(super) ready: BTreeSet<u64>,
    /// Units within the write fence that may be holes. Units beyond it are not listed: see `unused`.
    pub(super) hollow: BTreeSet<u64>,
    /// Units of both lists whose former contents the device may still hold.
    pub(super) discardable: BTreeSet<u64>,
    /// Units below this one, beyond the write fence and without space, were refused it by a full file system.
    pub(super) refused_end: u64,
    /// A unit was refused though there are holes.
    pub(super) lacks_space: bool,
    /// The file system had no space when it was asked last.
    pub(super) file_system_is_full: bool,
}

impl FreeUnits {
    pub(super) fn remove(&mut self, unit: u64) {
        self.ready.remove(&unit);
        self.hollow.remove(&unit);
        self.discardable.remove(&unit);
    }
}
