//! The accesses that the parts of a map allow.

use std::ops::Range;

use rustix::mm::ProtFlags;

/// The accesses that each byte of a range allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Protections {
    /// The parts from the first byte on, each with its end. Neighbours differ.
    parts: Vec<(usize, ProtFlags)>,
}

impl Protections {
    /// A range that allows the same everywhere.
    pub(super) fn of(len: usize, access: ProtFlags) -> Protections {
        Protections { parts: vec![(len, access)] }
    }

    /// Changes what a part allows.
    pub(super) fn set(&mut self, part: Range<usize>, access: ProtFlags) {
        let len = self.parts.last().map_or(0, |last| last.0);
        assert!(part.end <= len, "{part:?} of {len} bytes");
        let before = self.parts(0..part.start).collect::<Vec<_>>();
        let after = self.parts(part.end..len).collect::<Vec<_>>();
        let changed = (!part.is_empty()).then_some((part, access));
        let mut parts: Vec<(usize, ProtFlags)> = Vec::with_capacity(self.parts.len() + 2);
        for (part, access) in before.into_iter().chain(changed).chain(after) {
            match parts.last_mut() {
                Some(last) if last.1 == access => last.0 = part.end,
                _ => parts.push((part.end, access)),
            }
        }
        self.parts = parts;
    }

    /// The parts of a part, in order. Allocates nothing.
    pub(super) fn parts(&self, of: Range<usize>) -> impl Iterator<Item = (Range<usize>, ProtFlags)> {
        let mut start = 0;
        self.parts.iter().filter_map(move |(end, access)| {
            let part = start.max(of.start)..(*end).min(of.end);
            start = *end;
            (part.start < part.end).then_some((part, *access))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_allows_what_was_said_last() {
        let all = [ProtFlags::empty(), ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE];
        let (mut model, mut protections) = ([all[1]; 40], Protections::of(40, all[1]));
        let mut seed = 1_u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..2000 {
            let (start, access) = (next(41), all[next(3)]);
            let part = start..start + next(41 - start);
            model[part.clone()].fill(access);
            protections.set(part, access);
            let (from, mut at) = (next(41), 0);
            at += from;
            for (part, access) in protections.parts(from..40) {
                assert_eq!(part.start, at);
                assert!(model[part.clone()].iter().all(|byte| *byte == access), "{part:?}: {protections:?}");
                at = part.end;
            }
            assert_eq!(at, 40);
            assert!(protections.parts.windows(2).all(|two| two[0].1 != two[1].1), "{protections:?}");
        }
    }
}
