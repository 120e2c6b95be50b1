//! Going through a tree in order, up or down.

use std::cmp::Ordering;
use std::ops::Bound;

use crate::error::Result;
use crate::format::branch::{Branch, Child};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::{KnownKey, Leaf};
use crate::tree::{Node, Tree};

/// Leaves that are read ahead of the one that a cursor comes to.
const AHEAD: usize = 4;

/// Which way somebody goes through keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// A place in a tree: at an entry, or behind the last one on its way.
pub(crate) struct Cursor<'log> {
    tree: Tree<'log>,
    direction: Direction,
    /// The inner nodes above the leaf, from the root, each with the child that was taken.
    path: Vec<(Branch<'log>, usize)>,
    leaf: Option<(Leaf<'log>, usize)>,
}

impl<'log> Cursor<'log> {
    /// At the first entry on the way that is within a bound.
    pub(crate) fn seek(tree: Tree<'log>, bound: Bound<&[u8]>, direction: Direction) -> Result<Self> {
        let mut cursor = Cursor { tree, direction, path: Vec::new(), leaf: None };
        let height = tree.height()?;
        match bound {
            Bound::Included(key) | Bound::Excluded(key) => {
                cursor.descend(tree.root_child(), height, |branch| branch.find(key))?;
            }
            Bound::Unbounded => cursor.descend_to_the_first(tree.root_child(), height)?,
        }
        let Some((leaf, _)) = cursor.leaf else { return Ok(cursor) };
        let less = |key| cursor.count(&leaf, key, |ordering| ordering == Ordering::Less);
        let not_greater = |key| cursor.count(&leaf, key, |ordering| ordering != Ordering::Greater);
        // How many of the leaf's entries are before the place.
        let before = match (bound, direction) {
            (Bound::Unbounded, Direction::Up) => 0,
            (Bound::Unbounded, Direction::Down) => leaf.len(),
            (Bound::Included(key), Direction::Up) | (Bound::Excluded(key), Direction::Down) => less(key)?,
            (Bound::Excluded(key), Direction::Up) | (Bound::Included(key), Direction::Down) => not_greater(key)?,
        };
        match direction {
            Direction::Up => cursor.go_to(leaf, Some(before))?,
            Direction::Down => cursor.go_to(leaf, before.checked_sub(1))?,
        }
        Ok(cursor)
    }

    /// At the first entry, to go up.
    pub(crate) fn first(tree: Tree<'log>) -> Result<Self> {
        Self::seek(tree, Bound::Unbounded, Direction::Up)
    }

    /// How many of a leaf's entries compare so to a key, as the first of them do.
    fn count(&self, leaf: &Leaf<'log>, key: &[u8], is_counted: impl Fn(Ordering) -> bool) -> Result<usize> {
        let candidates = leaf.candidates(key);
        let (mut low, mut high) = (candidates.start, candidates.end);
        while low < high {
            let middle = low.midpoint(high);
            let mut known = leaf.key(middle);
            let ordering = match known.compare_to(key) {
                Some(ordering) => ordering,
                None => {
                    self.tree.log.complete(&mut known)?;
                    known.bytes.as_slice().cmp(key)
                }
            };
            if is_counted(ordering) { low = middle + 1 } else { high = middle }
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

    /// To the leaf below a node that is the first on the way.
    fn descend_to_the_first(&mut self, child: Child, height: u16) -> Result<()> {
        match self.direction {
            Direction::Up => self.descend(child, height, |_| 0),
            Direction::Down => self.descend(child, height, |branch| branch.len() - 1),
        }
    }

    /// To an entry of a leaf, or if that is not there to the next leaf that has any.
    fn go_to(&mut self, leaf: Leaf<'log>, index: Option<usize>) -> Result<()> {
        match index {
            Some(index) if index < leaf.len() => {
                self.leaf = Some((leaf, index));
                Ok(())
            }
            _ => self.next_leaf(),
        }
    }

    /// To the first entry on the way of the next leaf that has any.
    fn next_leaf(&mut self) -> Result<()> {
        let height = self.tree.height()?;
        loop {
            self.leaf = None;
            // Up to where there is another child on the way.
            let (branch, index) = loop {
                let Some((branch, index)) = self.path.pop() else { return Ok(()) };
                let next = match self.direction {
                    Direction::Up => Some(index + 1).filter(|next| *next < branch.len()),
                    Direction::Down => index.checked_sub(1),
                };
                if let Some(next) = next {
                    break (branch, next);
                }
            };
            self.path.push((branch, index));
            let below = height - self.path.len() as u16;
            if below == 1 {
                self.read_ahead(&branch, index);
            }
            self.descend_to_the_first(branch.child(index), below)?;
            if let Some((leaf, index)) = &mut self.leaf
                && leaf.len() > 0
            {
                *index = if self.direction == Direction::Up { 0 } else { leaf.len() - 1 };
                return Ok(());
            }
        }
    }

    fn read_ahead(&self, branch: &Branch<'log>, index: usize) {
        let ahead = match self.direction {
            Direction::Up => index + 1..branch.len().min(index + 1 + AHEAD),
            Direction::Down => index.saturating_sub(AHEAD)..index,
        };
        let leaves = ahead.map(|index| branch.child(index).offset());
        self.tree.log.device().prefetch(leaves.map(|offset| offset..offset + BLOCK_BYTES as u64));
    }

    /// What is known of the entry that it is at.
    pub(crate) fn current(&self) -> Option<KnownKey> {
        let (leaf, index) = self.leaf?;
        Some(leaf.key(index))
    }

    /// To the next entry on the way.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some((leaf, index)) = self.leaf else { return Ok(()) };
        match self.direction {
            Direction::Up => self.go_to(leaf, Some(index + 1)),
            Direction::Down => self.go_to(leaf, index.checked_sub(1)),
        }
    }
}
