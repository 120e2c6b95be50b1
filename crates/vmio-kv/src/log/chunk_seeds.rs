//! The seeds of chunks.

use std::sync::atomic::Ordering;

use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::format::record::Seed;
use crate::sparse_words::SparseWords;

/// The seeds of records' checksums by chunk, so that a read of a record need not read its chunk's header.
pub(super) struct ChunkSeeds(SparseWords);

impl ChunkSeeds {
    const KNOWN: u64 = 1 << 32;

    /// Of a volume of that many units; none is known.
    pub(super) fn new(units: u64) -> Self {
        ChunkSeeds(SparseWords::new(units))
    }

    /// The seed of the chunk that begins there, if it is known.
    pub(super) fn get(&self, chunk: u64) -> Option<Seed> {
        let word = self.0.get(chunk / ALLOCATION_UNIT_BYTES)?.load(Ordering::Relaxed);
        (word & Self::KNOWN != 0).then_some(Seed::from_bits(word as u32))
    }

    /// Notes the seed of the chunk that begins there.
    pub(super) fn put(&self, chunk: u64, seed: Seed) {
        if let Some(place) = self.0.get(chunk / ALLOCATION_UNIT_BYTES) {
            place.store(Self::KNOWN | u64::from(seed.to_bits()), Ordering::Relaxed);
        }
    }
}
