//! Faults on managed pages: the program's handler resolves them, in the thread that has the fault.

use crate::block::Block;
use crate::counters::Counters;
use crate::stubs::TrapFrame;

/// Resolves a fault at an address, of a load or a store: true if the access will succeed now.
///
/// The host refuses stores where none are ever allowed, without asking it. It runs in the faulting thread, and in the machine if that is at ring 0. The program may be anywhere meanwhile, so the handler's rules are those of
/// a signal's: it takes no lock that the program may hold, and allocates nothing. It must not touch managed memory. Its stack has 128 KiB.
pub type FaultHandler = fn(address: usize, is_store: bool) -> bool;

/// In the error code of a page fault: it was a store.
const STORE: u64 = 1 << 1;

/// Called by the stub of page faults, on the handler's stack. The block is the thread's.
pub(crate) extern "C" fn on_page_fault(block: &Block, frame: &TrapFrame) -> bool {
    let (space, address) = (&block.machine.space, frame.address as usize);
    let is_forbidden = frame.error & STORE != 0 && space.is_read_only(address);
    space.is_managed(address) && !is_forbidden && resolve(block, frame)
}

/// Asks the handler. The address is managed.
fn resolve(block: &Block, frame: &TrapFrame) -> bool {
    Counters::count(&block.counters.faults);
    let Some(handler) = block.machine.handler.get() else { return false };
    // SAFETY: the word is the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. The handler may change it, and the program does not expect that.
    let kept = unsafe { errno.read() };
    let is_resolved = handler(frame.address as usize, frame.error & STORE != 0);
    // SAFETY: as above.
    unsafe { errno.write(kept) };
    is_resolved
}
