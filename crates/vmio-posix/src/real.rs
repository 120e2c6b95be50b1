//! The C library's own functions, which this library's replace.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, dev_t, epoll_event, fd_set, gid_t, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, pthread_attr_t, pthread_t, sigaction as sigaction_t, sighandler_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t, utimbuf,
};

/// The start routine of a process by `clone`.
pub(crate) type Routine = extern "C" fn(*mut c_void) -> c_int;

/// A function of the next library in the loader's list.
struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Next { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let address = next(self.name);
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The next function of that name after ours.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() { missing as *mut c_void } else { found }
}

/// Replaces a function that the C library does not have.
extern "C" fn missing() -> ssize_t {
    // SAFETY: the address of the thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $of:ty),*) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod next {
            use super::Next;
            $(pub(super) static $name: Next = Next::new(c_string(concat!(stringify!($name), "\0")));)*

            const fn c_string(name: &'static str) -> &'static std::ffi::CStr {
                match std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without an end"),
                }
            }
        }

        $(
            /// The C library's.
            ///
            /// # Safety
            /// The contract of the function of that name.
            #[allow(non_snake_case, reason = "the names are the C library's")]
            pub(crate) unsafe fn $name($($argument: $of),*) -> $result {
                let function: unsafe extern "C" fn($($of),*) -> $result =
                    // SAFETY: the C library's function of that name has this type.
                    unsafe { std::mem::transmute(next::$name.address()) };
                // SAFETY: by the caller.
                unsafe { function($($argument),*) }
            }
        )*

        /// Finds all functions at once: a signal handler must not look one up.
        pub(crate) extern "C" fn look_up() {
            $(next::$name.look_up();)*
        }
    };
}

functions! {
    // Both take any number of arguments, passed in the registers and in one place on the stack.
    fn syscall(
        number: c_long,
        first: c_long,
        second: c_long,
        third: c_long,
        fourth: c_long,
        fifth: c_long,
        sixth: c_long
    ) -> c_long;
    fn clone(
        routine: Routine,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent: *mut pid_t,
        local: *mut c_void,
        child: *mut pid_t
    ) -> c_int;
    fn _Fork() -> pid_t;
    fn fork() -> pid_t;
    fn mmap(address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fn munmap(address: *mut c_void, len: size_t) -> c_int;
    fn mremap(address: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void;
    fn msync(address: *mut c_void, len: size_t, flags: c_int) -> c_int;
    fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn posix_madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn mprotect(address: *mut c_void, len: size_t, protection: c_int) -> c_int;
    fn mlock(address: *const c_void, len: size_t) -> c_int;
    fn munlock(address: *const c_void, len: size_t) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    fn pread(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
    fn preadv(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn preadv2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    fn pwrite(fd: c_int, buffer: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
    fn pwritev(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn pipe(ends: *mut c_int) -> c_int;
    fn pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    fn accept(socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(socket: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn eventfd(count: c_uint, flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, set: *const sigset_t, flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn fanotify_init(flags: c_uint, event_flags: c_uint) -> c_int;
    fn pidfd_open(process: pid_t, flags: c_uint) -> c_int;
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn recv(socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        socket: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t;
    fn send(socket: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        socket: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t;
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(
        socket: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int;
    fn opendir(path: *const c_char) -> *mut DIR;
    fn tmpfile() -> *mut FILE;
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn posix_spawn(
        process: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char,
        environment: *const *mut c_char
    ) -> c_int;
    fn posix_spawnp(
        process: *mut pid_t,
        file: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char,
        environment: *const *mut c_char
    ) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn sigaction(signal: c_int, action: *const sigaction_t, before: *mut sigaction_t) -> c_int;
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sigignore(signal: c_int) -> c_int;
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    fn sighold(signal: c_int) -> c_int;
    fn sigprocmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int;
    fn sigsuspend(set: *const sigset_t) -> c_int;
    fn ppoll(files: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t) -> c_int;
    fn __ppoll_chk(
        files: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        set: *const sigset_t,
        room: size_t
    ) -> c_int;
    fn pselect(
        count: c_int,
        readable: *mut fd_set,
        writable: *mut fd_set,
        exceptional: *mut fd_set,
        timeout: *const timespec,
        set: *const sigset_t
    ) -> c_int;
    fn epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout_ms: c_int,
        set: *const sigset_t
    ) -> c_int;
    fn epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        set: *const sigset_t
    ) -> c_int;
    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn sync() -> ();
    fn syncfs(fd: c_int) -> c_int;
    fn ftruncate(fd: c_int, len: off_t) -> c_int;
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int;
    fn copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: u32) -> ssize_t;
    fn splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: u32) -> ssize_t;
    fn sendfile(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn execveat(
        folder: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
        flags: c_int
    ) -> c_int;
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int;
    fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn rmdir(path: *const c_char) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn remove(path: *const c_char) -> c_int;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn renameat(from_folder: c_int, from: *const c_char, to_folder: c_int, to: *const c_char) -> c_int;
    fn renameat2(from_folder: c_int, from: *const c_char, to_folder: c_int, to: *const c_char, flags: c_uint) -> c_int;
    fn link(from: *const c_char, to: *const c_char) -> c_int;
    fn linkat(from_folder: c_int, from: *const c_char, to_folder: c_int, to: *const c_char, flags: c_int) -> c_int;
    fn symlink(content: *const c_char, path: *const c_char) -> c_int;
    fn symlinkat(content: *const c_char, folder: c_int, path: *const c_char) -> c_int;
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
    fn mknodat(folder: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int;
    fn mkfifoat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn mkdtemp(template: *mut c_char) -> *mut c_char;
    fn truncate(path: *const c_char, len: off_t) -> c_int;
    fn chmod(path: *const c_char, mode: mode_t) -> c_int;
    fn fchmod(fd: c_int, mode: mode_t) -> c_int;
    fn fchmodat(folder: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int;
    fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int;
    fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int;
    fn fchownat(folder: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int;
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int;
    fn utimes(path: *const c_char, times: *const timeval) -> c_int;
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int;
    fn futimes(fd: c_int, times: *const timeval) -> c_int;
    fn futimesat(folder: c_int, path: *const c_char, times: *const timeval) -> c_int;
    fn futimens(fd: c_int, times: *const timespec) -> c_int;
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int;
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int;
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int;
    fn utimensat(folder: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int;
    fn fflush(stream: *mut FILE) -> c_int;
    fn fclose(stream: *mut FILE) -> c_int;
    fn fdopendir(fd: c_int) -> *mut DIR;
    fn closedir(folder: *mut DIR) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn _exit(status: c_int) -> !;
    fn quick_exit(status: c_int) -> !;
    fn longjmp(environment: *mut c_void, value: c_int) -> !;
    fn _longjmp(environment: *mut c_void, value: c_int) -> !;
    fn siglongjmp(environment: *mut c_void, value: c_int) -> !;
    fn __longjmp_chk(environment: *mut c_void, value: c_int) -> !;
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const pthread_attr_t,
        routine: extern "C" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void
    ) -> c_int;
}
