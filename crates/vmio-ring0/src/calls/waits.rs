//! System calls that may wait for an event: signals must be able to interrupt these.

use std::mem::MaybeUninit;

use crate::calls::memory::Call;
use crate::raw;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file or a block device, whose reads and writes no signal interrupts.
    File,
    /// A pipe, a socket, a terminal, a file in /proc: anything that may have to wait for somebody. Or no descriptor.
    Other,
}

/// The kind of an open descriptor.
pub(crate) fn kind_of(descriptor: u64) -> Kind {
    let Some(stat) = status_of(descriptor) else { return Kind::Other };
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFBLK => Kind::File,
        // Nearly all others are on a device.
        libc::S_IFREG if libc::major(stat.st_dev) != 0 || !is_the_kernels(descriptor) => Kind::File,
        _ => Kind::Other,
    }
}

/// The status of a file, if the descriptor is open.
fn status_of(descriptor: u64) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes the structure, if the descriptor is open.
    unsafe {
        let told = raw::call(libc::SYS_fstat as u64, [descriptor, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
        (told == 0).then(|| stat.assume_init())
    }
}

/// Whether a file is in a file system by which the kernel tells of itself: a read there may wait for an event.
fn is_the_kernels(descriptor: u64) -> bool {
    const DEBUGFS: i64 = 0x6462_6720;
    const TRACEFS: i64 = 0x7472_6163;
    const SYSFS: i64 = 0x6265_6572;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel writes the structure, if the descriptor is open.
    let kind = unsafe {
        let told = raw::call(libc::SYS_fstatfs as u64, [descriptor, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
        if told == 0 { stat.assume_init().f_type } else { 0 }
    };
    matches!(kind, libc::PROC_SUPER_MAGIC | SYSFS | DEBUGFS | TRACEFS)
}

/// Whether a call gets bytes of a stream, as many as there are.
pub(crate) fn is_for_a_stream(call: &Call) -> bool {
    let [descriptor, _, _, of_recvfrom, ..] = call.arguments;
    let flags = match call.number as i64 {
        libc::SYS_read | libc::SYS_readv => 0,
        libc::SYS_recvfrom => of_recvfrom,
        libc::SYS_recvmsg => call.arguments[2],
        _ => return false,
    };
    flags & libc::MSG_WAITALL as u64 == 0
        && match status_of(descriptor).map(|stat| stat.st_mode & libc::S_IFMT) {
            Some(libc::S_IFIFO) => true,
            Some(libc::S_IFSOCK) => is_stream_socket(descriptor),
            _ => false,
        }
}

fn is_stream_socket(descriptor: u64) -> bool {
    let (mut kind, mut len) = (0_i32, size_of::<i32>() as u32);
    let places = [&raw mut kind as u64, &raw mut len as u64];
    let (level, name) = (libc::SOL_SOCKET as u64, libc::SO_TYPE as u64);
    // SAFETY: the kernel writes both numbers.
    let got = unsafe { raw::call(libc::SYS_getsockopt as u64, [descriptor, level, name, places[0], places[1], 0]) };
    got == 0 && kind == libc::SOCK_STREAM
}

/// Whether the monitor answers a call itself.
pub(crate) fn is_the_monitors(call: &Call) -> bool {
    matches!(call.number as i64, libc::SYS_rt_sigprocmask | libc::SYS_rt_sigaction)
}

/// Whether a call may wait. One that is not known to come back at once may.
pub(crate) fn may_wait(call: &Call) -> bool {
    let [first, second, ..] = call.arguments;
    match call.number as i64 {
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64 => kind_of(first) != Kind::File,
        libc::SYS_readv | libc::SYS_writev | libc::SYS_preadv | libc::SYS_pwritev => kind_of(first) != Kind::File,
        libc::SYS_preadv2 | libc::SYS_pwritev2 => kind_of(first) != Kind::File,
        libc::SYS_fcntl => {
            !matches!(second as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_GETFD..=libc::F_SETFL)
        }
        libc::SYS_futex => !matches!(
            second as i32 & libc::FUTEX_CMD_MASK,
            libc::FUTEX_WAKE | libc::FUTEX_WAKE_OP | libc::FUTEX_WAKE_BITSET | libc::FUTEX_CMP_REQUEUE
        ),

        // Memory.
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_madvise => false,
        libc::SYS_brk | libc::SYS_mincore | libc::SYS_memfd_create | libc::SYS_get_mempolicy => false,

        // Files.
        libc::SYS_lseek | libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 | libc::SYS_close => false,
        libc::SYS_stat | libc::SYS_fstat | libc::SYS_lstat | libc::SYS_newfstatat | libc::SYS_statx => false,
        libc::SYS_access | libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_getcwd => false,
        libc::SYS_readlink | libc::SYS_readlinkat | libc::SYS_getdents | libc::SYS_getdents64 => false,
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_ftruncate | libc::SYS_unlink | libc::SYS_unlinkat => false,
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_mkdir | libc::SYS_mkdirat => false,
        libc::SYS_statfs | libc::SYS_fstatfs | libc::SYS_fadvise64 | libc::SYS_umask => false,

        // Descriptors of other kinds.
        libc::SYS_pipe | libc::SYS_pipe2 | libc::SYS_eventfd2 | libc::SYS_epoll_create1 | libc::SYS_epoll_ctl => false,
        libc::SYS_socket | libc::SYS_socketpair | libc::SYS_bind | libc::SYS_listen | libc::SYS_setsockopt => false,
        libc::SYS_getsockopt | libc::SYS_getsockname | libc::SYS_getpeername | libc::SYS_timerfd_create => false,
        libc::SYS_timerfd_settime | libc::SYS_timerfd_gettime => false,

        // Time.
        libc::SYS_clock_gettime | libc::SYS_clock_getres | libc::SYS_gettimeofday | libc::SYS_time => false,
        libc::SYS_times | libc::SYS_getitimer | libc::SYS_setitimer | libc::SYS_alarm => false,

        // Threads and processes. A signal that a thread sends itself comes before its next instruction.
        libc::SYS_getpid | libc::SYS_gettid | libc::SYS_getppid | libc::SYS_getpgid | libc::SYS_getpgrp => false,
        libc::SYS_getuid | libc::SYS_geteuid | libc::SYS_getgid | libc::SYS_getegid | libc::SYS_getsid => false,
        libc::SYS_kill | libc::SYS_tgkill | libc::SYS_tkill | libc::SYS_exit_group | libc::SYS_sched_yield => false,
        libc::SYS_rt_sigqueueinfo | libc::SYS_rt_tgsigqueueinfo | libc::SYS_prctl | libc::SYS_uname => false,
        libc::SYS_arch_prctl => false,
        libc::SYS_sched_getaffinity | libc::SYS_sched_setaffinity | libc::SYS_getcpu | libc::SYS_sysinfo => false,
        libc::SYS_getrusage | libc::SYS_getrlimit | libc::SYS_setrlimit | libc::SYS_prlimit64 => false,
        libc::SYS_set_robust_list | libc::SYS_get_robust_list | libc::SYS_set_tid_address | libc::SYS_rseq => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn waits(number: i64, arguments: [u64; 6]) -> bool {
        may_wait(&Call { number: number as u64, arguments })
    }

    #[test]
    fn a_read_waits_where_somebody_must_write() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = tempfile_of_nothing();
        let read = |descriptor: i32| waits(libc::SYS_read, [descriptor as u64, 0, 0, 0, 0, 0]);
        assert!(read(reader.as_raw_fd()));
        assert!(!read(file.as_raw_fd()));
        // The kernel says that it is none.
        assert!(read(-1));
    }

    #[test]
    fn a_file_of_the_kernels_own_may_wait() {
        for path in ["/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            let Ok(file) = std::fs::File::open(path) else { continue };
            assert!(waits(libc::SYS_pread64, [file.as_raw_fd() as u64, 0, 0, 0, 0, 0]), "{path}");
        }
    }

    fn tempfile_of_nothing() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("vmio-ring0-waits-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn operations_decide() {
        let futex = |operation: i32| waits(libc::SYS_futex, [0, operation as u64, 0, 0, 0, 0]);
        assert!(futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG));
        assert!(!futex(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG));
        let fcntl = |operation: i32| waits(libc::SYS_fcntl, [0, operation as u64, 0, 0, 0, 0]);
        assert!(fcntl(libc::F_SETLKW));
        assert!(!fcntl(libc::F_SETFL));
        assert!(waits(3000, [0; 6]));
    }
}
