//! The log's chunks by their garbage: the chunk that frees the most space is found at once, however many there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::geometry::ALLOCATION_UNIT_BYTES;

/// How many steps of garbage tell chunks apart.
const STEPS: usize = 64;

/// How much of the log is garbage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogSpace {
    /// Bytes of all chunks.
    pub(crate) bytes: u64,
    pub(crate) garbage_bytes: u64,
    /// Bytes of garbage in chunks that may be collected.
    pub(crate) collectable_bytes: u64,
}

/// The chunks of a segment's log that were not given up.
#[derive(Debug)]
pub(crate) struct LogChunks {
    /// By unit.
    chunks: BTreeMap<u64, Chunk>,
    /// The chunks that may be collected, by steps of garbage.
    by_garbage: [BTreeSet<u64>; STEPS],
    space: LogSpace,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    garbage: u64,
    is_collectable: bool,
}

impl Default for LogChunks {
    fn default() -> Self {
        let by_garbage = std::array::from_fn(|_| BTreeSet::new());
        LogChunks { chunks: BTreeMap::new(), by_garbage, space: LogSpace::default() }
    }
}

fn step(garbage: u64) -> usize {
    (garbage * STEPS as u64 / ALLOCATION_UNIT_BYTES) as usize
}

impl LogChunks {
    /// Adds a unit as a chunk with that much garbage. It may not be collected yet.
    pub(crate) fn begin(&mut self, unit: u64, garbage: u64) {
        self.end(unit);
        let garbage = garbage.min(ALLOCATION_UNIT_BYTES - 1);
        self.chunks.insert(unit, Chunk { garbage, is_collectable: false });
        self.space.bytes += ALLOCATION_UNIT_BYTES;
        self.space.garbage_bytes += garbage;
    }

    /// Removes a chunk.
    pub(crate) fn end(&mut self, unit: u64) {
        self.forbid(unit);
        if let Some(chunk) = self.chunks.remove(&unit) {
            self.space.bytes -= ALLOCATION_UNIT_BYTES;
            self.space.garbage_bytes -= chunk.garbage;
        }
    }

    /// Adds garbage to a chunk. A unit that is no chunk has none.
    pub(crate) fn add_garbage(&mut self, unit: u64, bytes: u64) {
        let Some(chunk) = self.chunks.get_mut(&unit) else { return };
        let before = chunk.garbage;
        // Records are counted an eighth too long at most, and some are counted again after a crash.
        chunk.garbage = (before + bytes).min(ALLOCATION_UNIT_BYTES - 1);
        let after = chunk.garbage;
        self.space.garbage_bytes += after - before;
        if chunk.is_collectable {
            self.space.collectable_bytes += after - before;
            if step(before) != step(after) {
                self.by_garbage[step(before)].remove(&unit);
                self.by_garbage[step(after)].insert(unit);
            }
        }
    }

    /// Allows the collection of a chunk: the log does not write to it, and none of its records is in memory alone.
    pub(crate) fn allow(&mut self, unit: u64) {
        if let Some(chunk) = self.chunks.get_mut(&unit)
            && !chunk.is_collectable
        {
            chunk.is_collectable = true;
            self.space.collectable_bytes += chunk.garbage;
            self.by_garbage[step(chunk.garbage)].insert(unit);
        }
    }

    /// Allows the collection of all chunks but those that are `is_open`.
    pub(crate) fn allow_all_but(&mut self, is_open: impl Fn(u64) -> bool) {
        let units: Vec<u64> = self.chunks.keys().copied().filter(|unit| !is_open(*unit)).collect();
        units.into_iter().for_each(|unit| self.allow(unit));
    }

    /// Forbids the collection of a chunk.
    pub(crate) fn forbid(&mut self, unit: u64) {
        if let Some(chunk) = self.chunks.get_mut(&unit)
            && chunk.is_collectable
        {
            chunk.is_collectable = false;
            self.space.collectable_bytes -= chunk.garbage;
            self.by_garbage[step(chunk.garbage)].remove(&unit);
        }
    }

    /// The chunk that may be collected with the most garbage, give or take a step, and how much it has.
    pub(crate) fn most_garbage(&self) -> Option<(u64, u64)> {
        let unit = self.by_garbage.iter().rev().find_map(|units| units.first())?;
        self.chunks.get(unit).map(|chunk| (*unit, chunk.garbage))
    }

    /// The garbage of a chunk.
    pub(crate) fn garbage_of(&self, unit: u64) -> u64 {
        self.chunks.get(&unit).map_or(0, |chunk| chunk.garbage)
    }

    /// How much of the log is garbage.
    pub(crate) fn space(&self) -> LogSpace {
        self.space
    }

    /// The number of chunks.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_chunk_with_the_most_garbage_comes_first() {
        let mut chunks = LogChunks::default();
        (1..=3).for_each(|unit| chunks.begin(unit, 0));
        assert_eq!(chunks.most_garbage(), None, "none may be collected");
        chunks.add_garbage(2, ALLOCATION_UNIT_BYTES / 2);
        chunks.allow(1);
        assert_eq!(chunks.most_garbage(), Some((1, 0)));
        chunks.allow(2);
        assert_eq!(chunks.most_garbage(), Some((2, ALLOCATION_UNIT_BYTES / 2)));
        chunks.add_garbage(1, 2 * ALLOCATION_UNIT_BYTES);
        assert_eq!(chunks.most_garbage(), Some((1, ALLOCATION_UNIT_BYTES - 1)), "no chunk has more than it holds");
        chunks.forbid(1);
        assert_eq!(chunks.most_garbage(), Some((2, ALLOCATION_UNIT_BYTES / 2)));
        chunks.end(2);
        chunks.add_garbage(2, 1);
        assert_eq!(chunks.most_garbage(), None);
        let space = LogSpace {
            bytes: 2 * ALLOCATION_UNIT_BYTES,
            garbage_bytes: ALLOCATION_UNIT_BYTES - 1,
            collectable_bytes: 0,
        };
        assert_eq!((chunks.space(), chunks.len()), (space, 2));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin(u64, u64),
        End(u64),
        Add(u64, u64),
        Allow(u64),
        Forbid(u64),
    }

    proptest! {
        #[test]
                fn sums_and_order_match_a_list(steps in proptest::collection::vec(prop_oneof![
            (0_u64..6, 0..ALLOCATION_UNIT_BYTES).prop_map(|(unit, garbage)| Step::Begin(unit, garbage)),
            (0_u64..6).prop_map(Step::End),
            (0_u64..6, 0..ALLOCATION_UNIT_BYTES).prop_map(|(unit, bytes)| Step::Add(unit, bytes)),
            (0_u64..6).prop_map(Step::Allow),
            (0_u64..6).prop_map(Step::Forbid),
        ], 1..100)) {
            let mut chunks = LogChunks::default();
            let mut model: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Begin(unit, garbage) => {
                        chunks.begin(unit, garbage);
                        model.insert(unit, (garbage.min(ALLOCATION_UNIT_BYTES - 1), false));
                    }
                    Step::End(unit) => {
                        chunks.end(unit);
                        model.remove(&unit);
                    }
                    Step::Add(unit, bytes) => {
                        chunks.add_garbage(unit, bytes);
                        model.entry(unit).and_modify(|(garbage, _)| *garbage = (*garbage + bytes).min(ALLOCATION_UNIT_BYTES - 1));
                    }
                    Step::Allow(unit) => {
                        chunks.allow(unit);
                        model.entry(unit).and_modify(|(_, is_collectable)| *is_collectable = true);
                    }
                    Step::Forbid(unit) => {
                        chunks.forbid(unit);
                        model.entry(unit).and_modify(|(_, is_collectable)| *is_collectable = false);
                    }
                }
                let collectable = || model.values().filter(|(_, is_collectable)| *is_collectable);
                let space = LogSpace {
                    bytes: model.len() as u64 * ALLOCATION_UNIT_BYTES,
                    garbage_bytes: model.values().map(|(garbage, _)| garbage).sum(),
                    collectable_bytes: collectable().map(|(garbage, _)| garbage).sum(),
                };
                prop_assert_eq!(chunks.space(), space);
                let most = collectable().map(|(garbage, _)| *garbage).max();
                prop_assert_eq!(chunks.most_garbage().map(|(_, garbage)| super::step(garbage)), most.map(super::step));
            }
        }
    }
}
