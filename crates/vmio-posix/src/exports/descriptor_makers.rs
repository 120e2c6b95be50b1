//! Calls that make descriptors of other kinds. Their numbers may be those of files that were closed without our noticing: here we notice.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::slice;

use libc::{DIR, FILE, mmsghdr, mode_t, msghdr, pid_t, sigset_t, sockaddr, socklen_t, timespec};

use super::is_of_mode;
use super::streams::noticed;
use crate::leased;
use crate::real;

/// Records that a number is a new descriptor.
fn made(fd: c_int) -> c_int {
    if is_of_mode(fd) {
        leased::opened_elsewhere(fd);
    }
    fd
}

/// The same for two numbers that a call has stored.
///
/// # Safety
/// The pointer has space for two numbers, which are stored if the status is 0.
unsafe fn made_both(status: c_int, ends: *const c_int) -> c_int {
    if status == 0 {
        // SAFETY: by the caller.
        unsafe { slice::from_raw_parts(ends, 2) }.iter().for_each(|fd| _ = made(*fd));
    }
    status
}

/// The same for descriptors that came with a message.
///
/// # Safety
/// The message was filled by the kernel.
pub(super) unsafe fn made_by(message: &msghdr) {
    if !is_of_mode(0) || message.msg_controllen == 0 {
        return;
    }
    // SAFETY: by the caller, here and below.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the list ends with null.
    while let Some(header) = unsafe { part.as_ref() } {
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: they lie behind the header, whose length counts both. They need not be aligned.
            unsafe {
                let (first, end) = (libc::CMSG_DATA(part), part.cast::<u8>().add(header.cmsg_len));
                let count = end.offset_from(first) as usize / size_of::<c_int>();
                (0..count).for_each(|at| _ = made(first.cast::<c_int>().add(at).read_unaligned()));
            }
        }
        // SAFETY: by the caller.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
}

macro_rules! descriptor_makers {
    ($(fn $name:ident($($argument:ident: $of:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $of),*) -> c_int {
                // SAFETY: by the caller.
                made(unsafe { real::$name($($argument),*) })
            }
        )*
    };
}

descriptor_makers! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int);
    fn accept(socket: c_int, address: *mut sockaddr, len: *mut socklen_t);
    fn accept4(socket: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int);
    fn eventfd(count: c_uint, flags: c_int);
    fn epoll_create(size: c_int);
    fn epoll_create1(flags: c_int);
    fn timerfd_create(clock: c_int, flags: c_int);
    fn memfd_create(name: *const c_char, flags: c_uint);
    fn inotify_init();
    fn inotify_init1(flags: c_int);
    fn fanotify_init(flags: c_uint, event_flags: c_uint);
    fn pidfd_open(process: pid_t, flags: c_uint);
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint);
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int);
    fn posix_openpt(flags: c_int);
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t);
}

// With an open descriptor it changes that signalfd, and makes no descriptor.
#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, set: *const sigset_t, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    let outcome = unsafe { real::signalfd(fd, set, flags) };
    if fd == -1 { made(outcome) } else { outcome }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { made_both(real::pipe(ends), ends) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { made_both(real::pipe2(ends, flags), ends) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int {
    // SAFETY: by the caller.
    unsafe { made_both(real::socketpair(domain, kind, protocol, ends), ends) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: by the caller.
    let received = unsafe { real::recvmmsg(socket, messages, count, flags, timeout) };
    for at in 0..usize::try_from(received).unwrap_or(0) {
        // SAFETY: the kernel has filled this number of them.
        unsafe { made_by(&(*messages.add(at)).msg_hdr) };
    }
    received
}

#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: by the caller.
    let folder = unsafe { real::opendir(path) };
    if !folder.is_null() {
        // SAFETY: it was just opened.
        made(unsafe { libc::dirfd(folder) });
    }
    folder
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tmpfile() -> *mut FILE {
    // SAFETY: by the caller.
    noticed(unsafe { real::tmpfile() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tmpfile64() -> *mut FILE {
    // SAFETY: by the caller.
    unsafe { tmpfile() }
}

/// A call of the kernel's that the program makes by its number.
pub(super) fn made_by_number(number: c_long, outcome: c_long) -> c_long {
    if matches!(
        number,
        libc::SYS_socket
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_eventfd2
            | libc::SYS_epoll_create1
            | libc::SYS_timerfd_create
            | libc::SYS_memfd_create
            | libc::SYS_memfd_secret
            | libc::SYS_inotify_init1
            | libc::SYS_fanotify_init
            | libc::SYS_pidfd_open
            | libc::SYS_pidfd_getfd
            | libc::SYS_open_by_handle_at
            | libc::SYS_io_uring_setup
            | libc::SYS_userfaultfd
            | libc::SYS_perf_event_open
            | libc::SYS_bpf
            | libc::SYS_open_tree
            | libc::SYS_fsopen
            | libc::SYS_fsmount
            | libc::SYS_fspick
            | libc::SYS_mq_open
            | libc::SYS_landlock_create_ruleset
    ) || is_old(number)
    {
        made(outcome as c_int);
    }
    outcome
}

#[cfg(target_arch = "x86_64")]
fn is_old(number: c_long) -> bool {
    matches!(number, libc::SYS_eventfd | libc::SYS_epoll_create | libc::SYS_inotify_init)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_old(_number: c_long) -> bool {
    false
}
