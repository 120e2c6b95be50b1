//! Calls on descriptors other than reads and writes.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use libc::{flock, off_t, size_t, ssize_t};

use super::{by_mode, durably, is_of_mode, of_file, of_mapped, returned_error, returned_status};
use crate::entry;
use crate::errno::Errno;
use crate::files_kept_open;
use crate::leased::{self, Suspension};
use crate::lock_calls::LOCK_CALLS;
use crate::locks;
use crate::memory;
use crate::own_descriptors;
use crate::process::Process;
use crate::program_maps;
use crate::real;
use crate::synchronous::Target;
use crate::transfer;

/// Commands of fcntl for which the libc crate has no names.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if own_descriptors::contains(fd) {
        if !entry::is_inside() {
            // The program closes whatever is open, vmio's descriptors among them.
            return returned_status(Some(Err(Errno::BADF))).unwrap_or(-1);
        }
        // From here on the number may become another file's.
        own_descriptors::remove(fd);
    } else {
        if is_of_mode(fd) {
            leased::closed(fd);
        }
        if files_kept_open::are_there() || Process::current().is_some_and(|process| !process.table.is_empty()) {
            let _ = of_file(fd, memory::before_close);
        }
    }
    // SAFETY: by the caller.
    unsafe { real::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __close(fd: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { close(fd) }
}

/// The return value of fsync or fdatasync, if the mode makes the kernel's call unnecessary.
fn synced_by_mode(fd: c_int) -> Option<c_int> {
    if !is_of_mode(fd) {
        return None;
    }
    // SAFETY: the program has it open during its call.
    returned_status(leased::sync(unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// Prepares for a call, other than a write, that changes bytes of a file. Call it before.
pub(super) fn before_changes(fd: c_int) -> Option<Suspension> {
    is_of_mode(fd).then(|| leased::before_kernel_writes(fd)).flatten()
}

/// Prepares for a call, other than a read, by which the kernel reads a file. Call it before.
pub(super) fn before_reads(fd: c_int) -> Option<Suspension> {
    is_of_mode(fd).then(|| leased::before_kernel_reads(fd)).flatten()
}

/// Gives the kernel a descriptor's position, for a call that starts from it if it gets no offset.
pub(super) fn suspended_if_current(fd: c_int, at: *const off_t) -> Option<Suspension> {
    (at.is_null() && is_of_mode(fd)).then(|| leased::suspend(fd))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: by the caller.
    by_mode(fd, |fd| leased::lseek(fd, offset, whence), || unsafe { real::lseek(fd, offset, whence) as ssize_t })
        as off_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: by the caller.
    unsafe { lseek(fd, offset, whence) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: by the caller.
    unsafe { lseek(fd, offset, whence) }
}

/// Flushes a file: the mode does, or the cache, or Linux.
fn synced(fd: c_int, linux: unsafe fn(c_int) -> c_int) -> c_int {
    let stored = match program_maps::matter_to_syncs() {
        true => of_file(fd, |fd| program_maps::before_sync(fd).err().map(Err)),
        false => None,
    };
    returned_status(stored)
        .or_else(|| synced_by_mode(fd))
        .or_else(|| returned_status(of_mapped(fd, transfer::sync)))
        // SAFETY: the call does not access memory.
        .unwrap_or_else(|| unsafe { linux(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    synced(fd, real::fsync)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    synced(fd, real::fdatasync)
}

/// Writes back all cached files, for a call by which the kernel flushes everything.
fn write_back_all() -> Result<(), Errno> {
    let outcome = if leased::is_on() && !entry::is_inside() { leased::write_back_all() } else { Ok(()) };
    if let Some(process) = Process::current().filter(|process| !process.uses_page_cache() && process.is_caller()) {
        let _ = entry::enter::<()>(|| {
            process.sync_all();
            None
        });
    }
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sync() {
    // `sync` cannot return an error; the next fsync of the file does.
    let _ = write_back_all();
    // SAFETY: the call does not access memory.
    unsafe { real::sync() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syncfs(fd: c_int) -> c_int {
    let stored = match program_maps::are_there() {
        true => of_file(fd, |_| program_maps::before_sync_of_all().err().map(Err)),
        false => None,
    };
    let written = stored.unwrap_or(Ok(())).and(write_back_all());
    // SAFETY: by the caller.
    let status = unsafe { real::syncfs(fd) };
    if status == 0 { returned_status(written.err().map(Err)).unwrap_or(0) } else { status }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, len: off_t) -> c_int {
    let _suspension = is_of_mode(fd).then(|| leased::before_kernel_truncates(fd)).flatten();
    if is_of_mode(fd) {
        leased::replay_before_changes();
    }
    let answer = of_mapped(fd, |fd| transfer::truncate(fd, len));
    // SAFETY: by the caller.
    durably(
        || [Target::bytes_of(fd)],
        || returned_status(answer).unwrap_or_else(|| unsafe { real::ftruncate(fd, len) }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { ftruncate(fd, len) }
}

/// Lets the kernel change or read bytes of a mapped file; -1 if that fails.
pub(super) fn past_the_mapping<T: From<i8>>(fd: c_int, call: impl FnOnce() -> T) -> T {
    let give_up = || of_mapped(fd, |fd| transfer::give_up(fd, 0..u64::MAX));
    // Stores that cannot be written, as on a full disk, would overwrite the call's result later, or be missing from its input.
    if returned_status(give_up()).is_some() {
        return T::from(-1);
    }
    let outcome = call();
    let _ = give_up();
    outcome
}

/// The same for two files, either of which may be mapped.
pub(super) fn past_both<T: From<i8>>(from: c_int, to: c_int, call: impl FnOnce() -> T) -> T {
    // Stores that cannot be written would be missing.
    if returned_status(of_mapped(from, |from| transfer::write_out(from, 0..u64::MAX))).is_some() {
        return T::from(-1);
    }
    past_the_mapping(to, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: by the caller.
    let call = || durably(|| [Target::bytes_of(fd)], || unsafe { real::fallocate(fd, mode, offset, len) });
    let moves = mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0;
    let _suspension = if moves && is_of_mode(fd) {
        Some(leased::suspend(fd))
    } else if transfer::keeps_bytes(mode) {
        // The file may become longer.
        before_reads(fd)
    } else {
        before_changes(fd)
    };
    if transfer::keeps_bytes(mode) {
        // Bytes that another process has cut off must not come back.
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
    let _suspension = before_reads(fd);
    let _ = of_mapped(fd, transfer::adopt_length);
    // SAFETY: by the caller.
    let mut outcome = unsafe { real::posix_fallocate(fd, offset, len) };
    if outcome == 0 && durably(|| [Target::bytes_of(fd)], || 0) != 0 {
        outcome = libc::EIO;
    }
    let adopted = returned_error(of_mapped(fd, transfer::adopt_length));
    if outcome == 0 { adopted.unwrap_or(0) } else { outcome }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: by the caller.
    unsafe { posix_fallocate(fd, offset, len) }
}

/// The kernel has copied a number of bytes to a file, or has failed.
fn copied(to: c_int, count: ssize_t) -> ssize_t {
    if count > 0 && durably(|| [Target::bytes_of(to)], || 0) != 0 { -1 } else { count }
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
    let _positions = [suspended_if_current(from, from_at), suspended_if_current(to, to_at)];
    let _bytes = [before_reads(from), before_changes(to)];
    // SAFETY: by the caller.
    copied(to, past_both(from, to, || unsafe { real::copy_file_range(from, from_at, to, to_at, len, flags) }))
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
    let _positions = [suspended_if_current(from, from_at), suspended_if_current(to, to_at)];
    let _bytes = [before_reads(from), before_changes(to)];
    // SAFETY: by the caller.
    copied(to, past_both(from, to, || unsafe { real::splice(from, from_at, to, to_at, len, flags) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
    let _positions = [suspended_if_current(from, from_at), suspended_if_current(to, std::ptr::null())];
    let _bytes = [before_reads(from), before_changes(to)];
    // SAFETY: by the caller.
    copied(to, past_both(from, to, || unsafe { real::sendfile(to, from, from_at, len) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: by the caller.
    unsafe { sendfile(to, from, from_at, len) }
}

// The third argument is an integer, a pointer or nothing, depending on the command.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if is_of_mode(fd) {
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                // SAFETY: by the caller.
                let duplicate = unsafe { real::fcntl(fd, command, argument) };
                if duplicate >= 0 {
                    leased::duplicated(fd, duplicate);
                }
                return duplicate;
            }
            libc::F_GETFL => {
                // SAFETY: by the caller.
                return leased::flags(fd, || unsafe { real::fcntl(fd, command, argument) });
            }
            // These concern state that is cached while the file is leased, or the lease itself.
            libc::F_SETFL | libc::F_SETLEASE | libc::F_GETLEASE => leased::stop_serving(fd),
            // These concern the signal that reaches the lease manager.
            libc::F_SETOWN | libc::F_GETOWN | F_SETOWN_EX | F_GETOWN_EX | F_SETSIG | F_GETSIG => {
                leased::stop_serving(fd)
            }
            _ => {}
        }
    }
    // SAFETY: with these commands the argument is a pointer to a lock, by the caller.
    let is_from_position = || unsafe { locks::is_from_position(&*(argument as *const flock)) };
    let is_held = is_of_mode(fd) && locks::is_about(command) && argument != 0 && is_from_position();
    let _position = is_held.then(|| leased::suspend(fd));
    // Also for a file that is not mapped: the program may map it soon.
    let clipped = match locks::is_about(command) && argument != 0 && fd >= 0 && !entry::is_inside() {
        // SAFETY: with these commands the argument is a pointer to a lock, by the caller, who has the file open.
        true => unsafe {
            let absolute = locks::absolute(&*(argument as *const flock), BorrowedFd::borrow_raw(fd));
            absolute.and_then(|lock| locks::clipped(&lock))
        },
        false => None,
    };
    // vmio's closes would end a lock that the call takes in this moment.
    let takes_record_lock = matches!(command, libc::F_SETLK | libc::F_SETLKW) && !entry::is_inside();
    let _locking = takes_record_lock.then(|| LOCK_CALLS.begin());
    let Some(mut lock) = clipped else {
        // SAFETY: by the caller.
        return unsafe { real::fcntl(fd, command, argument) };
    };
    // SAFETY: by the caller, but for the lock, which is ours.
    let status = unsafe { real::fcntl(fd, command, std::ptr::from_mut(&mut lock) as usize) };
    if status == 0 && matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let asked = argument as *mut flock;
        // SAFETY: the lock is the caller's. The kernel's answer goes there; if it found no lock, only the kind does.
        unsafe {
            match i32::from(lock.l_type) {
                libc::F_UNLCK => (*asked).l_type = lock.l_type,
                _ => *asked = locks::unclipped(&lock),
            }
        }
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: by the caller.
    unsafe { fcntl(fd, command, argument) }
}

// The C library's function takes the lock by a system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
    let lock =
        |kind: c_int| flock { l_type: kind as i16, l_whence: libc::SEEK_CUR as i16, l_start: 0, l_len: len, l_pid: 0 };
    let (command, mut lock) = match command {
        libc::F_LOCK => (libc::F_SETLKW, lock(libc::F_WRLCK)),
        libc::F_TLOCK => (libc::F_SETLK, lock(libc::F_WRLCK)),
        libc::F_ULOCK => (libc::F_SETLK, lock(libc::F_UNLCK)),
        // As the C library does: a read lock does not count.
        libc::F_TEST => (libc::F_GETLK, lock(libc::F_RDLCK)),
        _ => return returned_status(Some(Err(Errno::INVAL))).unwrap_or(-1),
    };
    // SAFETY: the lock is ours, the descriptor the caller's.
    let status = unsafe { fcntl(fd, command, std::ptr::from_mut(&mut lock) as usize) };
    let is_anothers = command == libc::F_GETLK && i32::from(lock.l_type) != libc::F_UNLCK;
    if status == 0 && is_anothers {
        return returned_status(Some(Err(Errno::ACCESS))).unwrap_or(-1);
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
