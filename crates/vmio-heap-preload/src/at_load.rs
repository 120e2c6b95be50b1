//! Starts the heap, before the program starts.

use crate::{c_library, no_room, settings};

/// The exit status if there can be no heap. The tools of coreutils use it for failures of their own.
const CANNOT_START: i32 = 125;

/// The loader calls the function before the program begins.
// SAFETY: the section holds pointers to functions that take what a C program's main does, and may ignore it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Some(options) = settings::of_this_process() else { return };
    c_library::find_code();
    if let Err(error) = vmio_heap::start(&options) {
        let message = format!("vmio run: no heap: {error}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        // Without the heap, the kernel would kill a program larger than memory in the middle of its work.
        std::process::exit(CANNOT_START);
    }
    no_room::tell();
}
