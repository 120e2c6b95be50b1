//! What a reader of the runs must know.

use vmio_report::size::format_size;
use vmio_report::surroundings::{Surroundings, printable};

use crate::target::Target;

/// What a reader must know to judge the figures.
pub struct Setting {
    /// Where and when they were made.
    pub surroundings: Surroundings,
    /// What the runs were made on.
    pub target: String,
    /// How much of it.
    pub size_bytes: u64,
    /// The memory budget.
    pub cache_bytes: u64,
    /// How long each run was measured.
    pub measure_s: f64,
}

impl Setting {
    /// Looks at all of it.
    pub fn now(target: &Target, cache_bytes: u64, measure_s: f64) -> Self {
        Self {
            surroundings: Surroundings::now(),
            target: printable(target.description()),
            size_bytes: target.size_bytes(),
            cache_bytes,
            measure_s,
        }
    }

    /// The sizes, in a few words.
    pub fn sizes(&self) -> String {
        format!("{} of data, a cache of {}", format_size(self.size_bytes), format_size(self.cache_bytes))
    }
}
