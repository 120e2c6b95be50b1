//! Files of a mounted vmio-pmfs, mapped by their extents of the medium: loads and stores meet neither the kernel's page cache nor the server.

mod growth;
mod holder;
mod leased_map;
mod medium_slot;
mod program_range;
mod protections;
mod slots;

pub(crate) use holder::is_of_pmfs;
pub(crate) use leased_map::{LeasedMap, hold_still};
pub(crate) use program_range::{Allowed, ProgramRange};
