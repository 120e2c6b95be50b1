//! Guest mode of the process's own virtual machine, for threads that use mappings of [`Engine::Ring0`](crate::Engine::Ring0).

use crate::engine::Ring0Engine;
use crate::error::{Error, Result};

pub use vmio_ring0::{Counts, is_inside, leave};

/// Has the calling thread go on in the machine. Threads that touch mapped memory outside enter by themselves; this does it in advance.
///
/// # Errors
///
/// [`Error::NoRing0`] where the process can have no machine.
pub fn enter() -> Result<()> {
    let entered = Ring0Engine::machine().and_then(|machine| machine.enter());
    entered.map_err(|why| Error::NoRing0 { reason: why.to_string() })
}

/// Returns what has happened in the machine.
///
/// # Errors
///
/// [`Error::NoRing0`] where the process can have no machine.
pub fn counts() -> Result<Counts> {
    let machine = Ring0Engine::machine().map_err(|why| Error::NoRing0 { reason: why.to_string() })?;
    Ok(machine.counts())
}
