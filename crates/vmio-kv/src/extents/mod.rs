//! Large values: written to extents, past the mapping, before the log refers to them, and read through the mapping with each piece checked.

mod large_value;
mod writer;

pub(crate) use large_value::{LargeValue, extents_of_retired};
pub(crate) use writer::Stored;
