//! The outcome of a replay.

use serde::Serialize;

/// The misses of one policy.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub policy: &'static str,
    pub cache_bytes: u64,
    pub accesses: usize,
    pub misses: usize,
    pub miss_ratio: f64,
    /// Beside them, accesses of inactive pages: in memory, but unmapped.
    pub minor_faults: usize,
}
