//! A spill: merges newer entries into a tree, leaf by leaf, and makes a new tree that shares what has not changed (Kreon §3.2.1).
//!
//! Only keys and pointers move. Leaves of the old tree that no newer entry falls into are kept; the others are read, merged and
//! written anew, one behind the other.

use std::cmp::Ordering;

use crate::error::Result;
use crate::format::branch::{Branch, BranchBuilder, Child, PIVOT_BYTES_MAX};
use crate::format::catalogue::Root;
use crate::format::free_log::Freed;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::{KnownKey, LeafBuilder, common_prefix};
use crate::format::pointer::{Pointer, PointerKind};
use crate::log::Log;
use crate::tree::Tree;
use crate::tree::node_writer::{NodeWriter, Which};

/// Entries in order, the newest of each key alone.
pub(crate) trait Source {
    /// The entry that comes next.
    fn peek(&mut self) -> Result<Option<&mut KnownKey>>;

    /// Takes it.
    fn next(&mut self) -> Result<Option<KnownKey>>;
}

/// What came of a merge.
pub(crate) struct Merged {
    /// The new tree; none if nothing is left.
    pub(crate) root: Option<Root>,
    /// Its new nodes.
    pub(crate) taken: Vec<u64>,
    /// Nodes of the old tree that it does not have.
    pub(crate) outdated: Vec<Freed>,
    /// Records that no entry points to any longer.
    pub(crate) garbage: Vec<Pointer>,
}

/// A node that stands in the new tree.
struct Placed {
    /// No key of it is less.
    pivot: Vec<u8>,
    child: Child,
}

struct Merge<'log, 'source> {
    log: &'log Log,
    old: Option<Tree<'log>>,
    source: &'source mut dyn Source,
    writer: NodeWriter<'log>,
    /// Whether deleted keys need not be remembered: no level below has any.
    is_lowest: bool,
    outdated: Vec<u64>,
    garbage: Vec<Pointer>,
    /// What is between the last leaf and the next.
    before: Before,
    leaf: LeafBuilder,
    leaves: Vec<Placed>,
    /// Entries that have been taken from the old tree, and put into the new one.
    taken_out: u64,
    put_in: u64,
}

/// What the next leaf's pivot is made from.
enum Before {
    /// It is the first.
    Nothing,
    /// The last key of a leaf that was written.
    Key(KnownKey),
    /// A leaf that was kept: all that follows it is no less than this pivot of the old tree.
    Kept(Vec<u8>),
}

/// Leaves that are read ahead once some in a row have been wanted.
const AHEAD: usize = 16;

/// Merges `source`, which is newer, into a tree of a region, for its level. Deletions that meet nothing below are dropped if it
/// is the lowest level.
pub(crate) fn merge(
    log: &Log,
    region: u32,
    old: Option<Root>,
    level: u8,
    is_lowest: bool,
    source: &mut dyn Source,
) -> Result<Merged> {
    // Nothing comes to an end while levels are merged: this is the newest version.
    let epoch = log.segment.epoch();
    let writer = NodeWriter::new(&log.segment, region, level);
    let mut merge = Merge {
        log,
        old: old.map(|root| Tree::new(log, region, root, epoch)),
        source,
        writer,
        is_lowest,
        outdated: Vec::new(),
        garbage: Vec::new(),
        before: Before::Nothing,
        leaf: LeafBuilder::default(),
        leaves: Vec::new(),
        taken_out: 0,
        put_in: 0,
    };
    match merge.old {
        Some(tree) => merge.subtree(tree.root_child(), tree.height()?, &[], None)?,
        None => merge.rest_of_source(None)?,
    }
    let root = merge.finish_tree(old)?;
    let Merge { writer, outdated, garbage, .. } = merge;
    let outdated = outdated.into_iter().map(|offset| Freed { offset, blocks: 1 }).collect();
    Ok(Merged { root, taken: writer.finish()?, outdated, garbage })
}

impl<'log> Merge<'log, '_> {
    /// Merges what falls into a node's range, which begins with `start` and ends before `end`.
    fn subtree(&mut self, child: Child, height: u16, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        let Some(tree) = self.old else { return Ok(()) };
        self.outdated.push(child.offset());
        if height == 1 {
            let (keys, superseded) = tree.leaf(child, |leaf| {
                let (gone, there): (Vec<_>, Vec<_>) =
                    (0..leaf.len()).partition(|index| tree.is_superseded(leaf, *index));
                Ok((there.into_iter().map(|index| leaf.key(index)).collect(), gone.len()))
            })?;
            self.taken_out += superseded as u64;
            return self.merge_leaf(keys, end);
        }
        let placed = |branch: &Branch<'_>| {
            let placed = |index| Placed { pivot: branch.pivot(index).to_vec(), child: branch.child(index) };
            Ok((0..branch.len()).map(placed).collect::<Vec<_>>())
        };
        self.merge_branch(&tree.branch(child, placed)?, height, start, end)
    }

    fn merge_branch(&mut self, children: &[Placed], height: u16, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        let mut wanted_in_a_row = 0;
        for (index, Placed { pivot, child }) in children.iter().enumerate() {
            // The first child's pivot is not in its node, but above.
            let child_start = if index == 0 { start } else { pivot };
            let child_end = children.get(index + 1).map_or(end, |next| Some(&next.pivot));
            if height > 2 {
                self.subtree(*child, height - 1, child_start, child_end)?;
                continue;
            }
            if !self.source_is_before(child_end)? {
                wanted_in_a_row = 0;
                self.keep_leaf(*child, child_start, child_end)?;
                continue;
            }
            wanted_in_a_row += 1;
            if wanted_in_a_row % AHEAD == 2 {
                let leaves = children[index + 1..].iter().take(2 * AHEAD).map(|ahead| ahead.child.offset());
                self.log.device().prefetch(leaves.map(|offset| offset..offset + BLOCK_BYTES as u64));
            }
            self.subtree(*child, 1, child_start, child_end)?;
        }
        Ok(())
    }

    /// A leaf that nothing falls into stays what it is.
    fn keep_leaf(&mut self, child: Child, pivot: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.finish_leaf()?;
        self.leaves.push(Placed { pivot: pivot.to_vec(), child });
        self.before = Before::Kept(end.unwrap_or_default().to_vec());
        Ok(())
    }

    /// Whether the next newer entry falls before `end`.
    fn source_is_before(&mut self, end: Option<&[u8]>) -> Result<bool> {
        let Some(known) = self.source.peek()? else { return Ok(false) };
        let Some(end) = end else { return Ok(true) };
        if let Some(ordering) = known.compare_to(end) {
            return Ok(ordering == Ordering::Less);
        }
        self.log.complete(known)?;
        Ok(known.bytes.as_slice() < end)
    }

    fn merge_leaf(&mut self, keys: Vec<KnownKey>, end: Option<&[u8]>) -> Result<()> {
        for mut old in keys {
            let mut is_replaced = false;
            while let Some(newer) = self.source.peek()? {
                match self.log.compare(newer, &mut old)? {
                    Ordering::Greater => break,
                    ordering => {
                        is_replaced = ordering == Ordering::Equal;
                        if let Some(newer) = self.source.next()? {
                            self.put(newer)?;
                        }
                        if is_replaced {
                            break;
                        }
                    }
                }
            }
            self.taken_out += 1;
            if is_replaced {
                self.garbage.push(old.pointer);
            } else {
                self.put(old)?;
            }
        }
        self.rest_of_source(end)
    }

    fn rest_of_source(&mut self, end: Option<&[u8]>) -> Result<()> {
        while self.source_is_before(end)? {
            if let Some(newer) = self.source.next()? {
                self.put(newer)?;
            }
        }
        Ok(())
    }

    /// Appends an entry to the new tree.
    fn put(&mut self, key: KnownKey) -> Result<()> {
        if self.is_lowest && key.pointer.kind() == PointerKind::Tombstone {
            self.garbage.push(key.pointer);
            return Ok(());
        }
        self.put_in += 1;
        if let Err(key) = self.leaf.push(key) {
            self.finish_leaf()?;
            if self.leaf.push(key).is_err() {
                unreachable!("an empty leaf has room for a key");
            }
        }
        Ok(())
    }

    fn finish_leaf(&mut self) -> Result<()> {
        let (Some(first), Some(last)) = (self.leaf.keys().first().cloned(), self.leaf.keys().last().cloned()) else {
            return Ok(());
        };
        let pivot = match std::mem::replace(&mut self.before, Before::Key(last)) {
            Before::Nothing => Vec::new(),
            Before::Key(before) => self.separator(before, first)?,
            Before::Kept(pivot) => pivot,
        };
        let (uuid, region, epoch) = (self.writer.segment().uuid, self.writer.region, self.writer.epoch);
        let leaf = &mut self.leaf;
        let offset = self.writer.write(Which::Leaf, |offset| leaf.finish(uuid, region, offset, epoch))?;
        self.leaves.push(Placed { pivot, child: Child::new(offset, epoch) });
        Ok(())
    }

    /// The shortest front of `after` that is greater than `before`.
    fn separator(&self, mut before: KnownKey, mut after: KnownKey) -> Result<Vec<u8>> {
        let mut shared = common_prefix(&before.bytes, &after.bytes);
        if shared == after.bytes.len() || (shared == before.bytes.len() && !before.complete) {
            self.log.complete(&mut before)?;
            self.log.complete(&mut after)?;
            shared = common_prefix(&before.bytes, &after.bytes);
        }
        Ok(after.bytes[..after.bytes.len().min(shared + 1)].to_vec())
    }

    fn finish_tree(&mut self, old: Option<Root>) -> Result<Option<Root>> {
        self.finish_leaf()?;
        let mut nodes = std::mem::take(&mut self.leaves);
        let mut height = 1;
        while nodes.len() > 1 {
            nodes = self.branches(nodes)?;
            height += 1;
        }
        let (entries, blocks) = old.map_or((0, 0), |root| (root.entries, root.blocks));
        Ok(nodes.first().map(|top| Root {
            offset: top.child.offset(),
            epoch: top.child.epoch_bits(),
            entries: entries.saturating_add(self.put_in).saturating_sub(self.taken_out),
            height,
            blocks: blocks.saturating_add(self.writer.blocks() as u32).saturating_sub(self.outdated.len() as u32),
        }))
    }

    /// The level above some nodes.
    fn branches(&mut self, children: Vec<Placed>) -> Result<Vec<Placed>> {
        let mut above = Vec::new();
        let mut builder = BranchBuilder::default();
        for Placed { pivot, child } in children {
            debug_assert!(pivot.len() <= PIVOT_BYTES_MAX);
            if !builder.has_room(pivot.len()) {
                above.push(self.finish_branch(&mut builder)?);
            }
            builder.push(pivot, child);
        }
        if !builder.is_empty() {
            above.push(self.finish_branch(&mut builder)?);
        }
        Ok(above)
    }

    fn finish_branch(&mut self, builder: &mut BranchBuilder) -> Result<Placed> {
        let (uuid, region, epoch) = (self.writer.segment().uuid, self.writer.region, self.writer.epoch);
        let mut own = Vec::new();
        let offset = self.writer.write(Which::Branch, |offset| {
            let (pivot, block) = builder.finish(uuid, region, offset, epoch);
            own = pivot;
            block
        })?;
        Ok(Placed { pivot: own, child: Child::new(offset, epoch) })
    }
}
