//! What is done to files by their descriptors, other than reading and writing.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use libc::{flock, off_t, size_t, ssize_t};

use super::{of_file, of_mapped, told_number, told_status};
use crate::entry;
use crate::errno::Errno;
use crate::locks;
use crate::memory;
use crate::own_descriptors;
use crate::real;
use crate::refused;
use crate::transfer;

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if own_descriptors::contains(fd) {
        if !entry::is_inside() {
            // A program that closes whatever is open, without knowing what it is.
            return told_status(Some(Err(Errno::BADF))).unwrap_or(-1);
        }
        // From here on the number may become another's.
        own_descriptors::remove(fd);
    } else if refused::are_there() {
        let _ = of_file(fd, memory::before_close);
    } else {
        let _ = of_mapped(fd, memory::before_close);
    }
    // SAFETY: by the caller.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: by the caller.
    told_status(of_mapped(fd, transfer::sync)).unwrap_or_else(|| unsafe { real::fsync(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: by the caller.
    told_status(of_mapped(fd, transfer::sync)).unwrap_or_else(|| unsafe { real::fdatasync(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, len: off_t) -> c_int {
    let answer = of_mapped(fd, |fd| transfer::truncate(fd, len));
    // SAFETY: by the caller.
    told_status(answer).unwrap_or_else(|| unsafe { real::ftruncate(fd, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { ftruncate(fd, len) }
}

/// Has the kernel do something that changes or reads bytes of a mapped file.
fn past_the_mapping<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    let give_up = || of_mapped(fd, |fd| transfer::give_up(fd, 0..u64::MAX));
    // Should that fail, the call meets the same device.
    let _ = give_up();
    let outcome = call();
    let _ = give_up();
    outcome
}

/// The same of two files, either of which may be mapped.
fn past_both<T>(from: c_int, to: c_int, call: impl FnOnce() -> T) -> T {
    past_the_mapping(from, || past_the_mapping(to, call))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: by the caller.
    let call = || unsafe { real::fallocate(fd, mode, offset, len) };
    if transfer::keeps_bytes(mode) {
        // What somebody has cut off before must not come back.
        let _ = of_mapped(fd, transfer::adopt_length);
        let outcome = call();
        let _ = of_mapped(fd, transfer::adopt_length);
        return outcome;
    }
    past_the_mapping(fd, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { fallocate(fd, mode, offset, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
    let _ = of_mapped(fd, transfer::adopt_length);
    // SAFETY: by the caller.
    let outcome = unsafe { real::posix_fallocate(fd, offset, len) };
    let adopted = told_number(of_mapped(fd, transfer::adopt_length));
    if outcome == 0 { adopted.unwrap_or(0) } else { outcome }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { posix_fallocate(fd, offset, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: u32,
) -> ssize_t {
    // SAFETY: by the caller.
    past_both(from, to, || unsafe { real::copy_file_range(from, from_at, to, to_at, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: u32,
) -> ssize_t {
    // SAFETY: by the caller.
    past_both(from, to, || unsafe { real::splice(from, from_at, to, to_at, len, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: by the caller.
    past_both(from, to, || unsafe { real::sendfile(to, from, from_at, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { sendfile(to, from, from_at, len) }
}

// Its third argument is an integer, a pointer or nothing, by the command.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // Also of a file that is not mapped, as it may be soon.
    let clipped = match locks::is_about(command) && argument != 0 && fd >= 0 && !entry::is_inside() {
        // SAFETY: with these commands the argument is a pointer to a lock, by the caller, who has the file open.
        true => unsafe {
            let absolute = locks::absolute(&*(argument as *const flock), BorrowedFd::borrow_raw(fd));
            absolute.and_then(|lock| locks::clipped(&lock))
        },
        false => None,
    };
    let Some(mut lock) = clipped else {
        // SAFETY: by the caller.
        return unsafe { real::fcntl(fd, command, argument) };
    };
    // SAFETY: by the caller, but for the lock, which is ours.
    let status = unsafe { real::fcntl(fd, command, std::ptr::from_mut(&mut lock) as usize) };
    if status == 0 && matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let asked = argument as *mut flock;
        // SAFETY: the caller's, which is filled with what was found; if nothing was, only the kind is.
        unsafe {
            match i32::from(lock.l_type) {
                libc::F_UNLCK => (*asked).l_type = lock.l_type,
                _ => *asked = locks::unclipped(&lock),
            }
        }
    }
    status
}

// The C library's own takes its locks by a system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
    let lock =
        |kind: c_int| flock { l_type: kind as i16, l_whence: libc::SEEK_CUR as i16, l_start: 0, l_len: len, l_pid: 0 };
    let (command, mut lock) = match command {
        libc::F_LOCK => (libc::F_SETLKW, lock(libc::F_WRLCK)),
        libc::F_TLOCK => (libc::F_SETLK, lock(libc::F_WRLCK)),
        libc::F_ULOCK => (libc::F_SETLK, lock(libc::F_UNLCK)),
        libc::F_TEST => (libc::F_GETLK, lock(libc::F_WRLCK)),
        _ => return told_status(Some(Err(Errno::INVAL))).unwrap_or(-1),
    };
    // SAFETY: the lock is ours, the descriptor the caller's.
    let status = unsafe { fcntl(fd, command, std::ptr::from_mut(&mut lock) as usize) };
    let is_anothers = command == libc::F_GETLK && i32::from(lock.l_type) != libc::F_UNLCK;
    if status == 0 && is_anothers {
        return told_status(Some(Err(Errno::ACCESS))).unwrap_or(-1);
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lockf64(fd: c_int, command: c_int, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { lockf(fd, command, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: by the caller.
    unsafe { fcntl(fd, command, argument) }
}
