//! The program's threads in the process's own virtual machine, with `--engine ring0`.

use std::sync::atomic::{AtomicBool, Ordering};

use vmio::Engine;

use crate::messages;
use crate::own_descriptors;
use crate::settings::Settings;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether a thread has run there.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Whether the program's threads are to run there.
pub(crate) fn is_wanted() -> bool {
    let settings = Settings::of_this_process();
    settings.and_then(|settings| settings.cache.as_ref()).is_some_and(|cache| cache.engine == Some(Engine::Ring0))
}

/// Has the calling thread go on in the machine, if that is wanted. A thread that cannot goes on outside, where system calls do not take pointers to
/// mapped memory; a message says why.
#[cfg(target_arch = "x86_64")]
pub(crate) fn enter() {
    if !is_wanted() {
        return;
    }
    let entered = vmio::ring0::enter().and_then(|()| vmio::ring0::descriptors());
    match entered {
        Ok(descriptors) => {
            IS_ON.store(true, Ordering::Relaxed);
            descriptors.into_iter().for_each(|descriptor| _ = own_descriptors::insert(descriptor));
        }
        Err(error) => messages::say(format_args!("a thread runs outside the virtual machine: {error}")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn enter() {}
