//! Calls on files: data, and how often they are open.

use super::Fs;
use super::node::State;
use crate::data::{self, Length, Seek};
use crate::error::{Error, Result};
use crate::format::geometry::EXTENT_BYTES;
use crate::format::inode::Kind;

/// A change of a range of a file (fallocate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// It gets blocks where it had none. Its contents stay.
    Allocate(Length),
    /// It becomes zeros, and has blocks.
    Zero(Length),
    /// It becomes zeros, and its blocks become free. The length stays.
    Punch,
}

impl Fs {
    /// Reads up to the end of a file. Returns how many bytes there are.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::IsADirectory`], [`Error::WrongKind`].
    pub fn read(&self, ino: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let state = node.read()?;
        state.loaded.expect_file()?;
        Ok(data::read(&self.volume, &state.loaded, offset, into))
    }

    /// Writes bytes, up to [`crate::Geometry::write_bytes_max`] of them, and returns how many. They are durable then, and after a crash
    /// all of them are there or none. In [`crate::Mode::Relaxed`] a crash before the return may leave any words of what they overwrite.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::IsADirectory`], [`Error::WrongKind`], [`Error::FileTooLarge`], [`Error::NoSpace`].
    pub fn write(&self, ino: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        let bytes = &bytes[..bytes.len().min(self.geometry().write_bytes_max())];
        if offset.saturating_add(bytes.len() as u64) > state.loaded.inode.size {
            state.loaded.expect_no_growth()?;
            self.part_from_lost(&mut state)?;
        }
        let result = data::write(&self.volume, &mut state.loaded, offset, bytes);
        self.settled(&mut state, result)?;
        Ok(bytes.len())
    }

    /// Writes bytes at the end of a file, as [`Self::write`] does. Returns where that was, and how many.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn append(&self, ino: u64, bytes: &[u8]) -> Result<(u64, usize)> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        state.loaded.expect_no_growth()?;
        self.part_from_lost(&mut state)?;
        let (end, bytes) = (state.loaded.inode.size, &bytes[..bytes.len().min(self.geometry().write_bytes_max())]);
        let result = data::write(&self.volume, &mut state.loaded, end, bytes);
        self.settled(&mut state, result)?;
        Ok((end, bytes.len()))
    }

    /// Gives a range of a file blocks, zeros where it had none, and makes the file as long. Ranges of 2 MiB get aligned extents.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn allocate(&self, ino: u64, offset: u64, bytes: u64) -> Result<()> {
        self.change_range(ino, RangeChange::Allocate(Length::Grows), offset, bytes)
    }

    /// Changes a range of a file, atomically.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub fn change_range(&self, ino: u64, change: RangeChange, offset: u64, bytes: u64) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.loaded.expect_file()?;
        state.loaded.expect_no_growth()?;
        if matches!(change, RangeChange::Allocate(Length::Grows) | RangeChange::Zero(Length::Grows)) {
            self.part_from_lost(&mut state)?;
        }
        let (volume, file) = (&self.volume, &mut state.loaded);
        let result = match change {
            RangeChange::Allocate(length) => data::allocate(volume, file, offset, bytes, length),
            RangeChange::Zero(length) => data::zero(volume, file, offset, bytes, length),
            RangeChange::Punch => data::punch(volume, file, offset, bytes),
        };
        self.settled(&mut state, result)
    }

    /// The first byte of a file from an offset on that is data, or in a hole. Nothing if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::IsADirectory`], [`Error::WrongKind`].
    pub fn seek(&self, ino: u64, offset: u64, wanted: Seek) -> Result<Option<u64>> {
        let node = self.node(ino)?;
        let state = node.read()?;
        state.loaded.expect_file()?;
        Ok(data::seek(&state.loaded, offset, wanted))
    }

    /// How many of a file's whole 2 MiB huge pages can map, and how many there are.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn aligned_extents(&self, ino: u64) -> Result<(u64, u64)> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok((state.loaded.map.aligned_extents(), state.loaded.inode.size / EXTENT_BYTES))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::WrongKind`], [`Error::Damaged`].
    pub fn read_link(&self, ino: u64) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let state = node.read()?;
        if state.loaded.inode.kind != Kind::Symlink {
            return Err(Error::WrongKind { ino });
        }
        state.loaded.target(&*self.volume.medium)
    }

    /// Counts a user of an inode: it stays as long as there is one, even without a name.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn open(&self, ino: u64) -> Result<()> {
        self.node(ino)?.write()?.opens += 1;
        Ok(())
    }

    /// The end of an [`Self::open`]. The last one ends an inode without a name. Each gives back the blocks that the file was to grow into.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn close(&self, ino: u64) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        self.end_use(&mut state)
    }

    /// Counts one user less of an inode. The last one ends it if it has no name.
    pub(super) fn end_use(&self, state: &mut State) -> Result<()> {
        state.opens = state.opens.saturating_sub(1);
        // Another user who goes on takes them again.
        if state.loaded.leases.growth().is_none() {
            self.volume.give_back_reserved(state.loaded.ino);
        }
        let ino = state.loaded.ino;
        let is_wanted = state.opens == 0 && state.has_outgrown_its_start();
        self.end_unless_held(state)?;
        if is_wanted && !state.is_gone {
            self.wants_alignment(ino);
        }
        Ok(())
    }

    /// Counts somebody who knows the number of an inode: it is no other inode's meanwhile, even without a name. Its blocks may move, other than
    /// those of a file that is open.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn remember(&self, ino: u64) -> Result<()> {
        self.node(ino)?.write()?.known += 1;
        Ok(())
    }

    /// The end of a [`Self::remember`].
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`].
    pub fn forget_number(&self, ino: u64) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write()?;
        state.known = state.known.saturating_sub(1);
        self.end_unless_held(&mut state)
    }

    /// Ends an inode that has neither a name nor a user.
    fn end_unless_held(&self, state: &mut State) -> Result<()> {
        if state.ends_without(0) {
            let mut transaction = self.volume.journals.begin(self.volume.home());
            state.loaded.remove(&self.volume, &mut transaction);
            transaction.commit()?;
            self.forget(state);
        }
        Ok(())
    }
}
