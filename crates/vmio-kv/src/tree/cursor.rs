//! A cursor over a tree, up or down.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::{Bound, Deref, Range, RangeInclusive};

use crate::error::Result;
use crate::format::block::Kind;
use crate::format::branch::Branch;
use crate::format::catalogue::Root;
use crate::format::child::Child;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::{Entry, KnownKey, Leaf};
use crate::log::Log;
use crate::tree::Tree;

/// How many entries a cursor takes from a leaf at a time.
const BATCH: usize = 16;
/// How many superseded entries a cursor skips before it tells its caller, which may know a way past them.
const SKIPPED_MAX: usize = 64;
/// How many leaves are prefetched at a time: no more than the cursor has passed, and none before it has passed some. So a short walk reads
/// none in vain, and wakes no thread.
const AHEAD: RangeInclusive<usize> = 4..=8;

/// The direction of a walk through keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// A node on the path to a place, and the part of it that the path goes through.
#[derive(Clone, Copy)]
struct Step {
    node: Child,
    index: usize,
    parts: usize,
}

impl Step {
    /// At the first part in a direction.
    fn first(node: Child, parts: usize, direction: Direction) -> Self {
        Step { node, index: if direction == Direction::Up { 0 } else { parts - 1 }, parts }
    }

    /// At the part that comes `by` parts later, if there is one.
    fn later(self, by: usize, direction: Direction) -> Option<Self> {
        let index = match direction {
            Direction::Up => Some(self.index + by).filter(|index| *index < self.parts),
            Direction::Down => self.index.checked_sub(by),
        };
        index.map(|index| Step { index, ..self })
    }

    /// At most `most` parts, from this one on.
    fn ahead(self, most: usize, direction: Direction) -> Range<usize> {
        match direction {
            Direction::Up => self.index..self.parts.min(self.index + most),
            Direction::Down => (self.index + 1).saturating_sub(most)..self.index + 1,
        }
    }
}

/// A place in a tree: before an entry, or behind the last one in its direction. It keeps no node pinned.
pub(crate) struct Cursor<L> {
    /// The log of the tree.
    log: L,
    keyspace: u32,
    root: Root,
    epoch: u64,
    direction: Direction,
    /// Whether entries bring the values that leaves hold.
    with_values: bool,
    /// The inner nodes above the leaf, from the root down.
    path: Vec<Step>,
    /// How many leaves the cursor has left behind, and how many of the next ones it has prefetched.
    passed: usize,
    prefetched: usize,
    /// The entry behind the batch, if it is in the same leaf.
    leaf: Option<Step>,
    /// The next entries.
    batch: VecDeque<Entry>,
    /// The last of many skipped keys, if the batch is empty and the cursor has not reached the end.
    skipped: Option<KnownKey>,
}

impl<L: Deref<Target = Log> + Clone> Cursor<L> {
    /// A cursor before the first entry within a bound, as a version of that epoch sees the tree.
    pub(crate) fn seek(
        log: &L,
        keyspace: u32,
        root: Root,
        epoch: u64,
        bound: Bound<&[u8]>,
        (direction, with_values): (Direction, bool),
    ) -> Result<Self> {
        let mut cursor = Cursor {
            log: log.clone(),
            keyspace,
            root,
            epoch,
            direction,
            with_values,
            path: Vec::new(),
            passed: 0,
            prefetched: 0,
            leaf: None,
            batch: VecDeque::new(),
            skipped: None,
        };
        let tree = Tree::new(log, keyspace, root, epoch);
        let node = match bound {
            Bound::Included(key) | Bound::Excluded(key) => {
                let find = |branch: &Branch<'_>, node| tree.find(branch, node, key);
                cursor.descend(tree.root_child(), tree.height()?, find)?
            }
            Bound::Unbounded => cursor.descend_to_the_first(tree.root_child(), tree.height()?)?,
        };
        cursor.leaf = tree.leaf(node, |leaf| {
            let less = |key| count(tree, leaf, key, |ordering| ordering == Ordering::Less);
            let not_greater = |key| count(tree, leaf, key, |ordering| ordering != Ordering::Greater);
            let parts = leaf.len();
            // How many of the leaf's entries are before the place.
            let before = match (bound, direction) {
                (Bound::Unbounded, Direction::Up) => 0,
                (Bound::Unbounded, Direction::Down) => parts,
                (Bound::Included(key), Direction::Up) | (Bound::Excluded(key), Direction::Down) => less(key)?,
                (Bound::Excluded(key), Direction::Up) | (Bound::Included(key), Direction::Down) => not_greater(key)?,
            };
            let index = match direction {
                Direction::Up => Some(before).filter(|index| *index < parts),
                Direction::Down => before.checked_sub(1),
            };
            Ok(index.map(|index| Step { node, index, parts }))
        })?;
        cursor.fill()?;
        Ok(cursor)
    }

    /// Moves to the first entry within a bound.
    pub(crate) fn skip_to(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        let how = (self.direction, self.with_values);
        *self = Cursor::seek(&self.log, self.keyspace, self.root, self.epoch, bound, how)?;
        Ok(())
    }

    fn tree(&self) -> Tree<'_> {
        Tree::new(&self.log, self.keyspace, self.root, self.epoch)
    }

    /// Descends from a node to the leaf that `choose` leads to.
    fn descend(
        &mut self,
        node: Child,
        height: u16,
        choose: impl Fn(&Branch<'_>, Child) -> Result<usize>,
    ) -> Result<Child> {
        let mut node = node;
        for _ in 1..height {
            let (step, child) = self.tree().branch(node, |branch| {
                let index = choose(branch, node)?;
                Ok((Step { node, index, parts: branch.len() }, branch.child(index)))
            })?;
            self.path.push(step);
            node = child;
        }
        Ok(node)
    }

    /// Descends from a node to its first leaf in the direction.
    fn descend_to_the_first(&mut self, node: Child, height: u16) -> Result<Child> {
        match self.direction {
            Direction::Up => self.descend(node, height, |_, _| Ok(0)),
            Direction::Down => self.descend(node, height, |branch, _| Ok(branch.len() - 1)),
        }
    }

    /// The first entry of the next leaf that has any.
    fn next_leaf(&mut self) -> Result<Option<Step>> {
        let height = self.tree().height()?;
        loop {
            // Up to a node with another child in the direction.
            let above = loop {
                let Some(step) = self.path.pop() else { return Ok(None) };
                if let Some(next) = step.later(1, self.direction) {
                    break next;
                }
            };
            self.path.push(above);
            let below = height - self.path.len() as u16;
            // This one, and those behind it.
            let is_long = self.passed >= *AHEAD.start();
            let prefetches = below == 1 && self.prefetched == 0 && is_long;
            let most = if prefetches { 1 + self.passed.min(*AHEAD.end()) } else { 1 };
            let ahead = above.ahead(most, self.direction);
            let (child, ahead): (Child, Vec<Child>) = self.tree().branch(above.node, |branch| {
                let behind = ahead.clone().filter(|index| *index < branch.len() && *index != above.index);
                Ok((branch.child(above.index.min(branch.len() - 1)), behind.map(|index| branch.child(index)).collect()))
            })?;
            self.passed += 1;
            self.prefetched = self.prefetched.saturating_sub(1) + ahead.len();
            if !ahead.is_empty() {
                let leaves = ahead.iter().map(|leaf| leaf.offset());
                self.log.device().prefetch(leaves.map(|offset| offset..offset + BLOCK_BYTES as u64));
            }
            let node = self.descend_to_the_first(child, below)?;
            let parts = self.tree().leaf(node, |leaf| Ok(leaf.len()))?;
            if parts > 0 {
                return Ok(Some(Step::first(node, parts, self.direction)));
            }
        }
    }

    /// Takes some entries from the leaf, or from the next one that has any. It skips superseded entries. After many of them it stops at a
    /// key that is known as a whole.
    fn fill(&mut self) -> Result<()> {
        let mut skipped = 0;
        self.skipped = None;
        while self.batch.is_empty() {
            let next = match self.leaf.take() {
                Some(next) => Some(next),
                None => self.next_leaf()?,
            };
            let Some(next) = next else { return Ok(()) };
            let indexes = next.ahead(BATCH, self.direction);
            let last = if self.direction == Direction::Up { indexes.end - 1 } else { indexes.start };
            let tree = self.tree();
            let (entries, last): (Vec<Entry>, Option<KnownKey>) = tree.leaf(next.node, |leaf| {
                let is_there = |index: &usize| *index < leaf.len() && !tree.is_superseded(leaf, *index);
                let entry = |index| match self.with_values {
                    true => leaf.entry(index),
                    false => Ok(Entry::to_record(leaf.key(index))),
                };
                let mut entries = Vec::with_capacity(BATCH);
                for index in indexes.clone().filter(is_there) {
                    entries.push(entry(index).map_err(tree.damaged(Kind::Leaf, next.node))?);
                }
                let all_skipped = entries.is_empty() && last < leaf.len();
                Ok((entries, all_skipped.then(|| leaf.key(last))))
            })?;
            self.batch.extend(entries);
            if self.direction == Direction::Down {
                self.batch.make_contiguous().reverse();
            }
            self.leaf = next.later(indexes.len(), self.direction);
            skipped += indexes.len();
            self.skipped = last.filter(|last| last.complete && skipped >= SKIPPED_MAX);
            if self.skipped.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// The next entry, with the known part of its key, and its value if a leaf holds it. `None` at the end, or where it has [skipped](Self::take_skipped) many.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        if self.batch.is_empty() && self.skipped.is_none() {
            self.fill()?;
        }
        Ok(self.batch.pop_front())
    }

    /// The key that the cursor has come to without an entry to show: all entries up to it, and its own, are superseded. The call returns it
    /// once, and then the cursor goes on.
    pub(crate) fn take_skipped(&mut self) -> Option<KnownKey> {
        self.skipped.take()
    }
}

/// How many of a leaf's entries, from its first on, compare so to a key.
fn count(tree: Tree<'_>, leaf: &Leaf<'_>, key: &[u8], is_counted: impl Fn(Ordering) -> bool) -> Result<usize> {
    let candidates = leaf.candidates(key);
    let (mut low, mut high) = (candidates.start, candidates.end);
    while low < high {
        let half = low.midpoint(high);
        // Superseded entries are skipped: their keys may not be known any more.
        let Some(middle) = (half..high).find(|index| !tree.is_superseded(leaf, *index)) else {
            high = half;
            continue;
        };
        let mut known = leaf.key(middle);
        let ordering = match known.compare_to(key) {
            Some(ordering) => ordering,
            None => {
                tree.log.complete(&mut known)?;
                known.bytes.as_slice().cmp(key)
            }
        };
        if is_counted(ordering) { low = middle + 1 } else { high = half }
    }
    Ok(low)
}
