//! A level's B-tree: immutable nodes, looked up in place; a new tree is made from an old one by merging what is newer into it,
//! and shares with it what has not changed.

mod cursor;
mod division;
mod many;
mod merge;
mod node_writer;
mod pivot;
mod threads;
mod upper;

use std::ops::Bound;

use crate::device::leaf_filters::LeafFilter;
use crate::device::structure_of;
use crate::error::{Damage, Error, Result};
use crate::format::block::{Kind, Sealed};
use crate::format::branch::{Branch, Child};
use crate::format::catalogue::Root;
use crate::format::geometry::unit_of;
use crate::format::leaf::{Leaf, key_hash};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::Record;
use crate::log::Log;
use crate::volume::block_runs::BlockRuns;
pub(crate) use cursor::{Cursor, Direction};
pub(crate) use many::Answer;
pub(crate) use merge::{Merged, MergeInput, Source, Target, merge};
pub(crate) use node_writer::RUN_BLOCKS_MAX;
pub(crate) use threads::MergeThreads;

/// More nodes than this one below the other are a loop.
pub(crate) const HEIGHT_MAX: u16 = 20;

/// A published tree of a keyspace. Whoever looks at it holds the version that refers to it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'log> {
    log: &'log Log,
    keyspace: u32,
    root: Root,
    /// That of the version which refers to it.
    epoch: u64,
}

impl<'log> Tree<'log> {
    /// As a version of that epoch sees it.
    pub(crate) fn new(log: &'log Log, keyspace: u32, root: Root, epoch: u64) -> Self {
        Tree { log, keyspace, root, epoch }
    }

    /// A place in it.
    pub(crate) fn cursor(&self, bound: Bound<&[u8]>, direction: Direction) -> Result<Cursor<&'log Log>> {
        Cursor::seek(&self.log, self.keyspace, self.root, self.epoch, bound, direction)
    }

    fn root_child(&self) -> Child {
        Child::new(self.root.offset, self.root.epoch)
    }

    /// Has `look` see a leaf.
    fn leaf<Answer>(&self, child: Child, look: impl Fn(&Leaf<'_>) -> Result<Answer>) -> Result<Answer> {
        self.look(Kind::Leaf, child, |sealed| look(&Leaf::from_block(sealed).map_err(self.damaged(Kind::Leaf, child))?))
    }

    /// The same for a single look-up: a leaf that is not in memory comes there only if it is wanted often.
    fn bypass_leaf<Answer>(&self, child: Child, look: impl Fn(&Leaf<'_>) -> Result<Answer>) -> Result<Answer> {
        self.log.device().bypass_look_at_node(Kind::Leaf, child.offset(), |sealed| {
            let leaf = self.check(sealed, child).and_then(|()| Leaf::from_block(sealed));
            look(&leaf.map_err(self.damaged(Kind::Leaf, child))?)
        })
    }

    /// Has `look` see an inner node.
    fn branch<Answer>(&self, child: Child, look: impl Fn(&Branch<'_>) -> Result<Answer>) -> Result<Answer> {
        self.look(Kind::Branch, child, |sealed| {
            look(&Branch::from_block(sealed).map_err(self.damaged(Kind::Branch, child))?)
        })
    }

    fn look<Answer>(&self, kind: Kind, child: Child, look: impl Fn(&Sealed<'_>) -> Result<Answer>) -> Result<Answer> {
        self.log.device().look_at_node(kind, child.offset(), |sealed| {
            self.check(sealed, child).map_err(self.damaged(kind, child))?;
            look(sealed)
        })
    }

    fn damaged(&self, kind: Kind, child: Child) -> impl Fn(Damage) -> Error {
        let device = self.log.device();
        move |damage| device.damaged(structure_of(kind), child.offset(), damage)
    }

    fn check(&self, sealed: &Sealed<'_>, child: Child) -> Result<(), Damage> {
        if sealed.uuid != self.log.segment.uuid || sealed.keyspace != self.keyspace {
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

    /// Where the leaf is in whose range a key lies.
    fn leaf_of(&self, key: &[u8]) -> Result<Child> {
        let mut child = self.root_child();
        for _ in 1..self.height()? {
            child = self.child_of(child, key)?;
        }
        Ok(child)
    }

    /// Which of an inner node's children a key falls to.
    fn child_of(&self, node: Child, key: &[u8]) -> Result<Child> {
        self.look(Kind::Branch, node, |sealed| {
            let branch = Branch::to_search(sealed).map_err(self.damaged(Kind::Branch, node))?;
            Ok(branch.child(self.find(&branch, node, key)?))
        })
    }

    /// Whether a newer level has the key of an entry, and what the entry points to may be gone: then it is as if it were not there.
    fn is_superseded(&self, leaf: &Leaf<'_>, index: usize) -> bool {
        let pointer = leaf.pointer(index);
        // Large values' space is not given up before the entry goes.
        if pointer.kind() == PointerKind::Extents {
            return false;
        }
        let unit = unit_of(pointer.offset());
        self.log.segment.chunk_generations.is_superseded(unit, leaf.epoch(), self.epoch)
    }

    /// Where the newest record of a key is that the tree has. If that takes reading the record, `read` sees it at once.
    pub(crate) fn get<Answer>(
        &self,
        key: &[u8],
        read: impl Fn(&Record<'_>) -> Answer,
    ) -> Result<Option<(Pointer, Option<Answer>)>> {
        match self.leaf_to_look_at(self.leaf_of(key)?, key) {
            Some(leaf) => self.get_in(leaf, key, read),
            None => Ok(None),
        }
    }

    /// The leaf that a key falls to, unless it is known not to have it.
    fn leaf_to_look_at(&self, leaf: Child, key: &[u8]) -> Option<Child> {
        let filters = self.log.device().leaf_filters();
        (!filters.are_kept() || !filters.exclude(leaf.offset(), key_hash(key))).then_some(leaf)
    }

    fn get_in<Answer>(
        &self,
        place: Child,
        key: &[u8],
        read: impl Fn(&Record<'_>) -> Answer,
    ) -> Result<Option<(Pointer, Option<Answer>)>> {
        let hash = key_hash(key);
        let filters = self.log.device().leaf_filters();
        let found = self.bypass_leaf(place, |leaf| {
            for index in leaf.candidates(key).filter(|index| !self.is_superseded(leaf, *index)) {
                let pointer = leaf.pointer(index).record();
                match leaf.is_key(index, key, hash) {
                    Some(true) => return Ok(Ok((pointer, None))),
                    Some(false) => {}
                    None => {
                        let answer = self.log.read(pointer, |record| (record.key == key).then(|| read(record)))?;
                        if answer.is_some() {
                            return Ok(Ok((pointer, answer)));
                        }
                    }
                }
            }
            let hashes = (0..leaf.len()).map(|index| leaf.hash(index));
            Ok(Err(filters.are_kept().then(|| LeafFilter::new(hashes))))
        })?;
        // Not before: what a look sees while a page cannot be read is dropped.
        let learn = |filter| filters.learn(place.offset(), filter);
        Ok(found.map_err(|filter| filter.map(learn)).ok())
    }

    /// Where its nodes are, with the pieces of long pivots. Leaves are not read.
    pub(crate) fn blocks(&self) -> Result<BlockRuns> {
        let mut blocks = BlockRuns::default();
        blocks.push(self.root.offset);
        let mut above = vec![self.root_child()];
        for height in (1..self.height()?).rev() {
            let mut below = Vec::new();
            for child in above {
                let (children, rests): (Vec<Child>, Vec<_>) = self.branch(child, |branch| {
                    let part = |index| (branch.child(index), branch.pivot(index).rest);
                    Ok((0..branch.len()).map(part).unzip())
                })?;
                blocks.extend(children.iter().map(|child| child.offset()));
                for rest in rests.into_iter().flatten() {
                    blocks.extend(self.blocks_of(rest)?);
                }
                if height > 1 {
                    below.extend(children);
                }
            }
            above = below;
        }
        Ok(blocks)
    }
}
