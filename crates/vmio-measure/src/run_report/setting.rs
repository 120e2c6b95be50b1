//! The setting of the runs, which their readers must know.

use vmio_report::size::format_size;
use vmio_report::surroundings::{Surroundings, printable};

use crate::target::Target;

/// The facts that a reader must know to judge the figures.
pub struct Setting {
    /// The place and time of the runs.
    pub surroundings: Surroundings,
    /// The target of the runs.
    pub target: String,
    /// The bytes of the target that the runs used.
    pub size_bytes: u64,
    /// The memory budget.
    pub cache_bytes: u64,
    /// The seconds that each run was measured for.
    pub measure_s: f64,
}

impl Setting {
    /// Finds all of it out.
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
