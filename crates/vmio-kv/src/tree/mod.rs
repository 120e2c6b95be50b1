//! The B-tree of a level. Its nodes are immutable and are searched in place. A merge makes a new tree, which shares unchanged leaves and
//! long pivots with the old one.

mod cursor;
mod division;
mod front;
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
use crate::format::branch::Branch;
use crate::format::catalogue::Root;
use crate::format::child::Child;
use crate::format::geometry::unit_of;
use crate::format::leaf::{Entry, Leaf, key_hash};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::Record;
use crate::log::Log;
use crate::volume::block_runs::BlockRuns;
pub(crate) use cursor::{Cursor, Direction};
pub(crate) use front::take_front;
pub(crate) use many::Answer;
pub(crate) use merge::{MergeInput, Merged, Source, Target, merge};
pub(crate) use node_writer::RUN_BLOCKS_MAX;
pub(crate) use threads::MergeThreads;

/// The greatest height of a tree: a higher one is a loop.
pub(crate) const HEIGHT_MAX: u16 = 20;

/// A published tree of a keyspace. Its user holds the version that refers to it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'log> {
    log: &'log Log,
    keyspace: u32,
    root: Root,
    /// The epoch of that version.
    epoch: u64,
}

impl<'log> Tree<'log> {
    /// A tree as a version of that epoch sees it.
    pub(crate) fn new(log: &'log Log, keyspace: u32, root: Root, epoch: u64) -> Self {
        Tree { log, keyspace, root, epoch }
    }

    /// A cursor at a place in the tree, which brings values that leaves hold.
    pub(crate) fn cursor(&self, bound: Bound<&[u8]>, direction: Direction) -> Result<Cursor<&'log Log>> {
        Cursor::seek(&self.log, self.keyspace, self.root, self.epoch, bound, (direction, true))
    }

    fn root_child(&self) -> Child {
        Child::new(self.root.offset, self.root.epoch)
    }

    /// Calls `look` with a leaf.
    fn leaf<Answer>(&self, child: Child, look: impl Fn(&Leaf<'_>) -> Result<Answer>) -> Result<Answer> {
        self.look(Kind::Leaf, child, |sealed| look(&Leaf::from_block(sealed).map_err(self.damaged(Kind::Leaf, child))?))
    }

    /// A leaf's entries, and how many more it has that are superseded.
    fn entries(&self, child: Child) -> Result<(Vec<Entry>, u64)> {
        self.leaf(child, |leaf| {
            let (gone, there): (Vec<_>, Vec<_>) = (0..leaf.len()).partition(|index| self.is_superseded(leaf, *index));
            let entries: Result<Vec<Entry>, Damage> = there.into_iter().map(|index| leaf.entry(index)).collect();
            Ok((entries.map_err(self.damaged(Kind::Leaf, child))?, gone.len() as u64))
        })
    }

    /// Calls `look` with a leaf, for a single look-up: the leaf enters the cache only if it is read often.
    fn bypass_leaf<Answer>(&self, child: Child, look: impl Fn(&Leaf<'_>) -> Result<Answer>) -> Result<Answer> {
        self.log.device().bypass_look_at_node(Kind::Leaf, child.offset(), |sealed| {
            let leaf = self.check(sealed, child).and_then(|()| Leaf::from_block(sealed));
            look(&leaf.map_err(self.damaged(Kind::Leaf, child))?)
        })
    }

    /// Calls `look` with an inner node.
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

    /// The leaf that a key leads to.
    fn leaf_of(&self, key: &[u8]) -> Result<Child> {
        let mut child = self.root_child();
        for _ in 1..self.height()? {
            child = self.child_of(child, key)?;
        }
        Ok(child)
    }

    /// The child of an inner node that a key leads to.
    fn child_of(&self, node: Child, key: &[u8]) -> Result<Child> {
        self.look(Kind::Branch, node, |sealed| {
            let branch = Branch::to_search(sealed).map_err(self.damaged(Kind::Branch, node))?;
            Ok(branch.child(self.find(&branch, node, key)?))
        })
    }

    /// Whether a newer level has an entry's key, and the entry's record may be gone: the entry does not count then.
    fn is_superseded(&self, leaf: &Leaf<'_>, index: usize) -> bool {
        let pointer = leaf.pointer(index);
        // The space of a large value is not freed before its entry goes, and a leaf has its own records.
        if matches!(pointer.kind(), PointerKind::Extents | PointerKind::Inline) {
            return false;
        }
        let unit = unit_of(pointer.offset());
        self.log.segment.chunk_generations.is_superseded(unit, leaf.epoch(), self.epoch)
    }

    /// The newest record of a key in the tree. If the look-up has to read the record, it calls `read` with it.
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

    /// The leaf that a key leads to, unless a filter says that the leaf does not have it.
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
                    Some(true) => {
                        let inline = leaf.inline(index).map_err(self.damaged(Kind::Leaf, place))?;
                        let read = |value| read(&Record::of_leaf(self.keyspace, key, value));
                        return Ok(Ok((pointer, inline.map(|inline| read(inline.value)))));
                    }
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
        // Only now: a look whose page cannot be read again is dropped.
        let learn = |filter| filters.learn(place.offset(), filter);
        Ok(found.map_err(|filter| filter.map(learn)).ok())
    }

    /// The tree's nodes and the pieces of its long pivots. Leaves are not read.
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
