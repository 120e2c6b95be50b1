//! What a mapping takes.

/// What a mapping takes of its cache. [`crate::MappingOptions::floor`] and [`crate::MappingOptions::ceiling`] bound the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Pages in memory or on their way in.
    pub resident_pages: u64,
    /// Pages that its page tables, and what is known of each page, take of the budget: see [`crate::Stats::table_pages`].
    pub table_pages: u64,
}
