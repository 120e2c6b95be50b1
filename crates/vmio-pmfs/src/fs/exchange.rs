//! Two names change their inodes (RENAME_EXCHANGE).

use std::sync::Arc;

use super::Fs;
use super::node::{Node, State};
use super::renaming::Directories;
use crate::directories::{self, Known};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, check_name};
use crate::format::inode::{Kind, LINKS_MAX, Time};

/// A name of an exchange, and what it gets.
struct Side<'names> {
    name: &'names [u8],
    known: Known,
    node: Arc<Node>,
}

impl Fs {
    /// Gives each of two names the inode that the other one has, atomically.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`], [`Error::IntoItself`], [`Error::TooManyLinks`], [`Error::NotADirectory`], [`Error::NoInode`].
    pub fn exchange(&self, one: u64, name: &[u8], other: u64, other_name: &[u8]) -> Result<()> {
        check_name(name)?;
        check_name(other_name)?;
        let _alone = self.renames.lock();
        let directories = [self.directory_to_rename_in(one)?, self.directory_to_rename_in(other)?];
        let mut locked = self.lock_both(&directories[0], &directories[1])?;
        let known = locked.from.directory().1.get(name).ok_or_else(|| Error::no_entry(one, name))?;
        let other_known = locked.to().directory().1.get(other_name);
        let other_known = other_known.ok_or_else(|| Error::no_entry(other, other_name))?;
        if known.ino == other_known.ino {
            return Ok(());
        }
        let node = self.child(&locked.from.loaded, known)?;
        let other_node = self.child(&locked.to().loaded, other_known)?;
        let sides = [Side { name, known, node }, Side { name: other_name, known: other_known, node: other_node }];
        for (side, into) in sides.iter().zip([&directories[1], &directories[0]]) {
            if side.known.kind == Kind::Directory && self.is_within(into, side.known.ino)? {
                return Err(Error::IntoItself { ino: side.known.ino });
            }
        }
        let (mut state, mut other_state) = (sides[0].node.write()?, sides[1].node.write()?);
        let result = self.commit_exchange(&mut locked, &sides, [&mut state, &mut other_state]);
        let result = self.settled(&mut state, result);
        let result = self.settled(&mut other_state, result);
        let result = match &mut locked.to {
            Some(to) => self.settled(to, result),
            None => result,
        };
        self.settled(&mut locked.from, result)?;
        for (side, state) in sides.iter().zip([&state, &other_state]).filter(|(_, state)| state.is_directory()) {
            side.node.set_parent(state.loaded.inode.parent_or_device);
        }
        Ok(())
    }

    fn commit_exchange(
        &self,
        locked: &mut Directories<'_>,
        sides: &[Side<'_>; 2],
        states: [&mut State; 2],
    ) -> Result<()> {
        let now = Time::now();
        let of_directories = [&states[0], &states[1]].map(|state| u32::from(state.is_directory()));
        let entry = |to: usize, from: usize| {
            let Known { ino, kind, .. } = sides[from].known;
            Entry { ino, kind, name: sides[to].name.to_vec() }
        };
        let (entry, other_entry) = (entry(0, 1), entry(1, 0));
        let mut transaction = self.volume.journals.begin(self.volume.home());
        let directory = &mut locked.from.directory().0;
        let (one, links) = (directory.ino, directory.inode.links);
        directories::retarget(&mut transaction, directory, sides[0].known.slot, &entry);
        (directory.inode.modified, directory.inode.changed) = (now, now);
        let other_directory = &mut locked.to().directory().0;
        let (other, other_links) = (other_directory.ino, other_directory.inode.links);
        directories::retarget(&mut transaction, other_directory, sides[1].known.slot, &other_entry);
        (other_directory.inode.modified, other_directory.inode.changed) = (now, now);
        if let Some(to) = &mut locked.to {
            let after = |links: u32, gets: u32, loses: u32, ino: u64| match (links + gets).checked_sub(loses) {
                Some(links) if links <= LINKS_MAX => Ok(links),
                _ => Err(Error::TooManyLinks { ino }),
            };
            to.loaded.inode.links = after(other_links, of_directories[0], of_directories[1], other)?;
            locked.from.loaded.inode.links = after(links, of_directories[1], of_directories[0], one)?;
            to.loaded.store(&self.volume, &mut transaction, None);
        }
        locked.from.loaded.store(&self.volume, &mut transaction, None);
        for (state, into) in states.into_iter().zip([other, one]) {
            if state.is_directory() {
                state.loaded.inode.parent_or_device = into;
            }
            state.loaded.inode.changed = now;
            state.loaded.store(&self.volume, &mut transaction, None);
        }
        transaction.commit()?;
        locked.from.directory().1.retarget(sides[0].name, entry.ino, entry.kind);
        locked.to().directory().1.retarget(sides[1].name, other_entry.ino, other_entry.kind);
        Ok(())
    }
}
