//! Keeping signals from a thread in the machine without a system call: the monitor finds a word set when one comes.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use crate::block::{Block, leave};
use crate::machine;
use crate::signals::{self, Signals};

/// A signal that the program does not block waits for the end of this, but those of the thread's own instructions. Beginning and ending it takes no
/// exit unless one waits. A thread or process that is started meanwhile has the signals blocked, as with rt_sigprocmask(2).
///
/// The thread may leave the machine meanwhile, and come back. One that jumps out of this has its signals wait for good.
///
/// # Examples
///
/// ```
/// use vmio_ring0::SignalsDeferred;
///
/// // At ring 0 alone; elsewhere that takes a system call.
/// assert!(SignalsDeferred::new().is_none());
/// ```
pub struct SignalsDeferred {
    /// None within another one, which ends later.
    outermost: Option<Outermost>,
    /// The word is the thread's.
    of_thread: PhantomData<*const ()>,
}

struct Outermost {
    block: *mut Block,
    /// The signals that the program blocks. A thread that leaves meanwhile comes back with others.
    before: Signals,
}

impl SignalsDeferred {
    /// Begins it, if the calling thread is at ring 0 of the machine.
    pub fn new() -> Option<SignalsDeferred> {
        if !machine::is_at_ring_0() {
            return None;
        }
        let block = machine::own()?.own_block();
        // SAFETY: the block is the calling thread's, and is never freed. The monitor changes its fields in the same thread, so not meanwhile.
        let (deferral, before) = unsafe { (&(*block).deferral, (*block).blocked) };
        let outermost = deferral.begin().then_some(Outermost { block, before });
        Some(SignalsDeferred { outermost, of_thread: PhantomData })
    }
}

impl Drop for SignalsDeferred {
    fn drop(&mut self) {
        let Some(Outermost { block, before }) = self.outermost else { return };
        // SAFETY: as in `new`. In a forked child all of the block is zeros, and nobody uses it.
        let changed = unsafe { ptr::replace(&raw mut (*block).blocked, before) != before };
        // SAFETY: as in `new`.
        let (deferral, leave_wanted) = unsafe { (&(*block).deferral, &(*block).leave_wanted) };
        deferral.end();
        if !machine::is_at_ring_0() {
            signals::set(before);
        } else if changed || leave_wanted.load(Ordering::Relaxed) != leave::NOT_WANTED {
            machine::look_for_signals();
        }
    }
}

/// Runs a body meanwhile: a handler could wait for what the body holds.
pub(crate) fn with_signals_deferred<T>(body: impl FnOnce() -> T) -> T {
    match SignalsDeferred::new() {
        Some(_deferred) => body(),
        None => signals::blocked(body),
    }
}

/// A virtual processor's word: whether its thread's signals are to wait. The thread sets it in the machine, and reads it in its monitor.
#[derive(Default)]
pub(crate) struct Deferral(AtomicU32);

impl Deferral {
    /// False if it has begun already.
    fn begin(&self) -> bool {
        let begins = !self.is_on();
        self.0.store(1, Ordering::Relaxed);
        // What follows must not be done before; a signal interrupts the same thread, so the processor's order is right.
        compiler_fence(Ordering::SeqCst);
        begins
    }

    /// For threads that end it, and those that get the processor of one that has not.
    pub(crate) fn end(&self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(0, Ordering::Relaxed);
        // A signal that the monitor has found before is looked for afterwards.
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
