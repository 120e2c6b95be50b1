//! A mounted file system: calls by inode number and name.

pub(crate) mod attributes;
mod creation;
mod exchange;
pub(crate) mod files;
pub(crate) mod gathering;
pub(crate) mod growing;
pub(crate) mod growth_recovery;
pub(crate) mod leasing;
mod lost_ends;
mod mounting;
pub(crate) mod names;
mod node;
mod renaming;
pub(crate) mod rewriting;
mod ways_up;
pub(crate) mod xattrs;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::alloc::joined;
use crate::data::Mode;
use crate::error::{Error, Result};
use crate::format::geometry::Geometry;
use crate::format::inode::NAME_BYTES_MAX;
use crate::format::superblock::Superblock;
use crate::inodes::free::FreeInodes;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;
use node::{Node, State};
use rewriting::Wanted;

/// Nodes in memory, above which unused ones are forgotten.
const NODES_MAX: usize = 1 << 16;

/// A mounted file system.
///
/// Calls are by inode number; the root is [`crate::ROOT`]. Each call is atomic and durable when it returns, but for [`Mode::Relaxed`]. Calls on
/// different inodes run at the same time.
pub struct Fs {
    pub(crate) volume: Volume,
    superblock: Superblock,
    recovered: Recovered,
    free_inodes: FreeInodes,
    nodes: Mutex<HashMap<u64, Arc<Node>>>,
    /// A rename between directories is alone, so that no two of them make a cycle.
    renames: Mutex<()>,
    wanted: Wanted,
}

/// The work that mounting has found to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Transactions that a crash has cut short; they were rolled back.
    pub transactions: usize,
    /// Files without a name that were open at the crash; they were deleted.
    pub orphans: usize,
    /// Files that have become longer by what processes had appended durably, and nobody had looked at.
    pub appends: usize,
}

/// How much space there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Blocks that files can have.
    pub blocks: u64,
    /// Those of them that are free.
    pub free_blocks: u64,
    /// Free blocks of aligned extents of which every block is free.
    pub aligned_free_blocks: u64,
    /// Inodes that there can be.
    pub inodes: u64,
    /// Those of them that are free.
    pub free_inodes: u64,
    /// The longest name.
    pub name_bytes_max: usize,
}

impl Fs {
    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The promise for the data of a call that a crash cuts short.
    pub fn mode(&self) -> Mode {
        self.volume.mode
    }

    /// The work that mounting has found to do.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// How much space there is.
    pub fn space(&self) -> Space {
        let geometry = self.geometry();
        let pools = (0..geometry.areas).map(|area| geometry.pool(area));
        let free = self.volume.allocator.count();
        let reserved: u64 = self.volume.reserved.runs().iter().map(|run| run.count).sum();
        Space {
            blocks: pools.map(|pool| pool.end - pool.start).sum(),
            free_blocks: free.blocks + reserved,
            aligned_free_blocks: free.aligned,
            inodes: geometry.all_inodes() - 1,
            free_inodes: self.free_inodes.count(),
            name_bytes_max: NAME_BYTES_MAX,
        }
    }

    /// The free blocks of the medium, as ranges that do not touch each other.
    pub fn free_runs(&self) -> Vec<Range<u64>> {
        let mut all = self.volume.allocator.runs();
        all.extend(self.volume.reserved.runs());
        joined(all)
    }

    /// Makes everything durable on a medium whose fences alone do not.
    ///
    /// # Errors
    ///
    /// Those of the medium.
    pub fn sync(&self) -> Result<()> {
        self.volume.medium.sync()
    }

    fn geometry(&self) -> &Geometry {
        &self.volume.geometry
    }

    /// The node of an inode.
    fn node(&self, ino: u64) -> Result<Arc<Node>> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&ino) {
            return Ok(Arc::clone(node));
        }
        if nodes.len() >= NODES_MAX {
            // Whoever has a node has counted it; the others are read again when they are wanted.
            nodes.retain(|_, node| Arc::strong_count(node) > 1 || node.state.read().is_held());
        }
        // Nobody changes an inode without its node, so what is read here is whole.
        let loaded = Loaded::load(&self.volume, ino)?;
        let node = Arc::new(Node::new(loaded));
        nodes.insert(ino, Arc::clone(&node));
        Ok(node)
    }

    /// Reads a node again if a change of it has failed.
    fn settled<T>(&self, state: &mut State, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            let ino = state.loaded.ino;
            match Loaded::load(&self.volume, ino) {
                Ok(mut loaded) => {
                    loaded.leases = std::mem::take(&mut state.loaded.leases);
                    (state.loaded, state.index) = (loaded, None);
                }
                Err(damage) => {
                    tracing::error!(ino, %error, %damage, "an inode cannot be read again after a change that failed");
                    state.is_gone = true;
                }
            }
        }
        result
    }

    /// Has an inode that nobody can reach any more end, in memory: its transaction is committed.
    fn forget(&self, state: &mut State) {
        let ino = state.loaded.ino;
        state.is_gone = true;
        self.nodes.lock().remove(&ino);
        self.volume.give_back_reserved(ino);
        self.volume.free(state.loaded.all_runs());
        self.free_inodes.give_back(ino);
    }
}

/// The error for an inode that is no more.
fn gone(ino: u64) -> Error {
    Error::NoInode { ino }
}
