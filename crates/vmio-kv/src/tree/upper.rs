//! The inner nodes of a new tree. Those right above the leaves are written as the leaves come, so that memory does not grow with the leaves.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::format::branch::BranchBuilder;
use crate::format::pivot::{OwnedPivot, Rest};
use crate::tree::division::Placed;
use crate::tree::node_writer::{NodeWriter, Which};

/// The height of the nodes right above the leaves.
const ABOVE_LEAVES: u16 = 2;

/// The inner nodes above the leaves of a new tree, or of a part of it, so far.
#[derive(Default)]
pub(super) struct Upper {
    /// Nodes of that height that were written.
    nodes: Vec<Placed>,
    /// The leaves behind those nodes.
    last: BranchBuilder,
    /// The places of the first pieces of the leaves' long pivots.
    long_pivots: BTreeSet<u64>,
}

/// The top of a tree.
pub(super) struct Top {
    pub(super) node: Placed,
    pub(super) height: u16,
}

impl Upper {
    /// Adds a leaf at the end.
    pub(super) fn push(&mut self, writer: &mut NodeWriter<'_>, leaf: Placed) -> Result<()> {
        self.long_pivots.extend(leaf.pivot.rest.map(place));
        if !self.last.has_space(&leaf.pivot) {
            self.nodes.push(finish(writer, &mut self.last)?);
        }
        self.last.push(leaf.pivot, leaf.child);
        Ok(())
    }

    /// Adds the leaves of the next part.
    pub(super) fn append(&mut self, writer: &mut NodeWriter<'_>, mut next: Self) -> Result<()> {
        self.long_pivots.append(&mut next.long_pivots);
        if next.nodes.is_empty() {
            let leaves = next.last.into_children();
            return leaves.into_iter().try_for_each(|(pivot, child)| self.push(writer, Placed { pivot, child }));
        }
        if !self.last.is_empty() {
            self.nodes.push(finish(writer, &mut self.last)?);
        }
        self.nodes.append(&mut next.nodes);
        self.last = next.last;
        Ok(())
    }

    /// Writes the remaining nodes. Without leaves there is no top; a single leaf is the top itself.
    pub(super) fn finish(&mut self, writer: &mut NodeWriter<'_>) -> Result<Option<Top>> {
        let (mut nodes, mut height) = (std::mem::take(&mut self.nodes), ABOVE_LEAVES);
        match self.last.len() {
            1 if nodes.is_empty() => {
                let leaf = std::mem::take(&mut self.last).into_children().into_iter();
                (nodes, height) = (leaf.map(|(pivot, child)| Placed { pivot, child }).collect(), 1);
            }
            0 => {}
            _ => nodes.push(finish(writer, &mut self.last)?),
        }
        if let Some(first) = nodes.first_mut() {
            // Nothing is before it: no node has its pivot.
            let pivot = std::mem::take(&mut first.pivot);
            pivot.rest.into_iter().for_each(|rest| _ = self.long_pivots.remove(&place(rest)));
        }
        while nodes.len() > 1 {
            nodes = branches(writer, nodes)?;
            height += 1;
        }
        Ok(nodes.pop().map(|node| Top { node, height }))
    }

    /// Whether a long pivot is that of a leaf.
    pub(super) fn has(&self, long_pivot: Rest) -> bool {
        self.long_pivots.contains(&place(long_pivot))
    }
}

fn place(rest: Rest) -> u64 {
    rest.first.offset()
}

/// The level above some nodes.
fn branches(writer: &mut NodeWriter<'_>, children: Vec<Placed>) -> Result<Vec<Placed>> {
    let mut above = Vec::new();
    let mut builder = BranchBuilder::default();
    for Placed { pivot, child } in children {
        if !builder.has_space(&pivot) {
            above.push(finish(writer, &mut builder)?);
        }
        builder.push(pivot, child);
    }
    if !builder.is_empty() {
        above.push(finish(writer, &mut builder)?);
    }
    Ok(above)
}

/// Writes a node, and empties its builder.
fn finish(writer: &mut NodeWriter<'_>, builder: &mut BranchBuilder) -> Result<Placed> {
    let space = writer.space();
    let mut own = OwnedPivot::default();
    let child = writer.write(Which::Branch, |offset, epoch| {
        let (pivot, block) = builder.finish(space.segment.uuid, space.keyspace, offset, epoch);
        own = pivot;
        block
    })?;
    Ok(Placed { pivot: own, child })
}

#[cfg(test)]
mod tests {
    use vmio::backing::MemoryBacking;

    use super::*;
    use crate::format::catalogue::Root;
    use crate::format::child::Child;
    use crate::format::geometry::BLOCK_BYTES;
    use crate::tree::Tree;
    use crate::tree::division::children;
    use crate::tree::node_writer::NodeSpace;
    use crate::{Db, Options};

    fn leaf(number: u64) -> Placed {
        let pivot = OwnedPivot { front: number.to_be_bytes().to_vec(), rest: None };
        Placed { pivot, child: Child::new((1 + number) * BLOCK_BYTES as u64, 1) }
    }

    fn leaves_below(tree: Tree<'_>, node: Child, height: u16, leaves: &mut Vec<u64>) -> Result<()> {
        if height == 1 {
            leaves.push(node.offset() / BLOCK_BYTES as u64 - 1);
            return Ok(());
        }
        children(tree, node)?.iter().try_for_each(|below| leaves_below(tree, below.child, height - 1, leaves))
    }

    #[test]
    fn parts_make_one_tree_and_memory_does_not_grow_with_the_leaves() -> Result<()> {
        let db = Db::create_on(MemoryBacking::new(256 << 20)?, Options::new().memory_bytes(32 << 20))?;
        let keyspace = db.default_keyspace().keyspace();
        let space = NodeSpace::new(&keyspace.log.segment, keyspace.number, 1);
        let cases = [
            (&[0][..], None),
            (&[1], Some(1)),
            (&[0, 1, 0], Some(1)),
            (&[1, 1], Some(2)),
            (&[5, 0, 7], Some(2)),
            (&[1, 3_000], Some(3)),
            (&[3_000, 1], Some(3)),
            (&[20_000, 3, 0, 1, 20_000, 400], Some(3)),
        ];
        for (parts, height) in cases {
            let mut writer = NodeWriter::new(&space);
            let (mut upper, mut count) = (Upper::default(), 0);
            for leaves in parts {
                let mut part = Upper::default();
                for number in count..count + leaves {
                    part.push(&mut writer, leaf(number))?;
                    assert!(part.nodes.len() + part.last.len() < 400, "{number} leaves");
                }
                count += leaves;
                upper.append(&mut writer, part)?;
            }
            let top = upper.finish(&mut writer)?;
            let taken = writer.finish()?;
            assert_eq!(top.as_ref().map(|top| top.height), height, "{parts:?}");
            let Some(Top { node, height }) = top else { continue };
            let mut leaves = Vec::new();
            let (offset, epoch) = (node.child.offset(), node.child.epoch_bits());
            let root = Root { offset, epoch, entries: 0, height, blocks: taken.blocks() as u32 };
            let tree = Tree::new(&keyspace.log, keyspace.number, root, keyspace.log.segment.next_epoch());
            leaves_below(tree, node.child, height, &mut leaves)?;
            assert_eq!(leaves, Vec::from_iter(0..count));
        }
        Ok(())
    }
}
