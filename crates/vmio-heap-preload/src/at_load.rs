//! Starts the heap, before the program starts.

use std::fmt;

use crate::{c_library, no_room, settings};

/// The exit status if there can be no heap. The tools of coreutils use it for failures of their own.
const CANNOT_START: i32 = 125;

/// The status of a program that cannot run with vmio, as `vmio run` has it, too.
const NOT_STARTED: i32 = 126;

/// The loader calls the function before the program begins.
// SAFETY: the section holds pointers to functions that take what a C program's main does, and may ignore it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let options = match settings::of_this_process() {
        Ok(Some(options)) => options,
        Ok(None) => return,
        Err(wrong) => {
            say(format_args!("the program does not start: {wrong}"));
            // SAFETY: nothing has begun that would have to end.
            unsafe { libc::_exit(NOT_STARTED) }
        }
    };
    c_library::find_code();
    if let Err(error) = vmio_heap::start(&options) {
        say(format_args!("no heap: {error}"));
        // Without the heap, the kernel would kill a program larger than memory in the middle of its work.
        std::process::exit(CANNOT_START);
    }
    no_room::tell();
}

fn say(message: fmt::Arguments<'_>) {
    let line = format!("vmio run: {message}\n");
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}
