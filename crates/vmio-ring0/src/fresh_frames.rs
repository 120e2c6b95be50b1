//! Frames that were never in use.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::{LARGE_PAGE_BYTES, PAGE_BYTES};

/// A pool grows by this many frames, so that the host can take a huge page.
pub(crate) const RUN: u32 = (LARGE_PAGE_BYTES / PAGE_BYTES) as u32;

/// The frames of a NUMA node, up to an end, in the order of their first use.
///
/// A thread grows the part of its own node, and gives the new frames memory: its touch is the first, so Linux takes memory of that node. A program that was
/// told to have its memory elsewhere (numactl) has it there; mbind would override that. If memory is on another node than the part, that costs
/// speed alone: when a thread grows another node's part because its own is at its end, or touches a frame again whose memory was given back.
pub(crate) struct Part {
    end: u32,
    /// The first frame that was never in use.
    fresh: AtomicU32,
    /// The first frame that the part has not grown to.
    grown: AtomicU32,
}

impl Part {
    /// The parts of some frames, as large as each other but for whole runs.
    pub(crate) fn all(frames: u32, nodes: usize) -> Box<[Part]> {
        let end = |node: usize| (u64::from(frames) * node as u64).div_ceil(nodes as u64);
        let end = |node: usize| end(node).next_multiple_of(RUN.into()).min(frames.into()) as u32;
        let part = |node| Part { end: end(node + 1), fresh: end(node).into(), grown: end(node).into() };
        (0..nodes).map(part).collect()
    }

    /// The number of the part that has this frame.
    pub(crate) fn of(parts: &[Part], frame: u32) -> usize {
        parts.partition_point(|part| part.end <= frame).min(parts.len() - 1)
    }

    /// Takes a frame, if it has grown to one.
    pub(crate) fn take(&self) -> Option<u32> {
        let grown = self.grown();
        let next = |fresh: u32| (fresh < grown).then(|| fresh + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// The first frame that it has not grown to.
    pub(crate) fn grown(&self) -> u32 {
        self.grown.load(Ordering::Acquire)
    }

    /// The same, and how many it could grow by at once: to a multiple of a run, so that they are in one gigabyte. None at its
    /// end.
    pub(crate) fn next(&self) -> Option<(u32, u32)> {
        let start = self.grown();
        (start < self.end).then(|| (start, (start + 1).next_multiple_of(RUN).min(self.end) - start))
    }

    /// Grows from that frame on. False if another thread was faster.
    pub(crate) fn grow(&self, start: u32, count: u32) -> bool {
        self.grown.compare_exchange(start, start + count, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(frames: u32, nodes: usize) -> Vec<(u32, u32)> {
        Part::all(frames, nodes).iter().map(|part| (part.grown(), part.end)).collect()
    }

    #[test]
    fn each_frame_is_in_one_part() {
        assert_eq!(runs(100, 1), [(0, 100)]);
        assert_eq!(runs(4 * RUN + 5, 2), [(0, 3 * RUN), (3 * RUN, 4 * RUN + 5)]);
        assert_eq!(runs(100, 2), [(0, 100), (100, 100)]);
        assert_eq!(runs(u32::MAX / 2, 3)[2].1, u32::MAX / 2);
        let parts = Part::all(3 * RUN, 3);
        assert_eq!([0, RUN - 1, RUN, 3 * RUN - 1].map(|frame| Part::of(&parts, frame)), [0, 0, 1, 2]);
    }

    #[test]
    fn a_part_is_used_as_far_as_it_has_grown() {
        let parts = Part::all(2 * RUN - 1, 1);
        let part = &parts[0];
        assert_eq!((part.take(), part.next()), (None, Some((0, RUN))));
        assert!(part.grow(0, 2) && !part.grow(0, 1));
        assert_eq!([part.take(), part.take(), part.take()], [Some(0), Some(1), None]);
        assert_eq!(part.next(), Some((2, RUN - 2)));
        assert!(part.grow(2, RUN - 2));
        assert_eq!(part.next(), Some((RUN, RUN - 1)));
        assert!(part.grow(RUN, RUN - 1));
        assert_eq!(part.next(), None);
        assert_eq!(std::iter::from_fn(|| part.take()).count(), 2 * RUN as usize - 3);
    }
}
