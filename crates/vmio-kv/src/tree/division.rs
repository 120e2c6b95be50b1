//! Division of a tree for a merge, at the pivots of its upper inner nodes, into parts that several threads can merge.

use crate::error::Result;
use crate::format::branch::Branch;
use crate::format::child::Child;
use crate::format::pivot::{OwnedPivot, Rest};
use crate::tree::Tree;

/// A node in its place in a tree.
pub(super) struct Placed {
    /// None of its keys is less.
    pub(super) pivot: OwnedPivot,
    pub(super) child: Child,
}

/// Neighbouring nodes of one height, with all that is below them.
pub(super) struct Part {
    /// Keys of the part are no less than this,
    pub(super) start: OwnedPivot,
    /// and less than this, unless it is the last part.
    pub(super) end: Option<OwnedPivot>,
    pub(super) nodes: Vec<Placed>,
    /// The height of the inner nodes above the part's.
    pub(super) height: u16,
}

/// A tree in parts.
pub(super) struct Division {
    pub(super) parts: Vec<Part>,
    /// The nodes above all parts.
    pub(super) above: Vec<u64>,
    /// The long pivots of these nodes.
    pub(super) long_pivots: Vec<Rest>,
}

impl Division {
    /// Divides a tree into at most `parts_max` parts, with about the same number of nodes each, at the first height with enough nodes.
    pub(super) fn new(tree: Tree<'_>, parts_max: usize) -> Result<Self> {
        let mut height = tree.height()?;
        let mut nodes = vec![Placed { pivot: OwnedPivot::default(), child: tree.root_child() }];
        let (mut above, mut long_pivots) = (Vec::new(), Vec::new());
        while nodes.len() < parts_max && height > 1 {
            let mut below = Vec::new();
            for Placed { pivot, child } in nodes {
                above.push(child.offset());
                let first = below.len();
                below.extend(children(tree, child)?);
                long_pivots.extend(below[first..].iter().filter_map(|child| child.pivot.rest));
                // The first child's pivot is not in its node, but above.
                below[first].pivot = pivot;
            }
            nodes = below;
            height -= 1;
        }
        let nodes_a_part = nodes.len().div_ceil(parts_max.max(1));
        let mut parts: Vec<Part> = Vec::new();
        let mut nodes = nodes.into_iter().peekable();
        while let Some(first) = nodes.peek() {
            let start = first.pivot.clone();
            let of_part = nodes.by_ref().take(nodes_a_part).collect();
            let end = nodes.peek().map(|next| next.pivot.clone());
            parts.push(Part { start, end, nodes: of_part, height: height + 1 });
        }
        Ok(Division { parts, above, long_pivots })
    }
}

/// An inner node's children in order.
pub(super) fn children(tree: Tree<'_>, node: Child) -> Result<Vec<Placed>> {
    tree.branch(node, |branch: &Branch<'_>| {
        let placed = |index| Placed { pivot: branch.pivot(index).to_owned(), child: branch.child(index) };
        Ok((0..branch.len()).map(placed).collect())
    })
}

#[cfg(test)]
mod tests {
    use vmio::backing::MemoryBacking;

    use super::*;
    use crate::format::geometry::BLOCK_BYTES;
    use crate::{Db, Durability, Options};

    /// Divides the tree of these keys in several ways.
    fn divide(mut keys: impl Iterator<Item = Vec<u8>>, height: u16) -> Result<()> {
        let options = Options::new().memory_bytes(32 << 20).memtable_bytes(200 << 10).growth_factor(100);
        let db = Db::create_on(MemoryBacking::new(256 << 20)?, options.durability(Durability::None))?;
        keys.try_for_each(|key| db.put(&key, b"x"))?;
        db.flush()?;
        let keyspace = db.default_keyspace().keyspace();
        let version = keyspace.version();
        let root = version.levels[1].active.expect("a tree");
        assert_eq!(root.height, height);
        let tree = Tree::new(&keyspace.log, keyspace.number, root, version.epoch);
        for parts_max in [1, 2, 3, 16, 100] {
            let Division { parts, mut above, long_pivots } = Division::new(tree, parts_max)?;
            assert!(parts.len() <= parts_max && parts.len() > parts_max / 2, "{} of {parts_max}", parts.len());
            assert!(parts[0].start.front.is_empty() && parts.last().is_some_and(|last| last.end.is_none()));
            let starts = parts.iter().map(|part| tree.whole_pivot(&part.start)).collect::<Result<Vec<_>>>()?;
            assert!(starts.windows(2).all(|two| two[0] < two[1]));
            assert!(parts.windows(2).all(|two| two[0].end.as_ref() == Some(&two[1].start)));
            let most = parts.iter().map(|part| part.nodes.len()).max();
            assert!(parts[..parts.len() - 1].iter().all(|part| Some(part.nodes.len()) == most));
            let mut rests = long_pivots;
            for part in parts {
                assert_eq!(part.start, part.nodes[0].pivot);
                let mut nodes = part.nodes;
                for height in (1..part.height).rev() {
                    above.extend(nodes.iter().map(|node| node.child.offset()));
                    if height > 1 {
                        let below = nodes.iter().map(|node| children(tree, node.child)).collect::<Result<Vec<_>>>()?;
                        nodes = below.into_iter().flatten().collect();
                        rests.extend(nodes.iter().filter_map(|node| node.pivot.rest));
                    }
                }
            }
            for rest in rests {
                above.extend(tree.blocks_of(rest)?);
            }
            above.sort_unstable();
            let runs = tree.blocks()?;
            let blocks =
                runs.iter().flat_map(|run| (0..run.blocks).map(move |block| run.offset + block * BLOCK_BYTES as u64));
            let mut all: Vec<u64> = blocks.collect();
            all.sort_unstable();
            assert_eq!(above, all);
        }
        Ok(())
    }

    #[test]
    fn parts_are_neighbours_of_about_one_size_and_cover_the_tree() -> Result<()> {
        divide((0..60_000_u32).map(|number| number.wrapping_mul(0x9e37_79b9).to_be_bytes().to_vec()), 3)
    }

    #[test]
    fn parts_may_begin_at_long_pivots() -> Result<()> {
        divide((0..12_000_u32).map(|number| [vec![b'f'; 1500], number.to_be_bytes().to_vec()].concat()), 3)
    }
}
