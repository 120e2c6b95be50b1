//! Going through a tree in order, up or down.

use std::cmp::Ordering;

use crate::error::Result;
use crate::format::branch::{Branch, Child};
use crate::format::leaf::{KnownKey, Leaf};
use crate::tree::{Node, Tree};

/// A place in a tree: at an entry, or behind the last one.
pub(crate) struct Cursor<'log> {
    tree: Tree<'log>,
    /// The inner nodes above the leaf, from the root, each with the child that was taken.
    path: Vec<(Branch<'log>, usize)>,
    leaf: Option<(Leaf<'log>, usize)>,
}

impl<'log> Cursor<'log> {
    /// At the first entry whose key is not less.
    pub(crate) fn seek(tree: Tree<'log>, key: &[u8]) -> Result<Self> {
        let mut cursor = Cursor { tree, path: Vec::new(), leaf: None };
        cursor.descend(tree.root_child(), tree.height()?, |branch| branch.find(key))?;
        if let Some((leaf, _)) = cursor.leaf {
            let index = cursor.lower_bound(&leaf, key)?;
            cursor.leaf = Some((leaf, index));
            cursor.settle()?;
        }
        Ok(cursor)
    }

    /// At the first entry.
    pub(crate) fn first(tree: Tree<'log>) -> Result<Self> {
        Self::seek(tree, &[])
    }

    /// How many of a leaf's entries are less than a key.
    fn lower_bound(&self, leaf: &Leaf<'log>, key: &[u8]) -> Result<usize> {
        let candidates = leaf.candidates(key);
        let (mut low, mut high) = (candidates.start, candidates.end);
        while low < high {
            let half = low.midpoint(high);
            // What is superseded is passed over: its key may not be known any more.
            let Some(middle) = (half..high).find(|index| !self.tree.is_superseded(leaf, *index)) else {
                high = half;
                continue;
            };
            let mut known = leaf.key(middle);
            let is_less = match known.compare_to(key) {
                Some(ordering) => ordering == Ordering::Less,
                None => {
                    self.tree.log.complete(&mut known)?;
                    known.bytes.as_slice() < key
                }
            };
            if is_less { low = middle + 1 } else { high = half }
        }
        Ok(low)
    }

    fn descend(&mut self, child: Child, height: u16, choose: impl Fn(&Branch<'log>) -> usize) -> Result<()> {
        let (mut child, mut height) = (child, height);
        loop {
            match self.tree.node(child, height)? {
                Node::Leaf(leaf) => {
                    self.leaf = Some((leaf, 0));
                    return Ok(());
                }
                Node::Branch(branch) => {
                    let index = choose(&branch);
                    child = branch.child(index);
                    self.path.push((branch, index));
                }
            }
            height -= 1;
        }
    }

    /// To the first entry of the next leaf that has any.
    fn next_leaf(&mut self) -> Result<()> {
        let height = self.tree.height()?;
        loop {
            self.leaf = None;
            // Up to where there is another child to the right.
            let above = loop {
                let Some((branch, index)) = self.path.pop() else { return Ok(()) };
                if index + 1 < branch.len() {
                    break (branch, index + 1);
                }
            };
            let child = above.0.child(above.1);
            self.path.push(above);
            let below = height - self.path.len() as u16;
            self.descend(child, below, |_| 0)?;
            if self.leaf.is_some_and(|(leaf, _)| leaf.len() > 0) {
                return Ok(());
            }
        }
    }

    /// What is known of the entry that it is at.
    pub(crate) fn current(&self) -> Option<KnownKey> {
        let (leaf, index) = self.leaf?;
        (index < leaf.len()).then(|| leaf.key(index))
    }

    /// To the next entry.
    pub(crate) fn advance(&mut self) -> Result<()> {
        if let Some((_, index)) = &mut self.leaf {
            *index += 1;
        }
        self.settle()
    }

    /// Goes on to an entry that is not superseded, if it is not at one.
    fn settle(&mut self) -> Result<()> {
        while let Some((leaf, index)) = self.leaf {
            if index >= leaf.len() {
                self.next_leaf()?;
            } else if self.tree.is_superseded(&leaf, index) {
                self.leaf = Some((leaf, index + 1));
            } else {
                break;
            }
        }
        Ok(())
    }
}
