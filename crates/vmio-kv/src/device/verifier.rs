//! Verifies nodes as they arrive from the device. Readers verify records of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmio::PageVerifier;

use crate::format::block::is_whole;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES};
use crate::sparse_words::SparseWords;

/// Which units hold nodes, a bit each.
pub(crate) struct NodeUnits(SparseWords);

impl NodeUnits {
    pub(super) fn new(units: u64) -> Self {
        NodeUnits(SparseWords::new(units.div_ceil(64)))
    }

    pub(super) fn set(&self, unit: u64, holds_nodes: bool) {
        let Some(word) = self.0.get(unit / 64) else { return };
        let bit = 1 << (unit % 64);
        if holds_nodes {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    fn contains(&self, unit: u64) -> bool {
        self.0.get(unit / 64).is_some_and(|word| word.load(Ordering::Acquire) >> (unit % 64) & 1 == 1)
    }
}

/// Verifies each page for the mapping.
pub(super) struct NodeVerifier(pub(super) Arc<NodeUnits>);

impl PageVerifier for NodeVerifier {
    fn verify(&self, offset: u64, page: &[u8]) -> bool {
        !self.0.contains(offset / ALLOCATION_UNIT_BYTES)
            || page.first_chunk::<BLOCK_BYTES>().is_some_and(|block| is_whole(block, offset))
    }

    fn seal(&self, _offset: u64, _page: &mut [u8]) {
        // Nodes are sealed when they are built.
    }

    fn seals(&self) -> bool {
        false
    }
}
