//! How an inner node names a block below it.

use crate::format::geometry::BLOCK_BYTES;

const BLOCK_NUMBER_BITS: u32 = 40;

/// A child's place, and the last 24 bits of its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child(u64);

impl Child {
    pub(crate) fn new(offset: u64, epoch: u64) -> Self {
        Child((offset / BLOCK_BYTES as u64) | (epoch << BLOCK_NUMBER_BITS))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Child(bits)
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn offset(self) -> u64 {
        (self.0 & ((1 << BLOCK_NUMBER_BITS) - 1)) * BLOCK_BYTES as u64
    }

    /// The stored bits of the child's epoch.
    pub(crate) fn epoch_bits(self) -> u64 {
        self.0 >> BLOCK_NUMBER_BITS
    }

    /// Whether a node of that epoch is the intended one: a lost write leaves an older node.
    pub(crate) fn is_of(self, epoch: u64) -> bool {
        self.0 >> BLOCK_NUMBER_BITS == epoch & ((1 << (64 - BLOCK_NUMBER_BITS)) - 1)
    }
}
