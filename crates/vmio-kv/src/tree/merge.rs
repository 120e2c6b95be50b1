//! Merges newer entries into a tree, leaf by leaf, for a flush or a compaction. It makes a new tree that shares all unchanged leaves with
//! the old one (Kreon §3.2.1).
//!
//! Keys and pointers move, and records that leaves hold. Leaves that no newer entry falls into are kept. The others are read, merged and written anew, one behind
//! the other.

use std::cmp::Ordering;

use crate::error::Result;
use crate::format::catalogue::Root;
use crate::format::child::Child;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::{Entry, KnownKey, common_prefix};
use crate::format::leaf_builder::LeafBuilder;
use crate::format::pivot::{OwnedPivot, Rest};
use crate::format::pointer::PointerKind;
use crate::log::Log;
use crate::tree::division::{Division, Placed, children};
use crate::tree::node_writer::{NodeSpace, NodeWriter, TakenNodes, Which};
use crate::tree::upper::Upper;
use crate::tree::{MergeThreads, Tree};
use crate::volume::block_runs::BlockRuns;
use crate::volume::chunk_generations::OF_MERGES;
use crate::volume::garbage::Garbage;

/// Entries in order, only the newest of each key.
pub(crate) trait Source {
    /// The key of the next entry.
    fn peek(&mut self) -> Result<Option<&mut KnownKey>>;

    /// Takes the next entry.
    fn next(&mut self) -> Result<Option<Entry>>;
}

/// The entries that are merged into a tree. Each thread that merges a part has a source of its own.
pub(crate) trait MergeInput: Sync {
    /// The entries from a key on.
    fn source(&self, from: &[u8]) -> Result<Box<dyn Source + '_>>;
}

/// The tree that entries are merged into.
pub(crate) struct Target {
    pub(crate) keyspace: u32,
    pub(crate) level: u8,
    pub(crate) old: Option<Root>,
    /// Whether deletions can be dropped, since no level below has any key.
    pub(crate) is_lowest: bool,
    /// How many leaves are worth a thread of their own.
    pub(crate) part_leaves: u64,
}

/// The result of a merge.
pub(crate) struct Merged {
    /// The new tree; `None` if nothing is left.
    pub(crate) root: Option<Root>,
    /// Its new nodes.
    pub(crate) taken: BlockRuns,
    /// Nodes of the old tree that the new one does not have.
    pub(crate) retired: BlockRuns,
    /// Records that no entry points to any more.
    pub(crate) garbage: Garbage,
}

/// The result of a part's merge, or of several parts' in order.
pub(super) struct Done<'space> {
    taken: TakenNodes<'space>,
    pub(super) upper: Upper,
    pub(super) retired: BlockRuns,
    /// Long pivots of the old tree that were read.
    pub(super) long_pivots: Vec<Rest>,
    garbage: Garbage,
    /// Entries that were taken out of the old tree, and put into the new one.
    pub(super) taken_out: u64,
    put_in: u64,
}

/// The merge of a part.
struct Merge<'merge> {
    log: &'merge Log,
    old: Option<Tree<'merge>>,
    source: Box<dyn Source + 'merge>,
    writer: NodeWriter<'merge>,
    is_lowest: bool,
    /// The left neighbour of the next leaf.
    before: Before,
    leaf: LeafBuilder,
    done: Done<'merge>,
}

/// The left neighbour of the next leaf, from which the leaf's pivot is made.
enum Before {
    /// The leaf is the first.
    Nothing,
    /// The last key of a leaf that was written.
    Key(KnownKey),
    /// A leaf that was kept, or another part: later keys are no less than this pivot of the old tree.
    Kept(OwnedPivot),
}

/// How many leaves a merge prefetches once it has read some in a row.
const AHEAD: usize = 16;

/// How many parts the target has for each thread: some parts take longer than others.
const PARTS_A_THREAD: usize = 4;

/// Merges `newer` into a tree of a keyspace, with the help of idle threads. In the lowest level deletions are dropped.
pub(crate) fn merge(log: &Log, target: &Target, newer: &dyn MergeInput, threads: &MergeThreads) -> Result<Merged> {
    let old = target.old.map(|root| Tree::new(log, target.keyspace, root, OF_MERGES));
    let space = NodeSpace::new(&log.segment, target.keyspace, target.level);
    let begin = |start: &OwnedPivot| -> Result<Merge<'_>> {
        let first = old.map_or(Ok(Vec::new()), |tree| tree.whole_pivot(start))?;
        Ok(Merge {
            log,
            old,
            source: newer.source(&first)?,
            writer: NodeWriter::new(&space),
            is_lowest: target.is_lowest,
            before: if first.is_empty() { Before::Nothing } else { Before::Kept(start.clone()) },
            leaf: LeafBuilder::default(),
            done: Done::none(&space),
        })
    };
    let mut done = Done::none(&space);
    let mut writer = NodeWriter::new(&space);
    match (old, target.old) {
        (Some(tree), Some(root)) => {
            let worth = u64::from(root.blocks) / target.part_leaves.max(1);
            let most = if threads.most() > 1 { threads.most() * PARTS_A_THREAD } else { 1 };
            let Division { parts, above, long_pivots } = Division::new(tree, most.min(worth as usize).max(1))?;
            done.retired.extend(above);
            done.long_pivots = long_pivots;
            let merged = threads.each(&parts, |part| {
                let mut merge = begin(&part.start)?;
                merge.branch(&part.nodes, part.height, &part.start, part.end.as_ref())?;
                merge.finish()
            })?;
            merged.into_iter().try_for_each(|part| done.append(&mut writer, part))?;
        }
        _ => {
            let mut merge = begin(&OwnedPivot::default())?;
            merge.rest_of_source(None)?;
            done.append(&mut writer, merge.finish()?)?;
        }
    }
    done.into_tree(writer, old.zip(target.old))
}

impl<'merge> Merge<'merge> {
    /// Merges the newer entries within a node's range, from `start` up to `end`.
    fn subtree(&mut self, child: Child, height: u16, start: &OwnedPivot, end: Option<&OwnedPivot>) -> Result<()> {
        let Some(tree) = self.old else { return Ok(()) };
        self.done.retired.push(child.offset());
        if height == 1 {
            let (entries, superseded) = tree.entries(child)?;
            self.done.taken_out += superseded;
            return self.merge_leaf(entries, end);
        }
        let children = children(tree, child)?;
        self.done.long_pivots.extend(children.iter().filter_map(|child| child.pivot.rest));
        self.branch(&children, height, start, end)
    }

    /// Merges the newer entries within the range of an inner node of that height with these children.
    fn branch(&mut self, children: &[Placed], height: u16, start: &OwnedPivot, end: Option<&OwnedPivot>) -> Result<()> {
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

    /// Keeps a leaf that no newer entry falls into.
    fn keep_leaf(&mut self, child: Child, pivot: &OwnedPivot, end: Option<&OwnedPivot>) -> Result<()> {
        self.finish_leaf()?;
        self.done.upper.push(&mut self.writer, Placed { pivot: pivot.clone(), child })?;
        self.before = Before::Kept(end.cloned().unwrap_or_default());
        Ok(())
    }

    /// Whether the next newer entry is before `end`.
    fn source_is_before(&mut self, end: Option<&OwnedPivot>) -> Result<bool> {
        let Some(known) = self.source.peek()? else { return Ok(false) };
        let (Some(end), Some(tree)) = (end, self.old) else { return Ok(true) };
        let ordering = match end.rest {
            None => known.compare_to(&end.front),
            Some(_) => end.compare_front(&known.bytes),
        };
        if let Some(ordering) = ordering {
            return Ok(ordering == Ordering::Less);
        }
        self.log.complete(known)?;
        Ok(tree.compare_pivot(end, &known.bytes)? == Ordering::Greater)
    }

    fn merge_leaf(&mut self, entries: Vec<Entry>, end: Option<&OwnedPivot>) -> Result<()> {
        for mut old in entries {
            let mut is_replaced = false;
            while let Some(newer) = self.source.peek()? {
                match self.log.compare(newer, &mut old.key)? {
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
            self.done.taken_out += 1;
            if is_replaced {
                self.done.garbage.count(old.key.pointer);
            } else {
                self.put(old)?;
            }
        }
        self.rest_of_source(end)
    }

    fn rest_of_source(&mut self, end: Option<&OwnedPivot>) -> Result<()> {
        while self.source_is_before(end)? {
            if let Some(newer) = self.source.next()? {
                self.put(newer)?;
            }
        }
        Ok(())
    }

    /// Appends an entry to the new tree.
    fn put(&mut self, entry: Entry) -> Result<()> {
        let pointer = entry.key.pointer;
        let is_dropped = self.is_lowest && pointer.kind() == PointerKind::Tombstone;
        if is_dropped || entry.value.is_some() {
            // Nothing refers to the record in the log now.
            self.done.garbage.count(pointer);
        }
        if is_dropped {
            return Ok(());
        }
        self.done.put_in += 1;
        if let Err(entry) = self.leaf.push(entry) {
            self.finish_leaf()?;
            if self.leaf.push(entry).is_err() {
                unreachable!("an empty leaf has space for an entry");
            }
        }
        Ok(())
    }

    fn finish_leaf(&mut self) -> Result<()> {
        let Some((first, last)) = self.leaf.ends() else { return Ok(()) };
        let (first, last) = (first.clone(), last.clone());
        let pivot = match std::mem::replace(&mut self.before, Before::Key(last)) {
            Before::Nothing => OwnedPivot::default(),
            Before::Key(before) => {
                let separator = self.separator(before, first)?;
                self.writer.pivot(separator)?
            }
            Before::Kept(pivot) => pivot,
        };
        let space = self.writer.space();
        let leaf = &mut self.leaf;
        let seal = |offset, epoch| leaf.finish(space.segment.uuid, space.keyspace, offset, epoch);
        let child = self.writer.write(Which::Leaf, seal)?;
        self.done.upper.push(&mut self.writer, Placed { pivot, child })
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

    fn finish(mut self) -> Result<Done<'merge>> {
        self.finish_leaf()?;
        self.done.taken = self.writer.finish()?;
        Ok(self.done)
    }
}

impl<'space> Done<'space> {
    pub(super) fn none(space: &'space NodeSpace<'_>) -> Self {
        Done {
            taken: TakenNodes::none(space.segment),
            upper: Upper::default(),
            retired: BlockRuns::default(),
            long_pivots: Vec::new(),
            garbage: Garbage::default(),
            taken_out: 0,
            put_in: 0,
        }
    }

    /// Adds the result of the next part.
    fn append(&mut self, writer: &mut NodeWriter<'space>, mut next: Self) -> Result<()> {
        self.taken.append(next.taken);
        self.retired.append(next.retired);
        self.long_pivots.append(&mut next.long_pivots);
        self.garbage.append(next.garbage);
        self.taken_out += next.taken_out;
        self.put_in += next.put_in;
        self.upper.append(writer, next.upper)
    }

    /// Makes the tree, whose inner nodes are all new.
    pub(super) fn into_tree(mut self, mut writer: NodeWriter<'space>, old: Option<(Tree<'_>, Root)>) -> Result<Merged> {
        let top = self.upper.finish(&mut writer)?;
        if let Some((tree, _)) = old {
            self.drop_long_pivots(tree)?;
        }
        let Done { mut taken, retired, garbage, taken_out, put_in, .. } = self;
        taken.append(writer.finish()?);
        let (entries, blocks) = old.map_or((0, 0), |(_, root)| (root.entries, root.blocks));
        let root = top.map(|top| Root {
            offset: top.node.child.offset(),
            epoch: top.node.child.epoch_bits(),
            entries: entries.saturating_add(put_in).saturating_sub(taken_out),
            height: top.height,
            blocks: blocks.saturating_add(taken.blocks() as u32).saturating_sub(retired.blocks() as u32),
        });
        Ok(Merged { root, taken: taken.keep(), retired, garbage })
    }

    /// Gives up those long pivots of the old tree that separate no leaves of the new one.
    fn drop_long_pivots(&mut self, old: Tree<'_>) -> Result<()> {
        for rest in self.long_pivots.iter().filter(|rest| !self.upper.has(**rest)) {
            self.retired.extend(old.blocks_of(*rest)?);
        }
        Ok(())
    }
}
