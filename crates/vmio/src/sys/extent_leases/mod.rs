//! Files of a mounted vmio-pmfs, mapped by their extents of the medium: loads and stores meet neither the kernel's page cache nor the server.

mod append;
mod blocks;
mod changes;
mod extent_count;
mod growth;
mod holder;
mod leased_map;
mod medium_slot;
mod program_range;
mod protections;
mod showing;
mod slots;

pub(crate) use growth::stores_in_turn;
pub(crate) use holder::{HeldHolders, hold_holders, is_of_pmfs};
pub(crate) use leased_map::LeasedMap;
pub(crate) use program_range::{Allowed, ProgramRange};
pub(crate) use showing::{HeldStill, hold_still};
