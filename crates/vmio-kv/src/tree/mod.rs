//! A level's B-tree: immutable nodes, looked up in place; a new tree is made from an old one by merging what is newer into it,
//! and shares with it what has not changed.

mod cursor;
mod merge;
mod node_writer;

use crate::error::{Damage, Result};
use crate::format::block::{Kind, Sealed};
use crate::format::branch::{Branch, Child};
use crate::format::catalogue::Root;
use crate::format::leaf::{Leaf, key_hash};
use crate::format::pointer::Pointer;
use crate::log::Log;
pub(crate) use cursor::Cursor;
pub(crate) use merge::{Merged, Source, merge};

/// More nodes than this one below the other are a loop.
pub(crate) const HEIGHT_MAX: u16 = 20;

/// A published tree of a region. Whoever looks at it holds the version that refers to it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'log> {
    log: &'log Log,
    region: u32,
    root: Root,
}

/// A node of a tree.
enum Node<'log> {
    Leaf(Leaf<'log>),
    Branch(Branch<'log>),
}

impl<'log> Tree<'log> {
    pub(crate) fn new(log: &'log Log, region: u32, root: Root) -> Self {
        Tree { log, region, root }
    }

    fn root_child(&self) -> Child {
        Child::new(self.root.offset, self.root.epoch)
    }

    /// The node at a height above the leaves, 1 for those.
    fn node(&self, child: Child, height: u16) -> Result<Node<'log>> {
        let device = self.log.device();
        let offset = child.offset();
        let kind = if height == 1 { Kind::Leaf } else { Kind::Branch };
        let sealed = device.node(kind, offset)?;
        let structure = if height == 1 { "a leaf" } else { "an inner node" };
        let damaged = |damage| device.damaged(structure, offset, damage);
        self.check(&sealed, child).map_err(damaged)?;
        match kind {
            Kind::Leaf => Leaf::from_block(&sealed).map(Node::Leaf).map_err(damaged),
            _ => Branch::from_block(&sealed).map(Node::Branch).map_err(damaged),
        }
    }

    fn check(&self, sealed: &Sealed<'_>, child: Child) -> Result<(), Damage> {
        if sealed.uuid != self.log.segment.uuid || sealed.region != self.region {
            return Err(Damage::Foreign);
        }
        if !child.is_of(sealed.epoch) {
            return Err(Damage::Epoch { found: sealed.epoch, wanted: child.epoch_bits() });
        }
        Ok(())
    }

    fn height(&self) -> Result<u16> {
        match self.root.height {
            height @ 1..=HEIGHT_MAX => Ok(height),
            found => {
                let damage = Damage::Value { what: "a tree's height", found: u64::from(found) };
                Err(self.log.device().damaged("the root of a tree", self.root.offset, damage))
            }
        }
    }

    /// The leaf in whose range a key lies.
    fn leaf(&self, key: &[u8]) -> Result<Leaf<'log>> {
        let mut child = self.root_child();
        let mut height = self.height()?;
        loop {
            match self.node(child, height)? {
                Node::Leaf(leaf) => return Ok(leaf),
                Node::Branch(branch) => child = branch.child(branch.find(key)),
            }
            height -= 1;
        }
    }

    /// Where the newest record of a key is that the tree has.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Pointer>> {
        let leaf = self.leaf(key)?;
        let hash = key_hash(key);
        for index in leaf.candidates(key) {
            let is_key = match leaf.is_key(index, key, hash) {
                Some(known) => known,
                None => self.log.read(leaf.pointer(index), |record| record.key == key)?,
            };
            if is_key {
                return Ok(Some(leaf.pointer(index).record()));
            }
        }
        Ok(None)
    }

    /// Where its nodes are. Leaves are not read.
    pub(crate) fn offsets(&self) -> Result<Vec<u64>> {
        let mut offsets = vec![self.root.offset];
        let mut above = vec![self.root_child()];
        for height in (2..=self.height()?).rev() {
            let mut below = Vec::new();
            for child in above {
                if let Node::Branch(branch) = self.node(child, height)? {
                    below.extend((0..branch.len()).map(|index| branch.child(index)));
                }
            }
            offsets.extend(below.iter().map(|child| child.offset()));
            above = below;
        }
        Ok(offsets)
    }
}
