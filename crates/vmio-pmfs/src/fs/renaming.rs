//! Renaming.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;

use super::Fs;
use super::names::Replace;
use super::node::{Node, State};
use crate::directories::{self, Known, Room};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, check_name};
use crate::format::geometry::ROOT;
use crate::format::inode::{Kind, LINKS_MAX, Time};

/// The two directories of a rename, locked.
pub(super) struct Directories<'nodes> {
    pub(super) from: RwLockWriteGuard<'nodes, State>,
    /// Nothing if it is the same.
    pub(super) to: Option<RwLockWriteGuard<'nodes, State>>,
}

impl<'nodes> Directories<'nodes> {
    pub(super) fn to(&mut self) -> &mut RwLockWriteGuard<'nodes, State> {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// A rename that has been found to be possible.
struct Move<'names> {
    name: &'names [u8],
    known: Known,
    node: Arc<Node>,
    new_name: &'names [u8],
    /// The entry that has the new name now.
    target: Option<Known>,
    target_node: Option<Arc<Node>>,
}

impl Fs {
    /// Gives an inode a name in place of another, atomically. Another inode that had the new name loses it.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`], [`Error::EntryExists`] with [`Replace::No`], [`Error::IntoItself`], [`Error::NotEmpty`],
    /// [`Error::IsADirectory`] and [`Error::NotADirectory`] if only one of both is a directory, and those of [`Self::create`].
    pub fn rename(&self, from: u64, name: &[u8], to: u64, new_name: &[u8], replace: Replace) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let _alone = self.renames.lock();
        let (from_node, to_node) = (self.directory_to_rename_in(from)?, self.directory_to_rename_in(to)?);
        let mut locked = self.lock_both(&from_node, &to_node)?;
        let known = locked.from.directory().1.get(name).ok_or_else(|| Error::no_entry(from, name))?;
        if locked.to().loaded.inode.links == 0 {
            return Err(Error::no_entry(to, new_name));
        }
        let target = locked.to().directory().1.get(new_name);
        let node = self.child(&locked.from.loaded, known)?;
        let target_node = target.map(|target| self.child(&locked.to().loaded, target)).transpose()?;
        if let Some(target) = target {
            if replace == Replace::No {
                return Err(Error::entry_exists(to, new_name));
            }
            if target.ino == known.ino {
                return Ok(());
            }
            match (known.kind == Kind::Directory, target.kind == Kind::Directory) {
                (true, false) => return Err(Error::NotADirectory { ino: target.ino }),
                (false, true) => return Err(Error::IsADirectory { ino: target.ino }),
                _ => (),
            }
        }
        if known.kind == Kind::Directory && self.is_within(&to_node, known.ino)? {
            return Err(Error::IntoItself { ino: known.ino });
        }
        // A directory above the other one has an entry. It is not locked to find that out: locks go down the tree.
        if let Some(target) = target
            && target.kind == Kind::Directory
            && self.is_within(&from_node, target.ino)?
        {
            return Err(Error::NotEmpty { ino: target.ino });
        }
        self.move_entry(&mut locked, &Move { name, known, node, new_name, target, target_node })
    }

    /// Locks two directories, one above the other first.
    pub(super) fn lock_both<'nodes>(
        &self,
        from: &'nodes Arc<Node>,
        to: &'nodes Arc<Node>,
    ) -> Result<Directories<'nodes>> {
        if from.ino == to.ino {
            return Ok(Directories { from: from.write_directory(&self.volume)?, to: None });
        }
        let from_first = self.is_within(to, from.ino)? || (!self.is_within(from, to.ino)? && from.ino < to.ino);
        if from_first {
            let from = from.write_directory(&self.volume)?;
            Ok(Directories { from, to: Some(to.write_directory(&self.volume)?) })
        } else {
            let to = to.write_directory(&self.volume)?;
            Ok(Directories { from: from.write_directory(&self.volume)?, to: Some(to) })
        }
    }

    /// Whether a directory is this one or somewhere in it. The lock of renames is held.
    pub(super) fn is_within(&self, node: &Arc<Node>, directory: u64) -> Result<bool> {
        let mut at = Arc::clone(node);
        // A cycle, which only damage makes, has an end here.
        for _ in 0..self.geometry().all_inodes() {
            if at.ino == directory {
                return Ok(true);
            }
            if at.ino == ROOT {
                return Ok(false);
            }
            at = self.node(at.parent())?;
        }
        Ok(false)
    }

    fn move_entry(&self, locked: &mut Directories<'_>, moved: &Move<'_>) -> Result<()> {
        let mut target = match &moved.target_node {
            Some(node) if moved.known.kind == Kind::Directory => {
                let mut state = node.write_directory(&self.volume)?;
                if !state.directory().1.is_empty() {
                    return Err(Error::NotEmpty { ino: node.ino });
                }
                Some(state)
            }
            Some(node) => Some(node.write()?),
            None => None,
        };
        let mut state = moved.node.write()?;
        let result = self.commit_move(locked, moved, &mut state, target.as_mut());
        let result = match &mut target {
            Some(target) => self.settled(target, result),
            None => result,
        };
        let result = self.settled(&mut state, result);
        let result = match &mut locked.to {
            Some(to) => self.settled(to, result),
            None => result,
        };
        let ends = self.settled(&mut locked.from, result)?;
        if state.is_directory() {
            moved.node.set_parent(state.loaded.inode.parent_or_device);
        }
        if let Some(target) = target.as_mut().filter(|_| ends) {
            self.forget(target);
        }
        Ok(())
    }

    /// Returns whether the inode that had the new name has ended.
    fn commit_move(
        &self,
        locked: &mut Directories<'_>,
        moved: &Move<'_>,
        state: &mut State,
        target: Option<&mut RwLockWriteGuard<'_, State>>,
    ) -> Result<bool> {
        let now = Time::now();
        let is_directory = u32::from(state.is_directory());
        let is_same = locked.to.is_none();
        let entry = Entry { ino: moved.known.ino, kind: moved.known.kind, name: moved.new_name.to_vec() };
        let room = match moved.target {
            Some(_) => None,
            None => {
                let (directory, index) = locked.to().directory();
                Some(Room::find(&self.volume, directory, index, moved.new_name.len())?)
            }
        };
        let mut transaction = self.volume.journals.begin(self.volume.home());
        let (directory, _) = locked.to().directory();
        if moved.target.is_none() && !is_same && directory.inode.links >= LINKS_MAX {
            return Err(Error::TooManyLinks { ino: directory.ino });
        }
        // The target's directory gets one and loses the replaced one.
        directory.inode.links += is_directory;
        directory.inode.links -= if target.is_some() { is_directory } else { 0 };
        match (&room, moved.target) {
            (Some(room), _) => room.put(&mut transaction, directory, &entry),
            (None, Some(known)) => directories::retarget(&mut transaction, directory, known.slot, &entry),
            (None, None) => (),
        }
        (directory.inode.modified, directory.inode.changed) = (now, now);
        if state.is_directory() {
            state.loaded.inode.parent_or_device = directory.ino;
        }
        state.loaded.inode.changed = now;
        state.loaded.store(&self.volume, &mut transaction, None);
        let (directory, _) = locked.from.directory();
        directories::erase(&mut transaction, directory, moved.known.slot);
        (directory.inode.modified, directory.inode.changed) = (now, now);
        directory.inode.links = directory.inode.links.saturating_sub(is_directory);
        let remapped = room.as_ref().and_then(Room::remapped);
        directory.store(&self.volume, &mut transaction, if is_same { remapped } else { None });
        if let Some(to) = &mut locked.to {
            to.directory().0.store(&self.volume, &mut transaction, remapped);
        }
        let ends = target.is_some_and(|target| self.drop_link(target, &mut transaction, now));
        transaction.commit()?;
        locked.from.directory().1.remove(moved.name);
        let (_, index) = locked.to().directory();
        match room {
            Some(room) => room.settle(&self.volume, index, entry),
            None => index.retarget(moved.new_name, entry.ino, entry.kind),
        }
        Ok(ends)
    }
}
