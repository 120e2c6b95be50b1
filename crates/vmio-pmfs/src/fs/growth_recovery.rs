//! After a crash: files become as long as the slots say in which processes have appended to them.

use super::Fs;
use crate::format::growth_slot::{FREE, GrowthSlot, SLOT_BYTES, Said};
use crate::inodes::growth_slots;
use crate::inodes::loaded::Loaded;

impl Fs {
    /// Makes what was appended durably the files', and gives back what they had reserved behind it. Returns how many files have become longer.
    ///
    /// A slot that makes no sense says nothing: no damage of one keeps the file system from being mounted, or makes a file longer than its blocks.
    pub(super) fn recover_appends(&self) -> usize {
        let (medium, geometry) = (&self.volume.medium, self.geometry());
        let (mut longer, mut said) = (0, Vec::new());
        for at in (0..geometry.areas).flat_map(|area| geometry.slots(area)) {
            let mut bytes = [0; SLOT_BYTES];
            medium.read(at, &mut bytes);
            match GrowthSlot::from_bytes(&bytes, at) {
                Said::Nothing => continue,
                Said::Length(slot, end) => longer += usize::from(self.recover_growth(at, &slot, end)),
                Said::Damaged => tracing::warn!(at, "the slot of a growing file is damaged: what it says is ignored"),
            }
            said.push(at);
        }
        // Only now nothing is to be done again after another crash.
        said.iter().for_each(|at| medium.write(*at, &FREE.to_le_bytes()));
        medium.fence();
        longer
    }

    fn recover_growth(&self, at: u64, slot: &GrowthSlot, end: u64) -> bool {
        let mut file = Loaded::load(&self.volume, slot.ino).ok();
        let fault = growth_slots::fault(slot, end, file.as_ref());
        let (Some(file), None) = (&mut file, &fault) else {
            tracing::warn!(at, fault, "the slot of a growing file is damaged: what it says is ignored");
            return false;
        };
        let is_longer = end > file.inode.size;
        if is_longer && let Err(error) = self.make_longer(file, end) {
            tracing::error!(%error, ino = slot.ino, end, "bytes that a process has appended are lost");
            return false;
        }
        if let Err(error) = self.release_behind_end(file, slot.reserved_from..slot.reserved_to) {
            tracing::warn!(%error, ino = slot.ino, "blocks stay behind the end of a file");
        }
        is_longer
    }
}
