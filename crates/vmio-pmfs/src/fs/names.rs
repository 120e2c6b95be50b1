//! Calls that make, find and remove names.

use std::sync::Arc;

use super::attributes::Attributes;
use super::node::{Node, State};
use super::{Fs, gone};
use crate::directories::{self, Known, Named, Room};
use crate::error::{Damage, Error, Result};
use crate::format::entry::{Entry, check_name};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::{Extent, INLINE_EXTENTS, Inode, Kind, LINKS_MAX, SYMLINK_BYTES_MAX, Time};
use crate::format::target;
use crate::inodes::inode_bytes;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Taken;

/// Files in such a directory get its group.
const SET_GROUP: u32 = 0o2000;

/// A new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A pipe with a name.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device of this number.
    CharDevice(u64),
    /// A block device of this number.
    BlockDevice(u64),
}

/// Whether a rename replaces a target that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// It replaces it.
    Yes,
    /// It fails.
    No,
}

impl New<'_> {
    fn kind(&self) -> Kind {
        match self {
            New::File => Kind::File,
            New::Directory => Kind::Directory,
            New::Symlink(_) => Kind::Symlink,
            New::Fifo => Kind::Fifo,
            New::Socket => Kind::Socket,
            New::CharDevice(_) => Kind::CharDevice,
            New::BlockDevice(_) => Kind::BlockDevice,
        }
    }
}

impl Fs {
    /// Finds a name in a directory.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`], [`Error::NotADirectory`], [`Error::NoInode`].
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let node = self.directory(directory)?;
        let state = node.read_directory(&self.volume)?;
        let known = state.index.as_ref().and_then(|index| index.get(name));
        let known = known.ok_or_else(|| Error::no_entry(directory, name))?;
        // The directory stays locked: nobody can take the name away meanwhile.
        Ok(Attributes::of(&self.child(&state.loaded, known)?.read()?.loaded))
    }

    /// The node of an entry. The caller has locked the directory, and locks go down the tree. Damage alone makes an entry that leads
    /// elsewhere; this refuses it before a caller locks its inode.
    pub(super) fn child(&self, directory: &Loaded, known: Known) -> Result<Arc<Node>> {
        let damaged = |field, found| {
            let at = directories::slot_at(&directory.map, known.slot).unwrap_or_default();
            Error::Damaged { structure: "an entry of a directory", at, damage: Damage::Field { field, found } }
        };
        // The root is in itself, and has no entry there.
        if known.ino == directory.ino {
            return Err(damaged("inode", known.ino));
        }
        let node = self.node(known.ino)?;
        if node.kind != known.kind {
            return Err(damaged("kind", known.kind as u64));
        }
        if node.kind == Kind::Directory && node.parent() != directory.ino {
            return Err(damaged("inode", known.ino));
        }
        Ok(node)
    }

    /// The entries of a directory from a cookie on, 0 for the beginning; `.` and `..` are not among them.
    ///
    /// # Errors
    ///
    /// [`Error::NotADirectory`], [`Error::NoInode`].
    pub fn list(&self, directory: u64, cookie: u64, most: usize) -> Result<Vec<Named>> {
        let node = self.node(directory)?;
        let state = node.read_directory(&self.volume)?;
        Ok(state.index.iter().flat_map(|index| index.entries_from(cookie)).take(most).collect())
    }

    /// The directory that a directory is in; the root is in itself.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn parent(&self, directory: u64) -> Result<u64> {
        Ok(self.node(directory)?.parent())
    }

    /// Makes something new in a directory.
    ///
    /// # Errors
    ///
    /// [`Error::EntryExists`], [`Error::BadName`], [`Error::NameTooLong`], [`Error::NoSpace`], [`Error::NoInodes`],
    /// [`Error::NotADirectory`], [`Error::NoInode`].
    pub fn create(
        &self,
        directory: u64,
        name: &[u8],
        new: New<'_>,
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Result<Attributes> {
        check_name(name)?;
        let node = self.directory(directory)?;
        let mut state = node.write_directory(&self.volume)?;
        if state.loaded.inode.links == 0 {
            return Err(Error::no_entry(directory, name));
        }
        if state.directory().1.get(name).is_some() {
            return Err(Error::entry_exists(directory, name));
        }
        if new.kind() == Kind::Directory && state.loaded.inode.links >= LINKS_MAX {
            return Err(Error::TooManyLinks { ino: directory });
        }
        let ino = self.free_inodes.take(self.volume.home())?;
        let result = self.create_inode(&mut state, ino, name, new, mode, (uid, gid));
        if result.is_err() {
            self.free_inodes.give_back(ino);
        }
        self.settled(&mut state, result)
    }

    fn create_inode(
        &self,
        state: &mut State,
        ino: u64,
        name: &[u8],
        new: New<'_>,
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Result<Attributes> {
        let (directory, index) = state.directory();
        let now = Time::now();
        let last_generation = Inode::last_generation(&inode_bytes(&*self.volume.medium, self.geometry(), ino)?);
        let inherits = directory.inode.mode & SET_GROUP != 0;
        let is_directory = new.kind() == Kind::Directory;
        let inode = Inode {
            kind: new.kind(),
            mode: mode & 0o7777 | if inherits && is_directory { SET_GROUP } else { 0 },
            links: if is_directory { 2 } else { 1 },
            uid,
            gid: if inherits { directory.inode.gid } else { gid },
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            generation: last_generation.wrapping_add(1),
            parent_or_device: match new {
                New::Directory => directory.ino,
                New::CharDevice(device) | New::BlockDevice(device) => device,
                _ => 0,
            },
            chain: 0,
            attributes: 0,
            wishes_alignment: directory.inode.wishes_alignment && matches!(new, New::File | New::Directory),
            extents: [Extent::default(); INLINE_EXTENTS],
        };
        let mut made = Loaded::of(&*self.volume.medium, self.geometry(), ino, inode)?;
        let target = match new {
            New::Symlink(target) => Some(self.store_target(&mut made, target)?),
            _ => None,
        };
        let room = Room::find(&self.volume, directory, index, name.len())?;
        let entry = Entry { ino, kind: made.inode.kind, name: name.to_vec() };
        let node = Arc::new(Node::new(made));
        let mut made = node.state.write();
        // Callers that ask for the number wait until COMMIT. So nobody reads the inode into another node.
        self.nodes.lock().insert(ino, Arc::clone(&node));
        let mut transaction = self.volume.journals.begin(self.volume.home());
        made.loaded.store_new(&self.volume, &mut transaction);
        room.put(&mut transaction, directory, &entry);
        directory.inode.links += u32::from(is_directory);
        (directory.inode.modified, directory.inode.changed) = (now, now);
        directory.store(&self.volume, &mut transaction, room.remapped());
        if let Err(error) = transaction.commit() {
            made.is_gone = true;
            self.nodes.lock().remove(&ino);
            return Err(error);
        }
        room.settle(&self.volume, index, entry);
        target.into_iter().for_each(Taken::keep);
        Ok(Attributes::of(&made.loaded))
    }

    /// Writes a symbolic link's target to a block of its own.
    fn store_target(&self, link: &mut Loaded, target: &[u8]) -> Result<Taken<'_>> {
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(Error::NameTooLong { bytes: target.len(), most: SYMLINK_BYTES_MAX });
        }
        if target.is_empty() || target.contains(&0) {
            return Err(Error::BadName { name: String::from_utf8_lossy(target).into_owned() });
        }
        let taken = self.volume.take(1)?;
        let mut block = [0; BLOCK_BYTES as usize];
        block[..target.len()].copy_from_slice(target);
        self.volume.medium.write(taken.runs[0].start * BLOCK_BYTES, &block);
        link.map.replace(0..1, &taken.runs);
        link.inode.size = target.len() as u64;
        link.inode.parent_or_device = target::sealed(link.ino, target);
        Ok(taken)
    }

    /// Gives an inode that is no directory another name.
    ///
    /// # Errors
    ///
    /// [`Error::IsADirectory`], [`Error::TooManyLinks`], and those of [`Self::create`].
    pub fn link(&self, ino: u64, directory: u64, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let (node, parent) = (self.node(ino)?, self.directory(directory)?);
        if node.read()?.is_directory() {
            return Err(Error::IsADirectory { ino });
        }
        let mut parent = parent.write_directory(&self.volume)?;
        if parent.loaded.inode.links == 0 {
            return Err(Error::no_entry(directory, name));
        }
        if parent.directory().1.get(name).is_some() {
            return Err(Error::entry_exists(directory, name));
        }
        let mut state = node.write()?;
        match state.loaded.inode.links {
            0 => return Err(gone(ino)),
            LINKS_MAX.. => return Err(Error::TooManyLinks { ino }),
            _ => (),
        }
        let result = self.add_link(&mut parent, &mut state, name);
        let result = self.settled(&mut state, result);
        self.settled(&mut parent, result)
    }

    fn add_link(&self, parent: &mut State, state: &mut State, name: &[u8]) -> Result<Attributes> {
        let now = Time::now();
        let (directory, index) = parent.directory();
        let room = Room::find(&self.volume, directory, index, name.len())?;
        let entry = Entry { ino: state.loaded.ino, kind: state.loaded.inode.kind, name: name.to_vec() };
        let mut transaction = self.volume.journals.begin(self.volume.home());
        room.put(&mut transaction, directory, &entry);
        (directory.inode.modified, directory.inode.changed) = (now, now);
        directory.store(&self.volume, &mut transaction, room.remapped());
        state.loaded.inode.links += 1;
        state.loaded.inode.changed = now;
        state.loaded.store(&self.volume, &mut transaction, None);
        transaction.commit()?;
        room.settle(&self.volume, index, entry);
        Ok(Attributes::of(&state.loaded))
    }

    /// Removes a name that is no directory's. Without any name, the inode ends with its last user.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`], [`Error::IsADirectory`], [`Error::NotADirectory`], [`Error::NoInode`].
    pub fn unlink(&self, directory: u64, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let parent = self.directory(directory)?;
        let mut parent = parent.write_directory(&self.volume)?;
        let known = parent.directory().1.get(name).ok_or_else(|| Error::no_entry(directory, name))?;
        if known.kind == Kind::Directory {
            return Err(Error::IsADirectory { ino: known.ino });
        }
        let node = self.child(&parent.loaded, known)?;
        let mut state = node.write()?;
        self.remove_name(&mut parent, &mut state, name, known)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`], [`Error::NoEntry`], [`Error::NotADirectory`], [`Error::NoInode`].
    pub fn remove_directory(&self, directory: u64, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let parent = self.directory(directory)?;
        let mut parent = parent.write_directory(&self.volume)?;
        let known = parent.directory().1.get(name).ok_or_else(|| Error::no_entry(directory, name))?;
        let node = self.child(&parent.loaded, known)?;
        let mut state = node.write_directory(&self.volume)?;
        if !state.directory().1.is_empty() {
            return Err(Error::NotEmpty { ino: known.ino });
        }
        self.remove_name(&mut parent, &mut state, name, known)
    }

    fn remove_name(
        &self,
        parent: &mut parking_lot::RwLockWriteGuard<'_, State>,
        state: &mut parking_lot::RwLockWriteGuard<'_, State>,
        name: &[u8],
        known: Known,
    ) -> Result<()> {
        let mut transaction = self.volume.journals.begin(self.volume.home());
        let now = Time::now();
        let (directory, _) = parent.directory();
        directories::erase(&mut transaction, directory, known.slot);
        (directory.inode.modified, directory.inode.changed) = (now, now);
        directory.inode.links = directory.inode.links.saturating_sub(state.is_directory().into());
        directory.store(&self.volume, &mut transaction, None);
        let ends = self.drop_link(state, &mut transaction, now);
        let result = transaction.commit();
        let result = self.settled(state, result);
        self.settled(parent, result)?;
        parent.directory().1.remove(name);
        if ends {
            self.forget(state);
        }
        Ok(())
    }

    /// Puts the loss of a name into a transaction: a file's last name, and a directory's only one, end the inode unless it is open.
    /// Returns whether it ends.
    pub(super) fn drop_link(
        &self,
        state: &mut State,
        transaction: &mut crate::journal::Transaction<'_>,
        now: Time,
    ) -> bool {
        let lost = if state.is_directory() { 2 } else { 1 };
        if state.ends_without(lost) {
            state.loaded.remove(&self.volume, transaction);
            return true;
        }
        state.loaded.inode.links = state.loaded.inode.links.saturating_sub(lost);
        state.loaded.inode.changed = now;
        state.loaded.store(&self.volume, transaction, None);
        false
    }
}
