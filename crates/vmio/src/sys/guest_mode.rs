//! Guest mode of the process's own machine, as the code sees it that runs there.

#[cfg(target_arch = "x86_64")]
pub(crate) use vmio_ring0::SignalsDeferred;

/// Whether the calling thread is in guest mode at ring 0. Each system call would leave it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn is_at_ring_0() -> bool {
    vmio_ring0::is_at_ring_0()
}

/// Other architectures have no such engine.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_at_ring_0() -> bool {
    false
}

/// Signals are blocked by the kernel there.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) enum SignalsDeferred {}

#[cfg(not(target_arch = "x86_64"))]
impl SignalsDeferred {
    pub(crate) fn new() -> Option<SignalsDeferred> {
        None
    }

    pub(crate) fn abandon() {}
}
