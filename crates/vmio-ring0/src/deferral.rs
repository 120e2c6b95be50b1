//! Keeping signals from a thread in the machine without a system call: the monitor finds a word set when one comes.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use crate::block::{Block, leave};
use crate::machine;
use crate::signals::{self, Signals};

/// All signals wait for the end of this, but those of the thread's own instructions and those of the C library. Threads and processes that are started
/// meanwhile have them blocked. Nearly always beginning and ending it takes no exit: it does if a signal waits, and if the thread was outside meanwhile.
///
/// A thread that jumps out of it calls [`Self::abandon`] before.
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
        // SAFETY: the block is the calling thread's, and is never freed.
        let deferral = unsafe { &(*block).deferral };
        let begins = deferral.begin();
        if !machine::is_at_ring_0() {
            // The handler of a signal that came before has taken the thread outside.
            if begins {
                deferral.end();
            }
            return None;
        }
        // SAFETY: as above. No handler changes the mask from here on.
        let outermost = begins.then(|| Outermost { block, before: unsafe { (*block).blocked } });
        Some(SignalsDeferred { outermost, of_thread: PhantomData })
    }

    /// Ends all of them: the calling thread is about to jump out, which sets its mask of signals.
    pub fn abandon() {
        if let Some(vcpu) = machine::own() {
            vcpu.block().deferral.end();
        }
    }
}

impl Drop for SignalsDeferred {
    fn drop(&mut self) {
        let Some(Outermost { block, before }) = self.outermost else { return };
        // SAFETY: as in `new`: the monitor changes the mask in this thread alone, and in the deferral only where the thread asks for it or comes back.
        // In a forked child all of the block is zeros, and nobody uses it.
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

const OFF: u32 = 0;
const ON: u32 = 1;
/// The thread has set its mask of signals meanwhile, which counts from then on.
const BY_MASK: u32 = 2;

impl Deferral {
    /// False if it has begun already.
    fn begin(&self) -> bool {
        let begins = self.0.load(Ordering::Relaxed) == OFF;
        if begins {
            self.0.store(ON, Ordering::Relaxed);
        }
        // Nothing that follows may be done before; a signal interrupts the same thread, so the processor's order is right.
        compiler_fence(Ordering::SeqCst);
        begins
    }

    /// For threads that end it, and those that get the processor of one that has not.
    pub(crate) fn end(&self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(OFF, Ordering::Relaxed);
        // A signal that the monitor has found before is looked for afterwards.
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ON
    }

    /// The thread sets its mask, if only for a time, as the C library does when it starts threads, ends the process or unblocks a signal.
    pub(crate) fn is_by_mask_now(&self) {
        if self.is_on() {
            self.0.store(BY_MASK, Ordering::Relaxed);
        }
    }
}
