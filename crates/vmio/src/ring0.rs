//! Guest mode of the process's own virtual machine, for threads that use mappings of [`Engine::Ring0`](crate::Engine::Ring0).

use std::os::fd::RawFd;

use vmio_ring0::Machine;

use crate::engine::Ring0Engine;
use crate::error::{Error, Result};

pub use vmio_ring0::{Counts, is_at_ring_0, is_inside, leave, segv_action};

/// Makes the process's machine, if it has none, without entering it.
///
/// # Errors
///
/// [`Error::NoRing0`] where the process can have no machine.
pub fn start() -> Result<()> {
    machine().map(drop)
}

/// Has the calling thread go on in the machine. Threads that touch mapped memory outside enter by themselves; this does it in advance.
///
/// # Errors
///
/// [`Error::NoRing0`] where the process can have no machine, or the machine no virtual processor for another thread.
pub fn enter() -> Result<()> {
    machine()?.enter().map_err(explain)
}

/// Returns what has happened in the machine.
///
/// # Errors
///
/// [`Error::NoRing0`] where the process can have no machine.
pub fn counts() -> Result<Counts> {
    Ok(machine()?.counts())
}

/// Returns the machine's descriptors, one for each thread that was in it and one more. A program that closes all descriptors that it finds must spare
/// these.
///
/// # Errors
///
/// [`Error::NoRing0`] where the process can have no machine.
pub fn descriptors() -> Result<Vec<RawFd>> {
    Ok(machine()?.descriptors())
}

fn machine() -> Result<&'static Machine> {
    Ring0Engine::machine().map_err(explain)
}

/// The error that says why there is no machine, and what to do.
pub(crate) fn explain(why: vmio_ring0::Error) -> Error {
    let reason = match why {
        vmio_ring0::Error::Ring0Emulated => {
            "this host emulates ring 0 of its guests: use one with hardware virtualisation, or try it slowly at ring 3 with VMIO_RING0_LEVEL=3"
                .to_owned()
        }
        why => match std::error::Error::source(&why) {
            Some(source) => format!("{why}: {source}"),
            None => why.to_string(),
        },
    };
    Error::NoRing0 { reason }
}
