//! `syscall`, the C library's function for any system call. Programs close descriptors by it (libuv, so Node.js, CMake, Neovim), and vmio
//! must know of that. We pass a call that has a function here to that function, and every other to the kernel.
//!
//! The C library's function takes any number of arguments. Here the arguments are the registers, and the one place on the stack, in which
//! callers pass them.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{iovec, mmsghdr, mode_t, msghdr, off_t, pid_t, size_t, timespec, timeval, utimbuf};

use super::descriptor_makers::made_by_number;
use super::obsolete_signal_calls;
use super::opening;
use super::process::ending;
use crate::entry;
use crate::fork;
use crate::real;

/// Calls the table's functions by the names that the program would have called, which are this library's.
macro_rules! served {
    ($number:expr, $arguments:expr; $($call:ident => $function:ident($($of:ty),*);)*) => {
        match $number {
            $(libc::$call => {
                let mut arguments = $arguments.into_iter();
                // SAFETY: by the caller: they are this call's arguments.
                Some(unsafe { libc::$function($(arguments.next().unwrap_or_default() as $of),*) } as c_long)
            })*
            _ => None,
        }
    };
}

/// The calls of all architectures.
fn served(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    served! { number, arguments;
        SYS_close => close(c_int);
        SYS_dup => dup(c_int);
        SYS_dup3 => dup3(c_int, c_int, c_int);
        SYS_fcntl => fcntl(c_int, c_int, usize);
        SYS_ioctl => ioctl(c_int, _, usize);
        SYS_read => read(c_int, *mut c_void, size_t);
        SYS_write => write(c_int, *const c_void, size_t);
        SYS_pread64 => pread(c_int, *mut c_void, size_t, off_t);
        SYS_pwrite64 => pwrite(c_int, *const c_void, size_t, off_t);
        SYS_readv => readv(c_int, *const iovec, c_int);
        SYS_writev => writev(c_int, *const iovec, c_int);
        SYS_preadv => preadv(c_int, *const iovec, c_int, off_t);
        SYS_pwritev => pwritev(c_int, *const iovec, c_int, off_t);
        SYS_lseek => lseek(c_int, off_t, c_int);
        SYS_openat => openat(c_int, *const c_char, c_int, mode_t);
        SYS_mmap => mmap(*mut c_void, size_t, c_int, c_int, c_int, off_t);
        SYS_munmap => munmap(*mut c_void, size_t);
        SYS_mremap => mremap(*mut c_void, size_t, size_t, c_int, *mut c_void);
        SYS_msync => msync(*mut c_void, size_t, c_int);
        SYS_madvise => madvise(*mut c_void, size_t, c_int);
        SYS_mprotect => mprotect(*mut c_void, size_t, c_int);
        SYS_mlock => mlock(*const c_void, size_t);
        SYS_munlock => munlock(*const c_void, size_t);
        SYS_fsync => fsync(c_int);
        SYS_fdatasync => fdatasync(c_int);
        SYS_syncfs => syncfs(c_int);
        SYS_truncate => truncate(*const c_char, off_t);
        SYS_ftruncate => ftruncate(c_int, off_t);
        SYS_fallocate => fallocate(c_int, c_int, off_t, off_t);
        SYS_copy_file_range => copy_file_range(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint);
        SYS_splice => splice(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint);
        SYS_pipe2 => pipe2(*mut c_int, c_int);
        SYS_socketpair => socketpair(c_int, c_int, c_int, *mut c_int);
        SYS_recvmsg => recvmsg(c_int, *mut msghdr, c_int);
        SYS_recvmmsg => recvmmsg(c_int, *mut mmsghdr, c_uint, _, *mut timespec);
        SYS_sendfile => sendfile(c_int, c_int, *mut off_t, size_t);
        SYS_mkdirat => mkdirat(c_int, *const c_char, mode_t);
        SYS_unlinkat => unlinkat(c_int, *const c_char, c_int);
        SYS_renameat => renameat(c_int, *const c_char, c_int, *const c_char);
        SYS_renameat2 => renameat2(c_int, *const c_char, c_int, *const c_char, c_uint);
        SYS_linkat => linkat(c_int, *const c_char, c_int, *const c_char, c_int);
        SYS_symlinkat => symlinkat(*const c_char, c_int, *const c_char);
        SYS_mknodat => mknodat(c_int, *const c_char, mode_t, _);
        SYS_fchmod => fchmod(c_int, mode_t);
        SYS_fchown => fchown(c_int, c_uint, c_uint);
        SYS_fchownat => fchownat(c_int, *const c_char, c_uint, c_uint, c_int);
        SYS_setxattr => setxattr(*const c_char, *const c_char, *const c_void, size_t, c_int);
        SYS_lsetxattr => lsetxattr(*const c_char, *const c_char, *const c_void, size_t, c_int);
        SYS_fsetxattr => fsetxattr(c_int, *const c_char, *const c_void, size_t, c_int);
        SYS_removexattr => removexattr(*const c_char, *const c_char);
        SYS_lremovexattr => lremovexattr(*const c_char, *const c_char);
        SYS_fremovexattr => fremovexattr(c_int, *const c_char);
        SYS_execve => execve(*const c_char, *const *const c_char, *const *const c_char);
        SYS_execveat => execveat(c_int, *const c_char, *const *mut c_char, *const *mut c_char, c_int);
    }
}

/// The calls of older architectures only.
#[cfg(target_arch = "x86_64")]
fn served_of_old(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    served! { number, arguments;
        SYS_dup2 => dup2(c_int, c_int);
        SYS_pipe => pipe(*mut c_int);
        SYS_open => open(*const c_char, c_int, mode_t);
        SYS_creat => creat(*const c_char, mode_t);
        SYS_mkdir => mkdir(*const c_char, mode_t);
        SYS_rmdir => rmdir(*const c_char);
        SYS_unlink => unlink(*const c_char);
        SYS_rename => rename(*const c_char, *const c_char);
        SYS_link => link(*const c_char, *const c_char);
        SYS_symlink => symlink(*const c_char, *const c_char);
        SYS_mknod => mknod(*const c_char, mode_t, _);
        SYS_chmod => chmod(*const c_char, mode_t);
        SYS_chown => chown(*const c_char, c_uint, c_uint);
        SYS_lchown => lchown(*const c_char, c_uint, c_uint);
        SYS_utime => utime(*const c_char, *const utimbuf);
        SYS_utimes => utimes(*const c_char, *const timeval);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn served_of_old(_number: c_long, _arguments: [c_long; 6]) -> Option<c_long> {
    None
}

/// Calls whose arguments differ between the kernel and the C library.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn served_otherwise(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: by the caller, here and below.
    let kernel = || unsafe { real::syscall(number, first, second, third, fourth, fifth, sixth) };
    let outcome = match number {
        libc::SYS_sync => {
            // SAFETY: the call does not access memory.
            unsafe { libc::sync() };
            0
        }
        libc::SYS_close_range => {
            // SAFETY: the call does not access memory.
            c_long::from(unsafe { super::descriptors::close_range(first as c_uint, second as c_uint, third as c_int) })
        }
        // SAFETY: by the caller. The flags come last, after an offset in two arguments.
        libc::SYS_preadv2 => unsafe {
            libc::preadv2(first as c_int, second as *const iovec, third as c_int, fourth, sixth as c_int) as c_long
        },
        // SAFETY: by the caller, as above.
        libc::SYS_pwritev2 => unsafe {
            libc::pwritev2(first as c_int, second as *const iovec, third as c_int, fourth, sixth as c_int) as c_long
        },
        // SAFETY: by the caller. The kernel's call has no flags.
        libc::SYS_fchmodat => unsafe {
            c_long::from(libc::fchmodat(first as c_int, second as *const c_char, third as mode_t, 0))
        },
        // SAFETY: by the caller. Without a path the call changes the descriptor's file.
        libc::SYS_utimensat => unsafe {
            c_long::from(match second {
                0 => libc::futimens(first as c_int, third as *const timespec),
                _ => {
                    libc::utimensat(first as c_int, second as *const c_char, third as *const timespec, fourth as c_int)
                }
            })
        },
        // SAFETY: by the caller.
        libc::SYS_openat2 => unsafe { opening::openat2(first as c_int, second as *const c_char, third, fourth) },
        libc::SYS_rt_sigaction => {
            // SAFETY: by the caller.
            unsafe { obsolete_signal_calls::rt_sigaction(first as c_int, second, third, fourth) }?
        }
        libc::SYS_rt_sigprocmask => {
            // SAFETY: by the caller.
            let set = unsafe { obsolete_signal_calls::rt_sigprocmask_set(first as c_int, second, fourth) }?;
            // SAFETY: by the caller; the set is in this frame.
            unsafe { real::syscall(number, first, (&raw const set) as c_long, third, fourth, fifth, sixth) }
        }
        libc::SYS_exit_group => {
            ending();
            kernel()
        }
        libc::SYS_clone if first & c_long::from(libc::CLONE_VM) == 0 => fork::around(kernel),
        // SAFETY: by the caller: a structure that is not null begins with the flags.
        libc::SYS_clone3 if first != 0 && unsafe { *(first as *const u64) } & libc::CLONE_VM as u64 == 0 => {
            fork::around(kernel)
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => fork::around(kernel),
        _ => return None,
    };
    Some(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    let arguments = [first, second, third, fourth, fifth, sixth];
    let outcome = if entry::is_inside() {
        None
    } else {
        served(number, arguments)
            .or_else(|| served_of_old(number, arguments))
            // SAFETY: by the caller.
            .or_else(|| unsafe { served_otherwise(number, arguments) })
    };
    // SAFETY: by the caller.
    outcome.unwrap_or_else(|| unsafe {
        made_by_number(number, real::syscall(number, first, second, third, fourth, fifth, sixth))
    })
}

/// The start routine of a child by `clone` with a copy of its parent's memory.
struct Start {
    routine: real::Routine,
    argument: *mut c_void,
}

extern "C" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: it lies in the frame of `clone`, of which the child has a copy.
    let start = unsafe { &*start.cast::<Start>() };
    fork::in_child();
    (start.routine)(start.argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    routine: real::Routine,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    local: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    // A thread, or a child that shares the memory.
    if flags & libc::CLONE_VM != 0 || entry::is_inside() {
        // SAFETY: by the caller.
        return unsafe { real::clone(routine, stack, flags, argument, parent, local, child) };
    }
    let mut start = Start { routine, argument };
    let start = (&raw mut start).cast();
    // SAFETY: by the caller; only the start routine is ours.
    fork::around(|| c_long::from(unsafe { real::clone(begin, stack, flags, start, parent, local, child) })) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> pid_t {
    // SAFETY: by the caller.
    let outcome = unsafe { real::fork() };
    if outcome == 0 && !entry::is_inside() {
        fork::begin_child();
    }
    outcome
}

/// fork without the handlers of `pthread_atfork`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: by the caller.
    fork::around(|| c_long::from(unsafe { real::_Fork() })) as pid_t
}
