//! Attributes of inodes.

use super::Fs;
use crate::data;
use crate::error::Result;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::{Kind, Time};
use crate::inodes::loaded::Loaded;

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub ino: u64,
    /// Tells apart the inodes that have this number one after the other.
    pub generation: u32,
    /// Its kind.
    pub kind: Kind,
    /// Permissions: the lower 12 bits of a mode.
    pub mode: u32,
    /// Its names; a directory also counts itself and the directories in it.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its length.
    pub size: u64,
    /// The blocks of 4 KiB that it has.
    pub blocks: u64,
    /// Of a device, its number.
    pub device: u64,
    /// When it was read, as far as anybody has set it: reading does not.
    pub accessed: Time,
    /// When its contents changed.
    pub modified: Time,
    /// When anything of it changed.
    pub changed: Time,
}

/// Attributes that a call changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length.
    pub size: Option<u64>,
    /// When it was read.
    pub accessed: Option<Time>,
    /// When its contents changed.
    pub modified: Option<Time>,
}

impl Attributes {
    pub(super) fn of(loaded: &Loaded) -> Attributes {
        let inode = &loaded.inode;
        let is_device = matches!(inode.kind, Kind::CharDevice | Kind::BlockDevice);
        Attributes {
            ino: loaded.ino,
            generation: inode.generation,
            kind: inode.kind,
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            blocks: loaded.map.blocks() + loaded.attributes_run().map_or(0, |run| run.count),
            device: if is_device { inode.parent_or_device } else { 0 },
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        }
    }
}

impl Fs {
    /// The attributes of an inode.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`], [`crate::Error::Damaged`].
    pub fn attributes(&self, ino: u64) -> Result<Attributes> {
        Ok(Attributes::of(&self.node(ino)?.read()?.loaded))
    }

    /// Changes attributes, all or none.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoInode`], [`crate::Error::IsADirectory`] for a length, [`crate::Error::FileTooLarge`], [`crate::Error::NoSpace`].
    pub fn set_attributes(&self, ino: u64, changes: &Changes) -> Result<Attributes> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        if changes.size.is_some_and(|size| size > state.loaded.inode.size) {
            state.loaded.expect_file()?;
            state.loaded.expect_no_growth()?;
            self.part_from_lost(&mut state)?;
        }
        let result = self.change(&mut state.loaded, changes);
        self.settled(&mut state, result)
    }

    fn change(&self, loaded: &mut Loaded, changes: &Changes) -> Result<Attributes> {
        let now = Time::now();
        let remapped = match changes.size {
            Some(size) => {
                loaded.expect_file()?;
                loaded.expect_no_growth()?;
                if size < loaded.inode.size {
                    // Holders learn of each cut, also of one within a block.
                    loaded.expect_unleased((size / BLOCK_BYTES) as u32)?;
                }
                let remapped = data::resize(&self.volume, loaded, size)?;
                loaded.inode.modified = now;
                remapped
            }
            None => None,
        };
        let inode = &mut loaded.inode;
        inode.mode = changes.mode.map_or(inode.mode, |mode| mode & 0o7777);
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        inode.accessed = changes.accessed.unwrap_or(inode.accessed);
        inode.modified = changes.modified.unwrap_or(inode.modified);
        inode.changed = now;
        let mut transaction = self.volume.journals.begin(self.volume.home());
        loaded.store(&self.volume, &mut transaction, remapped.as_ref());
        transaction.commit()?;
        if let Some(remapped) = remapped {
            remapped.settle(&self.volume);
        }
        Ok(Attributes::of(loaded))
    }
}
