//! The memory that a mapping takes.

/// The memory that a mapping takes of its cache ([`crate::Mapping::usage`]).
///
/// [`crate::MappingOptions::floor`] and [`crate::MappingOptions::ceiling`] bound the sum of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Pages in memory or on their way in.
    pub resident_pages: u64,
    /// Pages of the budget for the mapping's page tables and page words: see [`crate::Stats::table_pages`].
    pub table_pages: u64,
}
