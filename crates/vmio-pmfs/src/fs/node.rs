//! An inode in memory, as calls share it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::gone;
use crate::directories::Index;
use crate::error::Result;
use crate::format::geometry::ROOT;
use crate::format::inode::Kind;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// An inode in memory.
pub(super) struct Node {
    pub(super) ino: u64,
    pub(super) kind: Kind,
    /// Of a directory, the one it is in. Changed only by renames, of which there is one at a time.
    parent: AtomicU64,
    /// Of a directory: it is known to be under the root. Renames leave it there.
    is_under_root: AtomicBool,
    pub(super) state: RwLock<State>,
}

/// The part of a node that its lock protects.
pub(super) struct State {
    pub(super) loaded: Loaded,
    /// Of a directory, from its first use on.
    pub(super) index: Option<Index>,
    /// How often it is open.
    pub(super) opens: u64,
    /// How many know its number, and may open it by that.
    pub(super) known: u64,
    /// It is no more; its number may be another inode's.
    pub(super) is_gone: bool,
}

impl Node {
    pub(super) fn new(loaded: Loaded) -> Node {
        let parent = AtomicU64::new(loaded.inode.parent_or_device);
        let (ino, kind) = (loaded.ino, loaded.inode.kind);
        Node {
            ino,
            kind,
            parent,
            is_under_root: AtomicBool::new(ino == ROOT),
            state: RwLock::new(State { loaded, index: None, opens: 0, known: 0, is_gone: false }),
        }
    }

    pub(super) fn parent(&self) -> u64 {
        self.parent.load(Ordering::Acquire)
    }

    pub(super) fn set_parent(&self, parent: u64) {
        self.parent.store(parent, Ordering::Release);
    }

    pub(super) fn is_under_root(&self) -> bool {
        self.is_under_root.load(Ordering::Acquire)
    }

    pub(super) fn set_under_root(&self) {
        self.is_under_root.store(true, Ordering::Release);
    }

    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.state.read();
        if state.is_gone { Err(gone(self.ino)) } else { Ok(state) }
    }

    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        let state = self.state.write();
        if state.is_gone { Err(gone(self.ino)) } else { Ok(state) }
    }

    /// Locks a directory, with its index.
    pub(super) fn write_directory(&self, volume: &Volume) -> Result<RwLockWriteGuard<'_, State>> {
        let mut state = self.write()?;
        state.loaded.expect_directory()?;
        if state.index.is_none() {
            state.index = Some(Index::load(&*volume.medium, &state.loaded)?);
        }
        Ok(state)
    }

    /// Locks a directory for reading, with its index.
    pub(super) fn read_directory(&self, volume: &Volume) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.read()?;
        state.loaded.expect_directory()?;
        if state.index.is_some() {
            return Ok(state);
        }
        drop(state);
        Ok(RwLockWriteGuard::downgrade(self.write_directory(volume)?))
    }
}

impl State {
    /// A directory and its index, which is there.
    pub(super) fn directory(&mut self) -> (&mut Loaded, &mut Index) {
        (&mut self.loaded, self.index.get_or_insert_default())
    }

    pub(super) fn is_directory(&self) -> bool {
        self.loaded.inode.kind == Kind::Directory
    }

    /// Whether it stays without a name.
    pub(super) fn is_held(&self) -> bool {
        self.opens > 0 || self.known > 0
    }

    /// Whether it would end if it lost its last name.
    pub(super) fn ends_without(&self, links: u32) -> bool {
        !self.is_held() && self.loaded.inode.links <= links
    }
}
