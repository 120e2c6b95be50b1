//! Blocks that a process may still store to, though its lease of them was taken away.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;

use crate::alloc::Run;

/// The blocks of holders that did not answer when their leases were recalled. A block that becomes free goes to nobody else before the
/// holder is gone: a process that was stopped would store to another file's data.
#[derive(Default)]
pub(crate) struct LostLeases {
    of: Mutex<BTreeMap<u64, Lost>>,
}

#[derive(Default)]
struct Lost {
    mapped: Vec<Run>,
    /// Parts of these that are free, once the holder is gone.
    kept: Vec<Run>,
}

impl LostLeases {
    /// Notes that a holder may have blocks mapped for as long as it lives.
    pub(crate) fn add(&self, holder: u64, blocks: impl IntoIterator<Item = Run>) {
        self.of.lock().entry(holder).or_default().mapped.extend(blocks);
    }

    /// Whether there is such a holder.
    pub(crate) fn has_any(&self) -> bool {
        !self.of.lock().is_empty()
    }

    /// The parts of a run that holders may have mapped, in order.
    pub(crate) fn parts_of(&self, run: &Run) -> Vec<Run> {
        let of = self.of.lock();
        let common = |mapped: &Run| mapped.start.max(run.start)..mapped.end().min(run.end());
        let mut all: Vec<_> =
            of.values().flat_map(|lost| &lost.mapped).map(common).filter(|part| !part.is_empty()).collect();
        all.sort_unstable_by_key(|part| part.start);
        let mut parts: Vec<Run> = Vec::new();
        for Range { start, end } in all {
            match parts.last_mut().filter(|last| start <= last.end()) {
                Some(last) => last.count = last.count.max(end - last.start),
                None => parts.push(Run { start, count: end - start }),
            }
        }
        parts
    }

    /// Keeps the parts of a free run that a holder may have mapped. Returns the others, which anybody may get.
    pub(crate) fn keep(&self, run: Run) -> Vec<Run> {
        let mut of = self.of.lock();
        let mut free = vec![run];
        for lost in of.values_mut() {
            let Lost { mapped, kept } = lost;
            for mapped in mapped.iter() {
                free = free.into_iter().flat_map(|run| split(run, mapped, kept)).filter(|run| run.count > 0).collect();
            }
        }
        free
    }

    /// The holder is gone. Returns the blocks that were kept because of it; another one may have them mapped, too.
    pub(crate) fn holder_is_gone(&self, holder: u64) -> Vec<Run> {
        self.of.lock().remove(&holder).map(|lost| lost.kept).unwrap_or_default()
    }
}

/// The parts of a run before and behind a mapped one. The part that they have in common is kept.
fn split(run: Run, mapped: &Run, kept: &mut Vec<Run>) -> [Run; 2] {
    let (from, to) = (run.start.max(mapped.start), run.end().min(mapped.end()));
    if from >= to {
        return [run, Run { start: run.end(), count: 0 }];
    }
    kept.push(Run { start: from, count: to - from });
    [Run { start: run.start, count: from - run.start }, Run { start: to, count: run.end() - to }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, count: u64) -> Run {
        Run { start, count }
    }

    #[test]
    fn blocks_stay_until_the_last_holder_that_may_store_to_them_is_gone() {
        let lost = LostLeases::default();
        assert_eq!(lost.keep(run(0, 9)), [run(0, 9)]);
        lost.add(1, [run(10, 10), run(40, 5)]);
        lost.add(2, [run(15, 10)]);
        assert!(lost.has_any());
        assert_eq!(lost.parts_of(&run(5, 6)), [run(10, 1)]);
        assert_eq!(lost.parts_of(&run(0, 99)), [run(10, 15), run(40, 5)], "what both have is one part");
        assert_eq!((lost.parts_of(&run(24, 9)), lost.parts_of(&run(25, 15))), (vec![run(24, 1)], vec![]));
        assert_eq!(lost.keep(run(5, 40)), [run(5, 5), run(25, 15)]);
        let mut freed = lost.holder_is_gone(1);
        freed.sort_unstable();
        assert_eq!(freed, [run(10, 10), run(40, 5)]);
        assert_eq!(freed.into_iter().flat_map(|run| lost.keep(run)).collect::<Vec<_>>(), [run(10, 5), run(40, 5)]);
        let mut freed = lost.holder_is_gone(2);
        freed.sort_unstable();
        assert_eq!(freed, [run(15, 5), run(20, 5)]);
        assert_eq!(lost.holder_is_gone(2), []);
        assert!(!lost.has_any());
    }
}
