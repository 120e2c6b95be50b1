//! Keys in order, in memory: a B-tree in an arena, which only grows, and is dropped as a whole.
//!
//! All keys of a node have a front in common. The node has the four bytes behind it of each key, and the address of the key. So a search
//! compares about one whole key in a node, and an insertion moves eight bytes an entry.

use std::cmp::Ordering;
use std::ops::Bound;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::leaf::common_prefix;
use crate::format::pointer::Pointer;
use crate::keyspace::arena::Arena;
use crate::tree::Direction;

/// The most keys of a node.
const KEYS: usize = 64;
/// No leaf: an address that no leaf has, since the arena's last chunk ends before it.
const NONE: u32 = u32::MAX;
/// The bytes before a key's own.
const ENTRY_BYTES: usize = 16;
const LENGTH_BITS: u32 = 17;

/// Where a key's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) pointer: Pointer,
}

/// A node's keys in order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Keys {
    len: u32,
    /// How many bytes all keys begin with in common.
    shared: u32,
    /// The four bytes of each key behind those, which compare as the keys do.
    heads: [u32; KEYS],
    entries: [u32; KEYS],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Leaf {
    keys: Keys,
    previous: u32,
    next: u32,
}

/// A node above others. The keys of child `n + 1` are no less than key `n`, and those of child `n` are less.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Branch {
    keys: Keys,
    children: [u32; KEYS + 1],
}

/// Keys with their bytes, and where their records are.
struct Entries {
    arena: Arena,
    /// Sequence numbers are stored relative to this.
    first_sequence: u64,
}

/// Keys in order, each with an [`Entry`].
pub(super) struct KeyTree {
    entries: Entries,
    nodes: Arena,
    root: u32,
    /// How many branches there are above a leaf.
    branches: u32,
    /// The first leaf, which always stays the first.
    first: u32,
}

/// A key's place in a leaf, or the place where it would be.
struct Place {
    leaf: u32,
    index: usize,
    is_there: bool,
}

impl Entries {
    fn push(&mut self, key: &[u8], entry: Entry) -> u32 {
        let address = self.arena.take(ENTRY_BYTES + key.len());
        self.arena.at_mut(address)[ENTRY_BYTES..ENTRY_BYTES + key.len()].copy_from_slice(key);
        self.write(address, key.len(), entry);
        address
    }

    fn write(&mut self, address: u32, key_bytes: usize, entry: Entry) {
        let since = entry.sequence - self.first_sequence;
        assert!(since < 1 << (u64::BITS - LENGTH_BITS) && key_bytes < 1 << LENGTH_BITS);
        let front = since << LENGTH_BITS | key_bytes as u64;
        let (place, _) = self.arena.at_mut(address).as_chunks_mut::<8>();
        place[0] = front.to_le_bytes();
        place[1] = entry.pointer.to_bits().to_le_bytes();
    }

    fn set(&mut self, address: u32, entry: Entry) {
        self.write(address, self.key(address).len(), entry);
    }

    fn front(bytes: &[u8]) -> [u64; 2] {
        let (words, _) = bytes.as_chunks::<8>();
        [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
    }

    fn get(&self, address: u32) -> (&[u8], Entry) {
        let bytes = self.arena.at(address);
        let [front, pointer] = Self::front(bytes);
        let key_bytes = (front & ((1 << LENGTH_BITS) - 1)) as usize;
        let sequence = self.first_sequence + (front >> LENGTH_BITS);
        (&bytes[ENTRY_BYTES..ENTRY_BYTES + key_bytes], Entry { sequence, pointer: Pointer::from_bits(pointer) })
    }

    fn key(&self, address: u32) -> &[u8] {
        self.get(address).0
    }
}

/// The four bytes of a key behind the shared ones; zeros beyond its end.
fn head(key: &[u8], shared: usize) -> u32 {
    let rest = &key[shared..];
    match rest.first_chunk::<4>() {
        Some(head) => u32::from_be_bytes(*head),
        None => {
            let mut head = [0; 4];
            head[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(head)
        }
    }
}

impl Keys {
    const EMPTY: Keys = Keys { len: 0, shared: 0, heads: [0; KEYS], entries: [0; KEYS] };

    fn len(&self) -> usize {
        self.len as usize
    }

    /// Where a key is, or would be.
    fn search(&self, entries: &Entries, key: &[u8]) -> Result<usize, usize> {
        let len = self.len();
        if len == 0 {
            return Err(0);
        }
        let shared = self.shared as usize;
        let front = &entries.key(self.entries[0])[..shared];
        match key[..key.len().min(shared)].cmp(front) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(len),
            Ordering::Equal => {}
        }
        let head = head(key, shared);
        let heads = &self.heads[..len];
        let first = heads.partition_point(|other| *other < head);
        let equal = heads[first..].iter().take_while(|other| **other == head).count();
        let alike = &self.entries[first..first + equal];
        let found = alike.binary_search_by(|other| entries.key(*other)[shared..].cmp(&key[shared..]));
        found.map(|place| first + place).map_err(|place| first + place)
    }

    /// How many keys are less than or equal to a key: the child that it belongs to.
    fn child_of(&self, entries: &Entries, key: &[u8]) -> usize {
        self.search(entries, key).map_or_else(|place| place, |place| place + 1)
    }

    /// Inserts an entry at a place. The caller has checked that there is space.
    fn insert(&mut self, entries: &Entries, index: usize, entry: u32) {
        let (key, len) = (entries.key(entry), self.len());
        if len == 0 {
            self.shared = key.len() as u32;
        } else {
            let other = entries.key(self.entries[0]);
            if !key.starts_with(&other[..self.shared as usize]) {
                self.share(entries, common_prefix(key, other));
            }
        }
        self.heads.copy_within(index..len, index + 1);
        self.entries.copy_within(index..len, index + 1);
        self.heads[index] = head(key, self.shared as usize);
        self.entries[index] = entry;
        self.len += 1;
    }

    fn share(&mut self, entries: &Entries, shared: usize) {
        self.shared = shared as u32;
        for (place, entry) in self.heads.iter_mut().zip(&self.entries[..self.len as usize]) {
            *place = head(entries.key(*entry), shared);
        }
    }

    /// Moves the keys from a place on into an empty node.
    fn split(&mut self, entries: &Entries, at: usize, right: &mut Keys) {
        let moved = self.len() - at;
        right.heads[..moved].copy_from_slice(&self.heads[at..self.len()]);
        right.entries[..moved].copy_from_slice(&self.entries[at..self.len()]);
        (right.len, right.shared) = (moved as u32, self.shared);
        self.len = at as u32;
        self.refine(entries);
        right.refine(entries);
    }

    /// Finds a longer shared front if half of each head is the same, so that heads tell keys apart.
    fn refine(&mut self, entries: &Entries) {
        let heads = &self.heads[..self.len()];
        if let [first, .., last] = heads
            && first >> 16 == last >> 16
        {
            let of = |place: usize| entries.key(self.entries[place]);
            self.share(entries, common_prefix(of(0), of(self.len() - 1)));
        }
    }
}

impl KeyTree {
    /// An empty tree, for records from this number on.
    pub(super) fn new(first_sequence: u64) -> Self {
        let entries = Entries { arena: Arena::default(), first_sequence };
        KeyTree { entries, nodes: Arena::default(), root: NONE, branches: 0, first: NONE }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.arena.bytes() + self.nodes.bytes()
    }

    fn node<T: FromBytes + KnownLayout + Immutable>(&self, address: u32) -> &T {
        let Ok((node, _)) = T::ref_from_prefix(self.nodes.at(address)) else {
            unreachable!("the arena has whole nodes, at multiples of eight");
        };
        node
    }

    fn leaf(&self, address: u32) -> &Leaf {
        self.node(address)
    }

    fn branch(&self, address: u32) -> &Branch {
        self.node(address)
    }

    /// A key's entry.
    pub(super) fn get(&self, key: &[u8]) -> Option<Entry> {
        if self.is_empty() {
            return None;
        }
        let place = self.find(key, |_, _| {});
        let entry = || self.entries.get(self.leaf(place.leaf).keys.entries[place.index]).1;
        place.is_there.then(entry)
    }

    /// Where a key belongs. `on_way` gets each branch above, with the child that leads on.
    fn find(&self, key: &[u8], mut on_way: impl FnMut(u32, usize)) -> Place {
        let mut at = self.root;
        for _ in 0..self.branches {
            let branch = self.branch(at);
            let child = branch.keys.child_of(&self.entries, key);
            on_way(at, child);
            at = branch.children[child];
        }
        match self.leaf(at).keys.search(&self.entries, key) {
            Ok(index) => Place { leaf: at, index, is_there: true },
            Err(index) => Place { leaf: at, index, is_there: false },
        }
    }

    /// Inserts a key. If the tree has it already, returns its entry, for [`Self::set`] to change.
    pub(super) fn insert(&mut self, key: &[u8], entry: Entry) -> Option<(u32, Entry)> {
        if self.is_empty() {
            self.root = self.nodes.take(size_of::<Leaf>());
            self.first = self.root;
            let leaf = self.nodes.leaf_mut(self.root);
            (leaf.previous, leaf.next) = (NONE, NONE);
        }
        // A branch has 33 children at least: this many branches reach all addresses.
        let mut path = [(NONE, 0); 8];
        let mut depth = 0;
        let place = self.find(key, |branch, child| {
            path[depth] = (branch, child);
            depth += 1;
        });
        if place.is_there {
            let address = self.leaf(place.leaf).keys.entries[place.index];
            return Some((address, self.entries.get(address).1));
        }
        let address = self.entries.push(key, entry);
        let (mut leaf, mut index) = (place.leaf, place.index);
        if self.leaf(leaf).keys.len() == KEYS {
            let (right, at) = self.split_leaf(leaf, index);
            // A key between both halves is less than the right one's first key, unless that one is still empty.
            let is_alone = at == KEYS;
            let separator = if is_alone { address } else { self.leaf(right).keys.entries[0] };
            if is_alone || index > at {
                (leaf, index) = (right, index - at);
            }
            self.insert_child(&path[..depth], separator, right);
        }
        self.nodes.leaf_mut(leaf).keys.insert(&self.entries, index, address);
        None
    }

    /// Changes the entry of a key.
    pub(super) fn set(&mut self, address: u32, entry: Entry) {
        self.entries.set(address, entry);
    }

    /// Moves the greater half of a leaf's keys to a new leaf. It moves none if the new key is behind all keys of the tree: then keys come
    /// in order.
    fn split_leaf(&mut self, left: u32, index: usize) -> (u32, usize) {
        let right = self.nodes.take(size_of::<Leaf>());
        let next = self.leaf(left).next;
        let at = if index == KEYS && next == NONE { KEYS } else { KEYS / 2 };
        let mut moved = Keys::EMPTY;
        let leaf = self.nodes.leaf_mut(left);
        leaf.keys.split(&self.entries, at, &mut moved);
        leaf.next = right;
        *self.nodes.leaf_mut(right) = Leaf { keys: moved, previous: left, next };
        if next != NONE {
            self.nodes.leaf_mut(next).previous = right;
        }
        (right, at)
    }

    /// Inserts a new node behind the one that the path from the root leads to.
    fn insert_child(&mut self, path: &[(u32, usize)], separator: u32, child: u32) {
        let Some(((branch, index), above)) = path.split_last() else {
            let root = self.nodes.take(size_of::<Branch>());
            let (old, branch) = (self.root, self.nodes.branch_mut(root));
            branch.keys.insert(&self.entries, 0, separator);
            branch.children[..2].copy_from_slice(&[old, child]);
            self.root = root;
            self.branches += 1;
            return;
        };
        let (mut branch, mut index) = (*branch, *index);
        if self.branch(branch).keys.len() == KEYS {
            // The key in the middle goes up.
            let at = if index == KEYS { KEYS - 1 } else { KEYS / 2 };
            let right = self.nodes.take(size_of::<Branch>());
            let middle = self.branch(branch).keys.entries[at];
            let mut moved = Branch { keys: Keys::EMPTY, children: [NONE; KEYS + 1] };
            let left = self.nodes.branch_mut(branch);
            left.keys.split(&self.entries, at + 1, &mut moved.keys);
            left.keys.len -= 1;
            moved.children[..KEYS - at].copy_from_slice(&left.children[at + 1..]);
            *self.nodes.branch_mut(right) = moved;
            self.insert_child(above, middle, right);
            if index > at {
                (branch, index) = (right, index - at - 1);
            }
        }
        let node = self.nodes.branch_mut(branch);
        node.children.copy_within(index + 1..KEYS, index + 2);
        node.children[index + 1] = child;
        node.keys.insert(&self.entries, index, separator);
    }

    /// Calls `show` with keys in order, from the first within a bound, until it breaks.
    pub(super) fn walk(
        &self,
        bound: Bound<&[u8]>,
        direction: Direction,
        mut show: impl FnMut(&[u8], &Entry) -> std::ops::ControlFlow<()>,
    ) {
        if self.is_empty() {
            return;
        }
        // The keys of the leaf from this place on, or before it, are on the way.
        let (mut at, mut index) = match (bound, direction) {
            (Bound::Unbounded, Direction::Up) => (self.first, 0),
            (Bound::Unbounded, Direction::Down) => {
                let last = self.last();
                (last, self.leaf(last).keys.len())
            }
            (Bound::Included(key) | Bound::Excluded(key), _) => {
                let place = self.find(key, |_, _| {});
                let is_included = matches!(bound, Bound::Included(_));
                let is_skipped = place.is_there && is_included == (direction == Direction::Down);
                (place.leaf, place.index + usize::from(is_skipped))
            }
        };
        loop {
            let leaf = self.leaf(at);
            let shown = |entry: &u32| {
                let (key, entry) = self.entries.get(*entry);
                show(key, &entry)
            };
            let of_leaf = &leaf.keys.entries[..leaf.keys.len()];
            let (ended, next) = match direction {
                Direction::Up => (of_leaf[index..].iter().try_for_each(shown), leaf.next),
                Direction::Down => (of_leaf[..index].iter().rev().try_for_each(shown), leaf.previous),
            };
            if ended.is_break() || next == NONE {
                return;
            }
            at = next;
            index = if direction == Direction::Up { 0 } else { self.leaf(next).keys.len() };
        }
    }

    fn last(&self) -> u32 {
        (0..self.branches).fold(self.root, |at, _| {
            let branch = self.branch(at);
            branch.children[branch.keys.len()]
        })
    }
}

/// Nodes of an arena, to be changed.
trait Nodes {
    fn node_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self, address: u32) -> &mut T;

    fn leaf_mut(&mut self, address: u32) -> &mut Leaf {
        self.node_mut(address)
    }

    fn branch_mut(&mut self, address: u32) -> &mut Branch {
        self.node_mut(address)
    }
}

impl Nodes for Arena {
    fn node_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self, address: u32) -> &mut T {
        let Ok((node, _)) = T::mut_from_prefix(self.at_mut(address)) else {
            unreachable!("the arena has whole nodes, at multiples of eight");
        };
        node
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use proptest::prelude::*;

    use super::*;
    use crate::format::pointer::PointerKind;

    fn entry(number: u64) -> Entry {
        Entry { sequence: 100 + number, pointer: Pointer::new(PointerKind::Value, 8 * number, 64) }
    }

    type Model = BTreeMap<Vec<u8>, Entry>;

    fn put(tree: &mut KeyTree, model: &mut Model, key: &[u8], number: u64) {
        let found = tree.insert(key, entry(number));
        assert_eq!(found.map(|(_, there)| there), model.insert(key.to_vec(), entry(number)));
        if let Some((address, _)) = found {
            tree.set(address, entry(number));
        }
    }

    fn seen(tree: &KeyTree, bound: Bound<&[u8]>, direction: Direction, most: usize) -> Vec<(Vec<u8>, Entry)> {
        let mut seen = Vec::new();
        tree.walk(bound, direction, |key, entry| {
            seen.push((key.to_vec(), *entry));
            if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        seen
    }

    fn check(tree: &KeyTree, model: &Model) {
        let expected: Vec<(Vec<u8>, Entry)> = model.iter().map(|(key, entry)| (key.clone(), *entry)).collect();
        assert!(seen(tree, Bound::Unbounded, Direction::Up, usize::MAX) == expected);
        let reversed: Vec<(Vec<u8>, Entry)> = expected.into_iter().rev().collect();
        assert!(seen(tree, Bound::Unbounded, Direction::Down, usize::MAX) == reversed);
        for (key, entry) in model {
            assert_eq!(tree.get(key), Some(*entry));
        }
    }

    fn check_bounds(tree: &KeyTree, model: &Model, key: &[u8]) {
        let pairs = |found: Option<(&Vec<u8>, &Entry)>| -> Vec<(Vec<u8>, Entry)> {
            found.into_iter().map(|(key, entry)| (key.clone(), *entry)).collect()
        };
        for bound in [Bound::Included(key), Bound::Excluded(key)] {
            let up = pairs(model.range::<[u8], _>((bound, Bound::Unbounded)).next());
            assert_eq!(seen(tree, bound, Direction::Up, 1), up);
            let down = pairs(model.range::<[u8], _>((Bound::Unbounded, bound)).next_back());
            assert_eq!(seen(tree, bound, Direction::Down, 1), down);
        }
        assert_eq!(tree.get(key), model.get(key).copied());
    }

    #[test]
    fn many_keys_in_any_order() {
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for name in ["up", "down", "none"] {
            let (mut tree, mut model) = (KeyTree::new(100), Model::new());
            for number in 0..30_000 {
                let of_key = match name {
                    "up" => number,
                    "down" => 1_000_000 - number,
                    _ => hash(number),
                };
                put(&mut tree, &mut model, format!("user{of_key:020}").as_bytes(), number);
            }
            check(&tree, &model);
            for number in 0..1000 {
                check_bounds(&tree, &model, format!("user{:020}", hash(number + 29_500)).as_bytes());
            }
            let per_entry = tree.bytes() / 30_000;
            assert!(per_entry <= if name == "down" { 57 } else { 54 }, "{name}: {per_entry} bytes an entry");
        }
    }

    #[test]
    fn the_longest_key_has_space() {
        let (mut tree, mut model) = (KeyTree::new(100), Model::new());
        for number in 0..100 {
            put(&mut tree, &mut model, &vec![number as u8; 1 << 16], number);
        }
        check(&tree, &model);
    }

    fn a_key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            // Some of these are fronts of others, or end with zeros.
            prop::collection::vec(prop::sample::select(vec![0_u8, 1, 255]), 0..9),
            (0_u16..3000).prop_map(|number| format!("a common front of keys {number}").into_bytes()),
            (0_u16..3000).prop_map(|number| number.to_be_bytes().to_vec()),
        ]
    }

    proptest! {
        #[test]
                fn it_does_what_a_map_does(
            keys in prop::collection::vec(a_key(), 1..2000),
            asked in prop::collection::vec(a_key(), 50),
        ) {
            let (mut tree, mut model) = (KeyTree::new(100), Model::new());
            for (number, key) in (0..).zip(&keys) {
                put(&mut tree, &mut model, key, number);
            }
            check(&tree, &model);
            asked.iter().for_each(|key| check_bounds(&tree, &model, key));
        }
    }
}
