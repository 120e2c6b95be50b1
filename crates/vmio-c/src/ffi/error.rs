//! Versions, and the last failure of a thread.

use std::ffi::{CStr, c_char};

use crate::failure::last;
use crate::ffi::memory::bytes_at;
use crate::status::vmio_status;

/// The binary interface that this header describes. Programs built for another major version do not load; a minor
/// version adds functions, values, or fields at the end of structures. Until the first release (0.x) it may also give numbers
/// another meaning, which the changelog says.
pub const VMIO_ABI_MAJOR: u32 = 0;
/// See VMIO_ABI_MAJOR.
pub const VMIO_ABI_MINOR: u32 = 6;

/// The binary interface of the library that the program runs with: the major version times 65536 plus the minor one.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_abi_version() -> u32 {
    VMIO_ABI_MAJOR << 16 | VMIO_ABI_MINOR
}

/// The version of the library that the program runs with, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn vmio_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version has a NUL in it"),
    };
    VERSION.as_ptr()
}

/// A status in a few words; also of numbers that are none.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_strerror(status: i32) -> *const c_char {
    vmio_status::describe(status).as_ptr()
}

/// Copies the message of the last failed call of this thread, as a string of at most `bytes` bytes with its NUL. The
/// message names the path or value that was wrong. Returns the length of the whole message without the NUL, 0 if no
/// call has failed. Call it with NULL and 0 to learn how long the message is. A call that succeeds does not clear the
/// message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_last_error(buffer: *mut c_char, bytes: usize) -> usize {
    // SAFETY: the caller vouches for the buffer.
    let buffer = unsafe { bytes_at(buffer.cast(), bytes) };
    last(|failure| {
        let message = failure.map_or("", |failure| &failure.message);
        if let Some(room) = buffer.len().checked_sub(1) {
            // Cut between characters, not within one.
            let end = (0..=room.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
            let shown = &message[..end.unwrap_or(0)];
            for (target, byte) in buffer.iter_mut().zip(shown.bytes().chain([0])) {
                target.write(byte);
            }
        }
        message.len()
    })
}

/// The errno of the system call behind the last failed call of this thread, such as ENOENT; 0 if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_last_errno() -> i32 {
    last(|failure| failure.map_or(0, |failure| failure.errno))
}
