//! The caches of a command and of the processes that it started, over time.

use std::time::Duration;

use super::series::Series;

/// A recording has at most this number of caches.
pub const SERIES_MAX: usize = 256;

/// The recording of all caches.
pub struct Recording {
    /// The command line.
    pub command: String,
    /// The time between two samples.
    pub interval: Duration,
    /// The caches, in the order in which they were first seen.
    pub series: Vec<Series>,
    /// Whether there were more caches than the recording has space for.
    pub is_full: bool,
}
