//! Checks the trees of keyspaces: nodes must be where their parents say, with the contents their parents say, and keys in order.

use crate::check::found::{Found, Structure};
use crate::check::log::Chain;
use crate::check::state::State;
use crate::check::{Check, whole};
use crate::error::Damage;
use crate::format::block::{Block, Kind, Sealed};
use crate::format::branch::Branch;
use crate::format::catalogue::{KeyspaceEntry, Root};
use crate::format::child::Child;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::Leaf;
use crate::format::pivot::{PIECE_BYTES, Piece, Pivot};
use crate::format::record::FRONT_BYTES;
use crate::format::unit_table::Purpose;
use crate::tree::HEIGHT_MAX;

const ROOT: &str = "the root of a tree";
const LEAF: &str = "a leaf";
const BRANCH: &str = "an inner node";
const PIECE: &str = "a piece of a long pivot";

/// A walk through a tree.
pub(super) struct Walk<'walk> {
    pub(super) keyspace: &'walk KeyspaceEntry,
    pub(super) chain: &'walk Chain,
    level: u8,
    /// The last key, if it is known in full.
    pub(super) last: Option<Vec<u8>>,
    entries: u64,
    nodes: u64,
    /// Entries of all trees, and how many of them come before this tree.
    of: u64,
    before: u64,
}

/// The range of the keys below a node: from `start` up to, but not including, `end`, if there is one.
#[derive(Clone, Copy)]
struct Range<'key> {
    start: &'key [u8],
    end: Option<&'key [u8]>,
}

impl Range<'_> {
    fn contains(&self, key: &[u8]) -> bool {
        key >= self.start && self.end.is_none_or(|end| key < end)
    }
}

impl Check<'_> {
    /// Checks all trees.
    pub(super) fn trees(&mut self, state: &mut State, chain: &Chain, keyspaces: &[KeyspaceEntry]) {
        let roots = |keyspace: &KeyspaceEntry| {
            let levels = keyspace.levels.into_iter().enumerate();
            levels.flat_map(|(level, roots)| [(level, roots.active), (level, roots.compacting)]).collect::<Vec<_>>()
        };
        let all = keyspaces.iter().flat_map(&roots);
        let of = all.filter_map(|(_, root)| root).fold(0_u64, |sum, root| sum.saturating_add(root.entries));
        let mut before = 0;
        for keyspace in keyspaces {
            for (level, root) in roots(keyspace) {
                let Some(root) = root else { continue };
                let level = level as u8;
                let mut walk = Walk { keyspace, chain, level, last: None, entries: 0, nodes: 0, of, before };
                self.tree(state, &mut walk, root);
                before += walk.entries;
            }
        }
    }

    fn tree(&mut self, state: &mut State, walk: &mut Walk<'_>, root: Root) {
        self.report.trees += 1;
        if !(1..=HEIGHT_MAX).contains(&root.height) {
            self.wrong(ROOT, root.offset, Damage::Value { what: "a tree's height", found: u64::from(root.height) });
            return;
        }
        let before = self.report.problem_count;
        self.node(state, walk, Child::new(root.offset, root.epoch), root.height, Range { start: &[], end: None });
        self.report.nodes += walk.nodes;
        self.report.entries += walk.entries;
        // The totals of a tree that is damaged further down are unknown.
        let is_whole = self.report.problem_count == before;
        if is_whole && (walk.entries, walk.nodes) != (root.entries, u64::from(root.blocks)) {
            let what = format!(
                "it says {} entries in {} nodes, and there are {} in {}",
                root.entries, root.blocks, walk.entries, walk.nodes
            );
            self.wrong(ROOT, root.offset, what);
        }
    }

    /// Checks a node and everything below it.
    fn node(&mut self, state: &mut State, walk: &mut Walk<'_>, child: Child, height: u16, range: Range<'_>) {
        let offset = child.offset();
        let (structure, kind) = if height == 1 { (LEAF, Kind::Leaf) } else { (BRANCH, Kind::Branch) };
        let purpose = if height == 1 { Purpose::Leaves(walk.level) } else { Purpose::Branches(walk.level) };
        // A second visit of a node may be a loop.
        let conflict = self.own(state, structure, offset, purpose, walk.keyspace.number).err();
        if conflict.is_some_and(|conflict| conflict.is_fatal()) {
            return;
        }
        let block = match self.block(offset) {
            Ok(block) => block,
            Err(why) => return self.wrong(structure, offset, why),
        };
        let sealed = match self.node_header(state, walk, &block, kind, child) {
            Ok(sealed) => sealed,
            Err(damage) => return self.wrong(structure, offset, damage),
        };
        walk.nodes += 1;
        self.found(Structure::Tree, || Found {
            what: if height == 1 { "leaf" } else { "inner node" },
            offset,
            fields: vec![
                ("keyspace", u64::from(walk.keyspace.number).into()),
                ("level", u64::from(walk.level).into()),
                ("height", u64::from(height).into()),
                ("epoch", sealed.epoch.into()),
                ("count", (sealed.count as u64).into()),
                ("from", range.start.into()),
            ],
        });
        if kind == Kind::Leaf {
            match Leaf::from_block(&sealed) {
                Ok(leaf) => self.leaf(state, walk, &leaf, (offset, sealed.epoch), range),
                Err(damage) => self.wrong(structure, offset, damage),
            }
            return;
        }
        match Branch::from_block(&sealed) {
            Ok(branch) => self.branch(state, walk, &branch, (offset, height), range),
            Err(damage) => self.wrong(structure, offset, damage),
        }
    }

    fn node_header<'block>(
        &self,
        state: &State,
        walk: &Walk<'_>,
        block: &'block Block,
        kind: Kind,
        child: Child,
    ) -> Result<Sealed<'block>, Damage> {
        let sealed = whole(block, kind, child.offset(), state.uuid)?;
        if sealed.keyspace != walk.keyspace.number {
            return Err(Damage::Foreign);
        }
        if !child.is_of(sealed.epoch) || sealed.epoch > state.epoch {
            return Err(Damage::Epoch { found: sealed.epoch, wanted: child.epoch_bits() });
        }
        Ok(sealed)
    }

    fn branch(
        &mut self,
        state: &mut State,
        walk: &mut Walk<'_>,
        branch: &Branch<'_>,
        (offset, height): (u64, u16),
        range: Range<'_>,
    ) {
        if branch.pivot(0) != Pivot::default() {
            self.wrong(BRANCH, offset, "its first child has a pivot");
        }
        let block = |offset| offset..offset + BLOCK_BYTES as u64;
        self.device.prefetch((0..branch.len()).map(|index| block(branch.child(index).offset())));
        // All that is known of an unreadable pivot is that it is within the node's range.
        let mut begins: Option<Vec<u8>> = Some(range.start.to_vec());
        for index in 0..branch.len() {
            let is_last = index + 1 == branch.len();
            let ends = if is_last { None } else { self.pivot(state, walk, branch.pivot(index + 1)) };
            let start = begins.as_deref().unwrap_or(range.start);
            let end = ends.as_deref().or(range.end);
            let is_behind = index == 0 || begins.is_none() || (start > range.start && range.contains(start));
            if !is_behind || end.is_some_and(|end| start >= end) {
                let pivot = start.escape_ascii().to_string();
                self.wrong(BRANCH, offset, format!("pivot {index} is not in order: \"{pivot}\""));
            }
            self.node(state, walk, branch.child(index), height - 1, Range { start, end });
            begins = ends;
        }
    }

    /// Returns the whole pivot, and checks its rest; `None` if the rest is damaged.
    fn pivot(&mut self, state: &mut State, walk: &mut Walk<'_>, pivot: Pivot<&[u8]>) -> Option<Vec<u8>> {
        let mut bytes = pivot.front.to_vec();
        let (mut next, mut left) = pivot.rest.map_or((None, 0), |rest| (Some(rest.first), rest.bytes));
        while let Some(child) = next {
            let offset = child.offset();
            let purpose = Purpose::Branches(walk.level);
            let conflict = self.own(state, PIECE, offset, purpose, walk.keyspace.number).err();
            if conflict.is_some_and(|conflict| conflict.is_fatal()) {
                return None;
            }
            let block = self.block(offset).map_err(|why| self.wrong(PIECE, offset, why)).ok()?;
            let piece = self.node_header(state, walk, &block, Kind::Pivot, child);
            let piece = piece.and_then(|sealed| Piece::from_block(&sealed, left));
            let piece = piece.map_err(|damage| self.wrong(PIECE, offset, damage)).ok()?;
            walk.nodes += 1;
            self.found(Structure::Tree, || Found {
                what: "piece of a pivot",
                offset,
                fields: vec![
                    ("keyspace", u64::from(walk.keyspace.number).into()),
                    ("level", u64::from(walk.level).into()),
                    ("bytes", (piece.bytes.len() as u64).into()),
                ],
            });
            bytes.extend_from_slice(piece.bytes);
            (next, left) = (piece.next, left - left.min(PIECE_BYTES));
        }
        Some(bytes)
    }

    fn leaf(
        &mut self,
        state: &mut State,
        walk: &mut Walk<'_>,
        leaf: &Leaf<'_>,
        (offset, epoch): (u64, u64),
        range: Range<'_>,
    ) {
        if leaf.len() == 0 {
            self.wrong(LEAF, offset, "it has no entries");
        }
        let front = |offset| offset..offset + FRONT_BYTES as u64;
        self.device.prefetch((0..leaf.len()).map(|index| front(leaf.pointer(index).offset())));
        for index in 0..leaf.len() {
            walk.entries += 1;
            let key = match self.entry(state, walk, leaf, index, (offset, epoch)) {
                Ok(key) => key,
                Err(why) => {
                    self.wrong("an entry of a leaf", offset, format!("entry {index}: {why}"));
                    walk.last = None;
                    continue;
                }
            };
            if let Some(key) = &key {
                if walk.last.as_ref().is_some_and(|last| last >= key) {
                    self.wrong(LEAF, offset, format!("entry {index} is not greater than the one before it"));
                }
                if !range.contains(key) {
                    self.wrong(LEAF, offset, format!("entry {index} is outside of what its parent says"));
                }
            }
            walk.last = key.or(walk.last.take());
        }
        self.progress("trees", walk.before + walk.entries, walk.of);
    }
}
