//! The only way into vmio from a call of the program's.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use vmio::SignalsBlocked;

use crate::cancellation::{self, NotCancelled};
use crate::errno::Errno;
use crate::process::Process;

/// The outcome of a call; `None` if the C library must do it.
pub(crate) type Answer<T> = Option<Result<T, Errno>>;

/// Whether a thread runs the program's code or vmio's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Running {
    /// The program's.
    Program,
    /// vmio's, for a call of the program's.
    Call,
    /// vmio's, for good.
    OwnThread,
}

thread_local! {
    // Constant and without a destructor, so that its first use allocates nothing.
    static RUNNING: Cell<Running> = const { Cell::new(Running::Program) };
    /// The place on the stack where the thread's current call of the program's began.
    static ENTERED: Cell<usize> = const { Cell::new(0) };
}

/// A place on the stack below the caller's frame and above the frames of its callees.
#[inline(always)]
fn here() -> usize {
    let place = 0_u8;
    std::hint::black_box(&raw const place).addr()
}

/// The program is about to jump (longjmp) to a frame with this stack pointer. If a signal handler interrupted vmio and jumps past vmio's
/// frames, the thread runs the program's code again. A jump within the handler changes nothing.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) fn jumps(stack_pointer: usize) {
    if RUNNING.get() == Running::Call && is_past(stack_pointer, ENTERED.get()) {
        RUNNING.set(Running::Program);
        SignalsBlocked::abandon();
        cancellation::is_abandoned();
    }
}

/// Whether a jump leaves the frames up to a place on the stack.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn is_past(target: usize, entered: usize) -> bool {
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: sigaltstack fills it.
    let is_told = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0;
    let start = stack.ss_sp.addr();
    let is_handlers = |place: usize| is_told && (start..start.saturating_add(stack.ss_size)).contains(&place);
    match (is_handlers(target), is_handlers(entered)) {
        (true, false) => false,
        (false, true) => true,
        // The stack grows down.
        _ => target > entered,
    }
}

/// Whether the thread is inside vmio: its calls are vmio's own.
pub(crate) fn is_inside() -> bool {
    RUNNING.get() != Running::Program
}

/// Whether the thread is vmio's own. A thread that is inside for a call of the program's may be interrupted by the program's handlers.
pub(crate) fn is_own_thread() -> bool {
    RUNNING.get() == Running::OwnThread
}

/// Runs a short closure as vmio, in any thread. If a signal handler of the program's interrupts it, the handler's calls count as vmio's,
/// too, and go to the C library.
pub(crate) fn as_vmio<T>(call: impl FnOnce() -> T) -> T {
    let _inside = Inside::new();
    call()
}

/// While it exists the thread is inside vmio.
pub(crate) struct Inside(Running);

impl Inside {
    pub(crate) fn new() -> Self {
        let before = RUNNING.get();
        if before == Running::Program {
            ENTERED.set(here());
            RUNNING.set(Running::Call);
        }
        Inside(before)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// Runs a longer closure as vmio: the program's signal handlers wait for its end.
pub(crate) fn as_vmio_undisturbed<T>(call: impl FnOnce() -> T) -> T {
    let _no_handlers = SignalsBlocked::new();
    as_vmio(call)
}

/// Makes the calling thread vmio's own, for good, such as a thread of the cache's, which calls the C library in the middle of a miss.
pub(crate) fn stay_inside() {
    RUNNING.set(Running::OwnThread);
}

/// Runs vmio's part of a call of the program's. Calls that vmio makes meanwhile go to the C library, allocations among them. A panic ends
/// here: the call fails with EIO.
///
/// Once files are mapped, the program's signal handlers wait until vmio's part has ended: a handler that ended the process in the middle
/// could not write the stores. pthread_cancel has to wait, too.
pub(crate) fn enter<T>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    if is_inside() {
        return None;
    }
    ENTERED.set(here());
    RUNNING.set(Running::Call);
    let _not_cancelled = NotCancelled::new();
    let _no_handlers = Process::current().filter(|process| !process.table.is_empty()).map(|_| SignalsBlocked::new());
    // State that a panic leaves half done is behind locks without poisoning, or is never used again.
    let answer = catch_unwind(AssertUnwindSafe(call));
    RUNNING.set(Running::Program);
    answer.unwrap_or(Some(Err(Errno::IO)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_vmio_calls_itself_is_not_its_business() {
        let answer = enter(|| {
            assert!(is_inside() && enter(|| Some(Ok(1))).is_none());
            Some(Ok(2))
        });
        assert_eq!(answer, Some(Ok(2)));
        assert!(!is_inside());
    }

    #[test]
    fn a_call_leaves_the_thread_whose_it_was() {
        as_vmio(|| as_vmio_undisturbed(|| assert!(is_inside() && !is_own_thread())));
        assert!(!is_inside());
        let own = std::thread::spawn(|| {
            stay_inside();
            as_vmio(|| assert!(is_own_thread()));
            is_own_thread()
        });
        assert!(own.join().unwrap());
    }

    #[test]
    fn a_jump_past_vmio_leaves_it_and_one_within_a_handler_does_not() {
        as_vmio(|| {
            jumps(ENTERED.get() - 64);
            assert!(is_inside());
            jumps(ENTERED.get() + 64);
            assert!(!is_inside());
        });
        assert!(!is_inside());
    }

    #[test]
    fn a_panic_is_an_error_of_the_call() {
        assert_eq!(enter::<()>(|| panic!("as a test")), Some(Err(Errno::IO)));
        assert!(!is_inside());
    }
}
