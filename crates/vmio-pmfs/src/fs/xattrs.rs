//! Extended attributes. All of an inode's are in one block, which each change writes anew elsewhere.

use super::Fs;
use crate::error::{Error, Result};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::inode::{Kind, Time};
use crate::format::xattrs::{ALIGNED, Xattrs, is_name};
use crate::inodes::loaded::Loaded;

const WISHED: &[u8] = b"1";
/// Attributes whose meaning is their users'.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The state in which an extended attribute must be for its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Any.
    None,
    /// It is not there (XATTR_CREATE).
    Absent,
    /// It is there (XATTR_REPLACE).
    Present,
}

impl Fs {
    /// The value of an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Error::NoXattr`], [`Error::NoInode`], [`Error::Damaged`]; [`Error::Unsupported`] for names outside `user.`, `trusted.` and `security.`.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let node = self.node(ino)?;
        let state = node.read()?;
        if name == ALIGNED.as_bytes() {
            return if state.loaded.inode.wishes_alignment { Ok(WISHED.to_vec()) } else { Err(no_xattr(ino, name)) };
        }
        let mut xattrs = state.loaded.xattrs(&*self.volume.medium)?;
        xattrs.0.remove(name).ok_or_else(|| no_xattr(ino, name))
    }

    /// The names of an inode's extended attributes.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::Damaged`].
    pub fn xattrs(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let state = node.read()?;
        let wish = state.loaded.inode.wishes_alignment.then(|| ALIGNED.into());
        Ok(wish.into_iter().chain(state.loaded.xattrs(&*self.volume.medium)?.0.into_keys()).collect())
    }

    /// Gives an inode an extended attribute, or the one that it has another value.
    ///
    /// # Errors
    ///
    /// [`Error::XattrExists`] and [`Error::NoXattr`] by the precondition, [`Error::BadXattr`], [`Error::XattrsTooLarge`], [`Error::NoSpace`],
    /// and those of [`Self::xattr`].
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], precondition: Precondition) -> Result<()> {
        check_name(name)?;
        let bad = || Error::BadXattr { name: String::from_utf8_lossy(name).into_owned(), bytes: value.len() };
        self.change_xattrs(ino, |loaded, xattrs| {
            let is_wish = name == ALIGNED.as_bytes();
            let is_there = if is_wish { loaded.inode.wishes_alignment } else { xattrs.0.contains_key(name) };
            match (precondition, is_there) {
                (Precondition::Absent, true) => return Err(xattr_exists(ino, name)),
                (Precondition::Present, false) => return Err(no_xattr(ino, name)),
                _ => (),
            }
            if !is_wish {
                xattrs.0.insert(name.to_vec(), value.to_vec());
                return Ok(());
            }
            if value != WISHED || !matches!(loaded.inode.kind, Kind::File | Kind::Directory) {
                return Err(bad());
            }
            loaded.inode.wishes_alignment = true;
            Ok(())
        })
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    ///
    /// Those of [`Self::xattr`].
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.change_xattrs(ino, |loaded, xattrs| {
            let was_there = match name == ALIGNED.as_bytes() {
                true => std::mem::replace(&mut loaded.inode.wishes_alignment, false),
                false => xattrs.0.remove(name).is_some(),
            };
            if was_there { Ok(()) } else { Err(no_xattr(ino, name)) }
        })
    }

    fn change_xattrs(&self, ino: u64, change: impl FnOnce(&mut Loaded, &mut Xattrs) -> Result<()>) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let before = state.loaded.xattrs(&*self.volume.medium)?;
        let mut xattrs = before.clone();
        // If it fails, it has changed nothing.
        change(&mut state.loaded, &mut xattrs)?;
        let result = self.store_xattrs(&mut state.loaded, &before, &xattrs);
        self.settled(&mut state, result)
    }

    fn store_xattrs(&self, loaded: &mut Loaded, before: &Xattrs, xattrs: &Xattrs) -> Result<()> {
        let block = xattrs.to_block(loaded.ino).ok_or(Error::XattrsTooLarge { ino: loaded.ino })?;
        let old = loaded.attributes_run().filter(|_| before != xattrs);
        let is_written = before != xattrs && !xattrs.0.is_empty();
        let taken = match is_written.then(|| self.volume.take(1)).transpose() {
            // A full medium lets attributes be replaced: the old ones are saved.
            Err(Error::NoSpace { .. }) if old.is_some() => None,
            taken => taken?,
        };
        loaded.inode.changed = Time::now();
        let mut transaction = self.volume.journals.begin(self.volume.home());
        match (&taken, old) {
            (Some(taken), _) => {
                loaded.inode.attributes = taken.runs[0].start;
                transaction.fresh(loaded.inode.attributes * BLOCK_BYTES, &block);
            }
            (None, Some(old)) if is_written => transaction.overwrite(old.start * BLOCK_BYTES, &block),
            (None, Some(_)) => loaded.inode.attributes = 0,
            (None, None) => (),
        }
        loaded.store(&self.volume, &mut transaction, None);
        transaction.commit()?;
        // Overwritten in place, the block is still the inode's.
        self.volume.free(old.filter(|old| old.start != loaded.inode.attributes));
        taken.into_iter().for_each(|taken| taken.keep());
        Ok(())
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if !NAMESPACES.iter().any(|space| name.starts_with(space)) {
        return Err(Error::Unsupported { what: "an extended attribute outside user, trusted and security" });
    }
    if !is_name(name) || NAMESPACES.contains(&name) {
        return Err(Error::BadXattr { name: String::from_utf8_lossy(name).into_owned(), bytes: 0 });
    }
    Ok(())
}

fn no_xattr(ino: u64, name: &[u8]) -> Error {
    Error::NoXattr { ino, name: String::from_utf8_lossy(name).into_owned() }
}

fn xattr_exists(ino: u64, name: &[u8]) -> Error {
    Error::XattrExists { ino, name: String::from_utf8_lossy(name).into_owned() }
}
