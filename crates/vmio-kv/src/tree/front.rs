//! Takes the first leaves out of a tree. The rest is a tree of its own, which shares all its leaves with the old one.

use crate::error::Result;
use crate::format::catalogue::Root;
use crate::format::leaf::Entry;
use crate::format::pivot::OwnedPivot;
use crate::log::Log;
use crate::tree::Tree;
use crate::tree::division::{Placed, children};
use crate::tree::merge::{Done, Merged};
use crate::tree::node_writer::{NodeSpace, NodeWriter};
use crate::volume::chunk_generations::OF_MERGES;

/// The walk through a tree that is divided.
struct Walk<'walk, Take> {
    tree: Tree<'walk>,
    writer: NodeWriter<'walk>,
    done: Done<'walk>,
    take: Take,
    is_taking: bool,
}

/// Takes leaves out of a tree of a keyspace's level, from the first one on. It hands their entries to `take`, leaf by leaf, until that
/// returns `false`. Returns the tree without these leaves.
pub(crate) fn take_front(
    log: &Log,
    (keyspace, level): (u32, u8),
    root: Root,
    take: impl FnMut(Vec<Entry>) -> bool,
) -> Result<Merged> {
    let tree = Tree::new(log, keyspace, root, OF_MERGES);
    let space = NodeSpace::new(&log.segment, keyspace, level);
    let (writer, done) = (NodeWriter::new(&space), Done::none(&space));
    let mut walk = Walk { tree, writer, done, take, is_taking: true };
    walk.node(Placed { pivot: OwnedPivot::default(), child: tree.root_child() }, tree.height()?)?;
    let Walk { writer, done, .. } = walk;
    done.into_tree(writer, Some((tree, root)))
}

impl<Take: FnMut(Vec<Entry>) -> bool> Walk<'_, Take> {
    fn node(&mut self, node: Placed, height: u16) -> Result<()> {
        if height > 1 {
            self.done.retired.push(node.child.offset());
            let children = children(self.tree, node.child)?;
            self.done.long_pivots.extend(children.iter().filter_map(|child| child.pivot.rest));
            for (index, child) in children.into_iter().enumerate() {
                // The first child's pivot is not in its node, but above.
                let pivot = if index == 0 { node.pivot.clone() } else { child.pivot };
                self.node(Placed { pivot, child: child.child }, height - 1)?;
            }
            return Ok(());
        }
        if !self.is_taking {
            return self.done.upper.push(&mut self.writer, node);
        }
        self.done.retired.push(node.child.offset());
        let (entries, superseded) = self.tree.entries(node.child)?;
        self.done.taken_out += entries.len() as u64 + superseded;
        self.is_taking = (self.take)(entries);
        Ok(())
    }
}
