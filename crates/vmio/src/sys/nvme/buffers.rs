//! The memory that commands may name without a look-up of its pages.

use std::ops::Range;

/// Memory that is registered with a ring, in ascending order of addresses.
#[derive(Default)]
pub(super) struct Buffers(pub(super) Vec<Range<usize>>);

impl Buffers {
    /// Buffers for these ranges, in pieces of at most this many bytes.
    pub(super) fn new(ranges: &[Range<usize>], piece_bytes: usize) -> Buffers {
        let pieces = |range: &Range<usize>| {
            let end = range.end;
            range.clone().step_by(piece_bytes).map(move |start| start..end.min(start.saturating_add(piece_bytes)))
        };
        let mut buffers: Vec<_> = ranges.iter().flat_map(pieces).collect();
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        Buffers(buffers)
    }

    /// The buffer that contains an address, and its index.
    pub(super) fn find(&self, address: usize) -> Option<(usize, &Range<usize>)> {
        let index = self.0.partition_point(|buffer| buffer.end <= address);
        self.0.get(index).filter(|buffer| buffer.start <= address).map(|buffer| (index, buffer))
    }
}
