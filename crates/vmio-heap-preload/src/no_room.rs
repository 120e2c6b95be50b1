//! What is said when a store to the heap finds no room: a program cannot know that its memory is a file.

use std::mem;
use std::ptr;

use libc::{c_int, c_void, siginfo_t};

const MESSAGE: &str = "vmio run: the heap's file cannot be read or get more room, and the program ends: is the file system \
                       of --heap full, or does its device fail? (`df` tells; --heap on another has more)\n";

/// Says so where it happens, from now on; the program may take the signal over.
pub(crate) fn tell() {
    // SAFETY: the action is whole, its handler is one, and it is there as long as the process: nothing unloads this library.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

extern "C" fn handle(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // The instruction runs again, and ends the program. Not by SA_RESETHAND: a handler of the program's that hands over to this one does not
    // know of it.
    // SAFETY: takes a number, and the default is no function.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    // SAFETY: the kernel gives a handler with SA_SIGINFO what it tells of the signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code <= 0 {
        // Somebody has sent it: nothing will happen again by itself.
        // SAFETY: takes a number.
        unsafe { libc::raise(signal) };
    } else if vmio_heap::contains(address) {
        let _ = rustix::io::write(rustix::stdio::stderr(), MESSAGE.as_bytes());
    }
}
