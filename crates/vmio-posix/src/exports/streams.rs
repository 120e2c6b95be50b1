//! Streams: the C library reads, writes and closes what is behind them past its own names.

use std::ffi::{c_char, c_int};

use libc::FILE;

use super::is_of_mode;
use crate::real;
use crate::split::{self, Until};

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if is_of_mode(fd) {
        // Other descriptors of it share the position that the stream moves.
        split::leave(fd, Until::TheEnd);
        split::closed(fd);
    }
    // SAFETY: by the caller.
    unsafe { real::fdopen(fd, mode) }
}
