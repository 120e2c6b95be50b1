//! The message when a store to the heap finds no space: a program cannot know that its memory is a file.

use std::mem;
use std::ptr;

use libc::{c_int, c_void, siginfo_t};

const MESSAGE: &str = "vmio run: the heap's file cannot be read or get more room, and the program ends: is the file system \
                       of --heap full, or does its device fail? (`df` tells; --heap on another has more)\n";

/// Installs the handler that prints the message; the program may replace it.
pub(crate) fn tell() {
    // SAFETY: the action is complete, and its handler exists as long as the process: nothing unloads this library.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

extern "C" fn handle(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // The instruction runs again, and ends the program. Not by SA_RESETHAND, which does nothing if a handler of the program's calls this
    // one.
    // SAFETY: the call takes a number, and the default is no function.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code <= 0 {
        // Somebody has sent it, so the instruction will not raise it again.
        // SAFETY: the call takes a number.
        unsafe { libc::raise(signal) };
    } else if vmio_heap::contains(address) {
        let _ = rustix::io::write(rustix::stdio::stderr(), MESSAGE.as_bytes());
    }
}
