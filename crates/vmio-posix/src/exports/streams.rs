//! Streams: the C library reads, writes and closes their files without calling its own exported names.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{DIR, FILE};
use rustix::io::Errno;

use super::{durably, is_of_mode, returned};
use crate::leased;
use crate::real;
use crate::sharing;
use crate::synchronous::{self, Target};

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let is_alone = is_of_mode(fd) && leased::is_alone(fd);
    if is_of_mode(fd) {
        // Other descriptors of the description share the position that the stream moves.
        leased::taken_by_stream(fd);
    }
    // SAFETY: by the caller.
    let stream = unsafe { real::fdopen(fd, mode) };
    // Not if other descriptors share the description: they would stop moving with it. In sync mode the description is durable as it is.
    if !stream.is_null() && is_alone && synchronous::is_on() {
        let _ = synchronous::opened_stream(fd, false);
    }
    stream
}

/// The C library is about to close a stream's file.
///
/// # Safety
/// It is an open stream.
unsafe fn closing(stream: *mut FILE) {
    if !is_of_mode(0) {
        return;
    }
    // SAFETY: the address of the thread's errno is always valid, and the stream is open by the caller. A stream in memory has no
    // descriptor, which is no error of the call that closes it.
    unsafe {
        let before = *libc::__errno_location();
        leased::closed(libc::fileno(stream));
        *libc::__errno_location() = before;
    }
}

/// Checks the number of a stream that the C library may have opened: another file may have had it, which was closed without our noticing.
pub(super) fn noticed(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() && is_of_mode(0) {
        // SAFETY: it was just opened.
        leased::opened_elsewhere(unsafe { libc::fileno(stream) });
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    // SAFETY: by the caller.
    let folder = unsafe { real::fdopendir(fd) };
    if !folder.is_null() && is_of_mode(fd) {
        leased::taken_by_stream(fd);
    }
    folder
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(folder: *mut DIR) -> c_int {
    if !folder.is_null() && is_of_mode(0) {
        // SAFETY: by the caller it is open.
        leased::closed(unsafe { libc::dirfd(folder) });
    }
    // SAFETY: by the caller.
    unsafe { real::closedir(folder) }
}

/// Opens a stream; in the modes sync and strict its writes and the name of a new file become durable.
fn opened(path: *const c_char, open: impl Fn() -> *mut FILE) -> *mut FILE {
    let open = || noticed(open());
    if !synchronous::is_on() {
        return open();
    }
    // SAFETY: by the caller of the open the path is a C string or null.
    let is_new = !path.is_null() && unsafe { libc::access(path, libc::F_OK) } != 0;
    leased::replay_before_changes();
    let stream = open();
    if stream.is_null() {
        return stream;
    }
    // SAFETY: it was just opened.
    match synchronous::opened_stream(unsafe { libc::fileno(stream) }, is_new) {
        Ok(()) => stream,
        Err(error) => {
            // SAFETY: nobody else has the stream yet.
            unsafe { libc::fclose(stream) };
            returned(Some(Err(error)), |()| stream, ptr::null_mut()).unwrap_or(ptr::null_mut())
        }
    }
}

/// Whether the stream must not be opened, since another process has a lease of the file.
///
/// # Safety
/// Both are null or C strings.
unsafe fn is_refused(path: *const c_char, mode: *const c_char) -> bool {
    // SAFETY: by the caller.
    is_of_mode(0) && unsafe { sharing::refuses_stream(path, mode) }
}

/// The return value in that case.
fn refused() -> *mut FILE {
    returned::<(), _>(Some(Err(Errno::BUSY)), |()| ptr::null_mut(), ptr::null_mut()).unwrap_or(ptr::null_mut())
}

unsafe extern "C" {
    static stdout: *mut FILE;
    static stderr: *mut FILE;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
}

/// Makes writes to the streams durable whose descriptors the process has inherited.
fn make_inherited_durable() -> c_int {
    durably(|| [libc::STDOUT_FILENO, libc::STDERR_FILENO].map(Target::bytes_of), || 0)
}

/// At the end of the process: writes the buffers of streams, which the C library would write after vmio has finished.
pub(super) fn end() {
    if !synchronous::is_on() {
        return;
    }
    // SAFETY: the C library sets the variable at its start.
    for stream in unsafe { [stdout, stderr] } {
        // SAFETY: it is a stream of the C library. Its lock is only tried, since another thread may hold it for ever.
        unsafe {
            if !stream.is_null() && ftrylockfile(stream) == 0 {
                real::fflush(stream);
                funlockfile(stream);
            }
        }
    }
    make_inherited_durable();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fflush(stream: *mut FILE) -> c_int {
    // SAFETY: by the caller.
    let status = unsafe { real::fflush(stream) };
    // SAFETY: by the caller.
    let may_be_inherited = synchronous::is_on() && (stream.is_null() || unsafe { libc::fileno(stream) } <= 2);
    if status == 0 && may_be_inherited { make_inherited_durable() } else { status }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: by the caller.
    let fd = if synchronous::is_on() { unsafe { libc::fileno(stream) } } else { -1 };
    if (0..=2).contains(&fd) {
        // SAFETY: by the caller.
        let status = unsafe { fflush(stream) };
        // SAFETY: by the caller.
        return status | unsafe { real::fclose(stream) };
    }
    // SAFETY: by the caller.
    unsafe {
        closing(stream);
        real::fclose(stream)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: by the caller.
    if unsafe { is_refused(path, mode) } {
        return refused();
    }
    // SAFETY: by the caller.
    opened(path, || unsafe { real::fopen(path, mode) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: by the caller.
    unsafe { fopen(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: by the caller; the call closes the stream even if its open fails.
    unsafe { closing(stream) };
    // SAFETY: by the caller.
    if unsafe { is_refused(path, mode) } {
        // freopen closes the stream even if it fails: an empty path fails.
        // SAFETY: by the caller.
        unsafe { real::freopen(c"".as_ptr(), mode, stream) };
        return refused();
    }
    // SAFETY: by the caller.
    opened(path, || unsafe { real::freopen(path, mode, stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: by the caller.
    unsafe { freopen(path, mode, stream) }
}
