//! Free page frames: first those of the core, then those of its node, then those of other nodes.
//!
//! This is Aquila's free list of two levels (thesis, §5.2.3), with a queue for each core and one for each NUMA node. Frames move between the levels by
//! *magazines*: lists of some frames each. A core has the number of one magazine, and a node has those of full ones; to exchange an empty
//! magazine for a full one moves numbers, and no frame. So a thread that is stopped amid an exchange hides no frame: all magazines are in one array,
//! in which a taker can look for itself. For the same reason a thread may be wrong about its core. That costs speed alone.

mod list;

use std::ops::Deref;

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

pub use list::List;

/// Frames of a full magazine. The more, the more rarely cores come together at the lists of their node; and the more may wait at a core while other
/// cores look for some.
pub const MAGAZINE_FRAMES: u32 = 64;
/// Not more magazines than this, but for those of the cores: when all are full, those of the cores get longer.
const MAGAZINES_MAX: usize = 4096;

/// Numbers of frames, each there once or not at all. They lie in lists by words that the caller has for them.
pub struct FreeFrames<W> {
    words: W,
    /// Of all magazines: the frames in each.
    magazines: Box<[CachePadded<List>]>,
    /// The words by which magazines lie in lists: in `empty`, or in that of a node.
    words_of_magazines: Box<[AtomicU64]>,
    /// Magazines without frames, or with few.
    empty: CachePadded<List>,
    cores: Box<[CachePadded<Core>]>,
    nodes: Box<[Node]>,
    full: u32,
}

struct Core {
    /// The number of its magazine.
    magazine: AtomicU32,
    node: usize,
}

struct Node {
    /// Magazines with frames.
    magazines: CachePadded<List>,
    /// The numbers of its cores, one at least.
    cores: Box<[usize]>,
}

impl<W: Deref<Target = [AtomicU64]>> FreeFrames<W> {
    /// None so far, of frames that have these words. `nodes` says of each core, one at least, which node it belongs to; each node up to the last has
    /// cores.
    pub fn new(words: W, nodes: &[usize]) -> Self {
        Self::with_magazines_of(MAGAZINE_FRAMES, words, nodes)
    }

    fn with_magazines_of(full: u32, words: W, nodes: &[usize]) -> Self {
        let of_nodes = 0..nodes.iter().max().map_or(0, |last| last + 1);
        let cores_of = |node| (0..nodes.len()).filter(|core| nodes[*core] == node).collect();
        // A core may exchange its magazine while others do.
        let magazines = (words.len() / full as usize).min(MAGAZINES_MAX) + 2 * nodes.len();
        let core = |(magazine, node)| CachePadded::new(Core { magazine: AtomicU32::new(magazine), node });
        let free = FreeFrames {
            words,
            magazines: (0..magazines).map(|_| CachePadded::default()).collect(),
            words_of_magazines: (0..magazines).map(|_| AtomicU64::new(0)).collect(),
            empty: CachePadded::default(),
            cores: (0..).zip(nodes.iter().copied()).map(core).collect(),
            nodes: of_nodes.map(|node| Node { magazines: CachePadded::default(), cores: cores_of(node) }).collect(),
            full,
        };
        (nodes.len()..magazines).rev().for_each(|magazine| free.empty.push(&free.words_of_magazines, magazine as u32));
        free
    }

    /// How many nodes there are.
    #[inline]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a core.
    pub fn node_of(&self, core: usize) -> usize {
        self.core(core).node
    }

    /// A core of this node: the given one if it is, and otherwise another for each.
    pub fn core_at(&self, core: usize, node: usize) -> usize {
        if self.node_of(core) == node {
            return core;
        }
        let cores = &self.nodes[node].cores;
        cores[core % cores.len()]
    }

    /// The words of the frames: those that are not here may lie in lists of the caller's.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Adds a frame at a core.
    #[inline]
    pub fn put(&self, core: usize, frame: u32) {
        let core = self.core(core);
        let magazine = core.magazine.load(Ordering::Relaxed);
        // It may be another core's by now, or nobody's.
        if !self.magazine(magazine).push_up_to(self.full, &self.words, frame) {
            self.put_in_empty(core, magazine, frame);
        }
    }

    /// Gives a core an empty magazine, and adds a frame to that.
    #[cold]
    fn put_in_empty(&self, core: &Core, full: u32, frame: u32) {
        let empty = self.empty.pop(&self.words_of_magazines);
        if let Some(empty) = empty {
            self.exchange(core, empty);
        }
        self.magazine(empty.unwrap_or(full)).push(&self.words, frame);
    }

    /// Takes a frame of the core's, or of those of its node that no core has.
    #[inline]
    pub fn take(&self, core: usize) -> Option<u32> {
        let core = self.core(core);
        let frame = self.magazine(core.magazine.load(Ordering::Relaxed)).pop(&self.words);
        frame.or_else(|| self.take_by_magazine(core, core.node))
    }

    /// Takes a frame of a node for this core: of those that no core has, or else another core's.
    pub fn take_at(&self, node: usize, core: usize) -> Option<u32> {
        let own = self.core(core);
        self.take_by_magazine(own, node).or_else(|| {
            let cores = &self.nodes[node].cores;
            // From the neighbour on, so that not all look at the same one first.
            let (before, from) = cores.split_at(cores.partition_point(|other| *other <= core));
            let magazines = from.iter().chain(before).map(|other| self.core(*other).magazine.load(Ordering::Relaxed));
            magazines.map(|magazine| self.magazine(magazine)).find_map(|magazine| magazine.pop(&self.words))
        })
    }

    /// Takes any frame: also one in a magazine that a thread is about to exchange.
    pub fn take_anywhere(&self) -> Option<u32> {
        self.magazines.iter().find_map(|magazine| magazine.pop(&self.words))
    }

    /// How often frames have been put and taken, for [`search`].
    pub fn changes(&self) -> u64 {
        self.magazines.iter().fold(0, |sum, magazine| sum.wrapping_add(magazine.changes()))
    }

    /// Gives a core a magazine of a node, and takes a frame from that.
    fn take_by_magazine(&self, core: &Core, node: usize) -> Option<u32> {
        while let Some(magazine) = self.nodes[node].magazines.pop(&self.words_of_magazines) {
            self.exchange(core, magazine);
            if let Some(frame) = self.magazine(magazine).pop(&self.words) {
                return Some(frame);
            }
        }
        None
    }

    /// Gives a core another magazine, which is in no list.
    fn exchange(&self, core: &Core, magazine: u32) {
        let before = core.magazine.swap(magazine, Ordering::AcqRel);
        let is_empty = self.magazine(before).is_empty();
        let list = if is_empty { &self.empty } else { &self.nodes[core.node].magazines };
        list.push(&self.words_of_magazines, before);
    }

    #[inline]
    fn core(&self, core: usize) -> &Core {
        self.cores.get(core).unwrap_or_else(|| self.another_core(core))
    }

    /// One for a core that came later, or that the caller does not know.
    #[cold]
    fn another_core(&self, core: usize) -> &CachePadded<Core> {
        &self.cores[core % self.cores.len()]
    }

    #[inline]
    fn magazine(&self, number: u32) -> &List {
        &self.magazines[number as usize]
    }
}

/// Looks for a frame until there is one, or until nothing has changed during a look: then there was a moment without any. A single look at one list
/// after another may miss a frame that comes free where it has been.
pub fn search<T>(changes: impl Fn() -> u64, look: impl Fn() -> Option<T>) -> Option<T> {
    let mut before = None;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let now = Some(changes());
        if now == before {
            return None;
        }
        before = now;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_model;
