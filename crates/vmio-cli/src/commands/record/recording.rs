//! The caches of a command and of the processes that it started, over time.

use std::time::Duration;

use super::series::Series;

/// More caches than this are not recorded.
pub const SERIES_MAX: usize = 256;

/// What was seen of all caches.
pub struct Recording {
    /// The command line.
    pub command: String,
    /// The time between two samples.
    pub interval: Duration,
    /// The caches, in the order in which they were first seen.
    pub series: Vec<Series>,
    /// Whether there were caches that there was no room for.
    pub is_full: bool,
}
