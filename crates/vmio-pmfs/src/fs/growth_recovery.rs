//! After a crash: files become as long as the slots say in which processes have appended to them.

use vmio_pmfs_protocol::FREE;

use super::Fs;
use super::growing::Released;
use crate::check::Fault;
use crate::format::growth_slot::{GrowthSlot, SLOT_BYTES, Said};
use crate::inodes::growth_slots::{self, DAMAGED};
use crate::inodes::loaded::Loaded;

/// The outcome of a look at the slots of growing files.
#[derive(Default)]
pub(crate) struct Appended {
    /// Files that have become longer.
    pub(crate) longer: usize,
    /// Slots that made no sense, by their bytes of the medium. They say nothing now.
    pub(crate) ignored: Vec<Fault>,
}

impl Fs {
    /// Makes what was appended durably the files', and gives back what they had reserved behind it. At last no slot says anything, but for those of inodes
    /// that are to stay as they are.
    ///
    /// A slot that makes no sense says nothing: no damage of one keeps the file system from being mounted, or makes a file longer than its blocks.
    pub(crate) fn recover_appends(&self, blocks_are: Released, stays: impl Fn(u64) -> bool) -> Appended {
        let (medium, geometry) = (&self.volume.medium, self.geometry());
        let (mut appended, mut said) = (Appended::default(), Vec::new());
        for at in (0..geometry.areas).flat_map(|area| geometry.slots(area)) {
            let mut bytes = [0; SLOT_BYTES];
            medium.read(at, &mut bytes);
            let recovered = match GrowthSlot::from_bytes(&bytes, at) {
                Said::Nothing => continue,
                Said::Length(slot, _) if stays(slot.ino) => continue,
                Said::Length(slot, end) => self.recover_growth(&slot, end, blocks_are),
                Said::Damaged => Err(DAMAGED.to_owned()),
            };
            match recovered {
                Ok(is_longer) => appended.longer += usize::from(is_longer),
                Err(what) => appended.ignored.push(Fault { at, what }),
            }
            said.push(at);
        }
        // Only now nothing is to be done again after another crash.
        said.iter().for_each(|at| medium.write(*at, &FREE.to_le_bytes()));
        medium.fence();
        appended
    }

    /// Returns whether the file has become longer; an error if the slot is none of a file that grows.
    fn recover_growth(&self, slot: &GrowthSlot, end: u64, blocks_are: Released) -> Result<bool, String> {
        let mut file = Loaded::load(&self.volume, slot.ino).ok();
        let fault = growth_slots::fault(slot, end, file.as_ref());
        let file = match (&mut file, fault) {
            (Some(file), None) => file,
            (_, fault) => return Err(fault.unwrap_or_default()),
        };
        let is_longer = end > file.inode.size;
        if is_longer && let Err(error) = self.make_longer(file, end) {
            tracing::error!(%error, ino = slot.ino, end, "bytes that a process has appended are lost");
            return Ok(false);
        }
        if let Err(error) = self.release_behind_end(file, slot.reserved_from..slot.reserved_to, blocks_are) {
            tracing::warn!(%error, ino = slot.ino, "blocks stay behind the end of a file");
        }
        Ok(is_longer)
    }
}
