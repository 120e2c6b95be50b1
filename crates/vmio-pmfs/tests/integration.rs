//! The tests of the file system, one program.

mod aligned;
mod calls;
mod crash_states;
mod crashes;
mod cycles;
mod damage;
mod durable_appends;
mod inspect;
mod leases;
mod lives;
mod lost_ends;
mod model;
mod ranges;
mod recovery;
mod relaxed;
mod repair;
mod repair_slots;
mod support;
mod use_all;
mod xattrs;
