//! The pointers of Linux's system calls on x86-64.

use crate::calls::memory::Use::{self, Any, Read, Store};

/// The memory to which an argument points.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pointer {
    /// This many bytes.
    Bytes(Use, usize),
    /// As many elements as an argument says, of this many bytes each.
    Counted(Use, usize, usize),
    /// A header of this many bytes, and behind it as many as an argument says.
    Headed(Use, usize, usize),
    /// A byte for each page of as many bytes as an argument says.
    ByPage(Use, usize),
    /// As many bytes as the word says to which an argument points.
    Sized(Use, usize),
    /// As much as the number of the ioctl says, which is in an argument.
    Request(usize),
    /// A text that ends with a zero.
    Text,
    /// An array of pointers to texts.
    Texts,
    /// An array of vectors, as many as an argument says.
    Vectors(Use, usize),
    /// A message.
    Message(Use),
    /// As many messages as an argument says.
    Messages(Use, usize),
}

use Pointer::{ByPage, Bytes, Counted, Headed, Message, Messages, Request, Sized, Text, Texts, Vectors};

type Pointers = &'static [(usize, Pointer)];

const NONE: Pointers = &[];
const TEXT: Pointers = &[(0, Text)];
const TEXT_1: Pointers = &[(1, Text)];
const TWO_TEXTS: Pointers = &[(0, Text), (1, Text)];
const TEXTS_1_3: Pointers = &[(1, Text), (3, Text)];

const STAT: usize = size_of::<libc::stat>();
const STATFS: usize = size_of::<libc::statfs>();
const TIMESPEC: usize = size_of::<libc::timespec>();
const TWO_TIMES: usize = 2 * TIMESPEC;
const RUSAGE: usize = size_of::<libc::rusage>();
const SIGINFO: usize = size_of::<libc::siginfo_t>();
const EPOLL_EVENT: usize = size_of::<libc::epoll_event>();
const POLLFD: usize = size_of::<libc::pollfd>();
const FD_SET: usize = size_of::<libc::fd_set>();
const TIMEX: usize = size_of::<libc::timex>();
/// The kernel's sigaction, which has no room for signals that do not exist.
const SIGACTION: usize = 32;
const SIGEVENT: usize = size_of::<libc::sigevent>();
const MQ_ATTR: usize = size_of::<libc::mq_attr>();
const SEMBUF: usize = 6;
const FILE_HANDLE: usize = 8 + 128;

/// The pointers of a call: the arguments that are one, and what they point to. `None` for calls that this table does not know.
///
/// Not here are addresses whose memory the call does not use (mmap, madvise), and memory that the kernel uses after the call, too: that of
/// io_submit, io_uring and vmsplice must be pinned by the program, for longer than the call.
pub(super) fn pointers_of(number: u64) -> Option<Pointers> {
    let found: Pointers = match number as i64 {
        libc::SYS_read | libc::SYS_pread64 => &[(1, Counted(Store, 2, 1))],
        libc::SYS_write | libc::SYS_pwrite64 => &[(1, Counted(Read, 2, 1))],
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => &[(1, Vectors(Store, 2))],
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => &[(1, Vectors(Read, 2))],
        libc::SYS_process_vm_readv => &[(1, Vectors(Store, 2)), (3, Counted(Read, 4, 16))],
        libc::SYS_process_vm_writev => &[(1, Vectors(Read, 2)), (3, Counted(Read, 4, 16))],
        libc::SYS_sendfile => &[(2, Bytes(Any, 8))],
        libc::SYS_splice | libc::SYS_copy_file_range => &[(1, Bytes(Any, 8)), (3, Bytes(Any, 8))],
        libc::SYS_getrandom => &[(0, Counted(Store, 1, 1))],

        // Paths.
        libc::SYS_open | libc::SYS_creat | libc::SYS_access | libc::SYS_truncate | libc::SYS_chdir => TEXT,
        libc::SYS_mkdir | libc::SYS_rmdir | libc::SYS_unlink | libc::SYS_chmod | libc::SYS_chown => TEXT,
        libc::SYS_lchown | libc::SYS_mknod | libc::SYS_chroot | libc::SYS_acct | libc::SYS_swapon => TEXT,
        libc::SYS_swapoff | libc::SYS_umount2 | libc::SYS_memfd_create | libc::SYS_mq_unlink => TEXT,
        libc::SYS_delete_module => TEXT,
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink | libc::SYS_pivot_root => TWO_TEXTS,
        libc::SYS_openat | libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_fchownat | libc::SYS_unlinkat => TEXT_1,
        libc::SYS_fchmodat | libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_fchmodat2 => TEXT_1,
        libc::SYS_inotify_add_watch | libc::SYS_finit_module => TEXT_1,
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => TEXTS_1_3,
        libc::SYS_symlinkat => &[(0, Text), (2, Text)],
        libc::SYS_openat2 => &[(1, Text), (2, Counted(Read, 3, 1))],
        libc::SYS_readlink => &[(0, Text), (1, Counted(Store, 2, 1))],
        libc::SYS_readlinkat => &[(1, Text), (2, Counted(Store, 3, 1))],
        libc::SYS_stat | libc::SYS_lstat => &[(0, Text), (1, Bytes(Store, STAT))],
        libc::SYS_fstat => &[(1, Bytes(Store, STAT))],
        libc::SYS_newfstatat => &[(1, Text), (2, Bytes(Store, STAT))],
        libc::SYS_statx => &[(1, Text), (4, Bytes(Store, 256))],
        libc::SYS_statfs => &[(0, Text), (1, Bytes(Store, STATFS))],
        libc::SYS_fstatfs => &[(1, Bytes(Store, STATFS))],
        libc::SYS_ustat => &[(1, Bytes(Store, 32))],
        libc::SYS_utime => &[(0, Text), (1, Bytes(Read, 16))],
        libc::SYS_utimes => &[(0, Text), (1, Bytes(Read, TWO_TIMES))],
        libc::SYS_futimesat | libc::SYS_utimensat => &[(1, Text), (2, Bytes(Read, TWO_TIMES))],
        libc::SYS_getdents | libc::SYS_getdents64 => &[(1, Counted(Store, 2, 1))],
        libc::SYS_getcwd => &[(0, Counted(Store, 1, 1))],
        libc::SYS_name_to_handle_at => &[(1, Text), (2, Bytes(Any, FILE_HANDLE)), (3, Bytes(Store, 4))],
        libc::SYS_open_by_handle_at => &[(1, Bytes(Read, FILE_HANDLE))],
        libc::SYS_mount => &[(0, Text), (1, Text), (2, Text), (4, Text)],
        libc::SYS_quotactl => &[(1, Text), (3, Bytes(Any, 112))],
        libc::SYS_setxattr | libc::SYS_lsetxattr => &[(0, Text), (1, Text), (2, Counted(Read, 3, 1))],
        libc::SYS_fsetxattr => &[(1, Text), (2, Counted(Read, 3, 1))],
        libc::SYS_getxattr | libc::SYS_lgetxattr => &[(0, Text), (1, Text), (2, Counted(Store, 3, 1))],
        libc::SYS_fgetxattr => &[(1, Text), (2, Counted(Store, 3, 1))],
        libc::SYS_listxattr | libc::SYS_llistxattr => &[(0, Text), (1, Counted(Store, 2, 1))],
        libc::SYS_flistxattr => &[(1, Counted(Store, 2, 1))],
        libc::SYS_removexattr | libc::SYS_lremovexattr => TWO_TEXTS,
        libc::SYS_fremovexattr => TEXT_1,
        libc::SYS_ioctl => &[(2, Request(1))],
        libc::SYS_fcntl => &[(2, Bytes(Any, size_of::<libc::flock>()))],

        // Descriptors that wait.
        libc::SYS_pipe | libc::SYS_pipe2 => &[(0, Bytes(Store, 8))],
        libc::SYS_poll => &[(0, Counted(Any, 1, POLLFD))],
        libc::SYS_ppoll => &[(0, Counted(Any, 1, POLLFD)), (2, Bytes(Any, TIMESPEC)), (3, Counted(Read, 4, 1))],
        libc::SYS_select => {
            &[(1, Bytes(Any, FD_SET)), (2, Bytes(Any, FD_SET)), (3, Bytes(Any, FD_SET)), (4, Bytes(Any, TIMESPEC))]
        }
        libc::SYS_pselect6 => &[
            (1, Bytes(Any, FD_SET)),
            (2, Bytes(Any, FD_SET)),
            (3, Bytes(Any, FD_SET)),
            (4, Bytes(Any, TIMESPEC)),
            (5, Bytes(Read, 16)),
        ],
        libc::SYS_epoll_ctl => &[(3, Bytes(Read, EPOLL_EVENT))],
        libc::SYS_epoll_wait => &[(1, Counted(Store, 2, EPOLL_EVENT))],
        libc::SYS_epoll_pwait => &[(1, Counted(Store, 2, EPOLL_EVENT)), (4, Counted(Read, 5, 1))],
        libc::SYS_epoll_pwait2 => {
            &[(1, Counted(Store, 2, EPOLL_EVENT)), (3, Bytes(Read, TIMESPEC)), (4, Counted(Read, 5, 1))]
        }
        libc::SYS_io_setup => &[(1, Bytes(Any, 8))],
        libc::SYS_io_getevents => &[(3, Counted(Store, 2, 32)), (4, Bytes(Read, TIMESPEC))],
        libc::SYS_signalfd | libc::SYS_signalfd4 => &[(1, Counted(Read, 2, 1))],

        // Sockets.
        libc::SYS_connect | libc::SYS_bind => &[(1, Counted(Read, 2, 1))],
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => &[(1, Sized(Store, 2))],
        libc::SYS_sendto => &[(1, Counted(Read, 2, 1)), (4, Counted(Read, 5, 1))],
        libc::SYS_recvfrom => &[(1, Counted(Store, 2, 1)), (4, Sized(Store, 5))],
        libc::SYS_sendmsg => &[(1, Message(Read))],
        libc::SYS_recvmsg => &[(1, Message(Store))],
        libc::SYS_sendmmsg => &[(1, Messages(Read, 2))],
        libc::SYS_recvmmsg => &[(1, Messages(Store, 2)), (4, Bytes(Any, TIMESPEC))],
        libc::SYS_socketpair => &[(3, Bytes(Store, 8))],
        libc::SYS_setsockopt => &[(3, Counted(Read, 4, 1))],
        libc::SYS_getsockopt => &[(3, Sized(Store, 4))],

        // Queues, semaphores and segments.
        libc::SYS_msgsnd => &[(1, Headed(Read, 2, 8))],
        libc::SYS_msgrcv => &[(1, Headed(Store, 2, 8))],
        libc::SYS_msgctl | libc::SYS_shmctl => &[(2, Bytes(Any, 120))],
        libc::SYS_semop => &[(1, Counted(Read, 2, SEMBUF))],
        libc::SYS_semtimedop => &[(1, Counted(Read, 2, SEMBUF)), (3, Bytes(Read, TIMESPEC))],
        libc::SYS_semctl => &[(3, Bytes(Any, 120))],
        libc::SYS_mq_open => &[(0, Text), (3, Bytes(Read, MQ_ATTR))],
        libc::SYS_mq_timedsend => &[(1, Counted(Read, 2, 1)), (4, Bytes(Read, TIMESPEC))],
        libc::SYS_mq_timedreceive => &[(1, Counted(Store, 2, 1)), (3, Bytes(Store, 4)), (4, Bytes(Read, TIMESPEC))],
        libc::SYS_mq_notify => &[(1, Bytes(Read, SIGEVENT))],
        libc::SYS_mq_getsetattr => &[(1, Bytes(Read, MQ_ATTR)), (2, Bytes(Store, MQ_ATTR))],
        libc::SYS_add_key => &[(0, Text), (1, Text), (2, Counted(Read, 3, 1))],
        libc::SYS_request_key => &[(0, Text), (1, Text), (2, Text)],

        // Time.
        libc::SYS_time => &[(0, Bytes(Store, 8))],
        libc::SYS_gettimeofday => &[(0, Bytes(Store, 16)), (1, Bytes(Store, 8))],
        libc::SYS_settimeofday => &[(0, Bytes(Read, 16)), (1, Bytes(Read, 8))],
        libc::SYS_nanosleep => &[(0, Bytes(Read, TIMESPEC)), (1, Bytes(Store, TIMESPEC))],
        libc::SYS_clock_nanosleep => &[(2, Bytes(Read, TIMESPEC)), (3, Bytes(Store, TIMESPEC))],
        libc::SYS_clock_settime => &[(1, Bytes(Read, TIMESPEC))],
        libc::SYS_clock_gettime | libc::SYS_clock_getres => &[(1, Bytes(Store, TIMESPEC))],
        libc::SYS_sched_rr_get_interval => &[(1, Bytes(Store, TIMESPEC))],
        libc::SYS_getitimer => &[(1, Bytes(Store, TWO_TIMES))],
        libc::SYS_setitimer => &[(1, Bytes(Read, TWO_TIMES)), (2, Bytes(Store, TWO_TIMES))],
        libc::SYS_timer_create => &[(1, Bytes(Read, SIGEVENT)), (2, Bytes(Store, 4))],
        libc::SYS_timer_settime | libc::SYS_timerfd_settime => {
            &[(2, Bytes(Read, TWO_TIMES)), (3, Bytes(Store, TWO_TIMES))]
        }
        libc::SYS_timer_gettime | libc::SYS_timerfd_gettime => &[(1, Bytes(Store, TWO_TIMES))],
        libc::SYS_adjtimex => &[(0, Bytes(Any, TIMEX))],
        libc::SYS_clock_adjtime => &[(1, Bytes(Any, TIMEX))],
        libc::SYS_times => &[(0, Bytes(Store, 32))],

        // Processes, threads and signals.
        libc::SYS_execve => &[(0, Text), (1, Texts), (2, Texts)],
        libc::SYS_execveat => &[(1, Text), (2, Texts), (3, Texts)],
        libc::SYS_wait4 => &[(1, Bytes(Store, 4)), (3, Bytes(Store, RUSAGE))],
        libc::SYS_waitid => &[(2, Bytes(Store, SIGINFO)), (4, Bytes(Store, RUSAGE))],
        libc::SYS_getrusage => &[(1, Bytes(Store, RUSAGE))],
        libc::SYS_getrlimit => &[(1, Bytes(Store, 16))],
        libc::SYS_setrlimit => &[(1, Bytes(Read, 16))],
        libc::SYS_prlimit64 => &[(2, Bytes(Read, 16)), (3, Bytes(Store, 16))],
        libc::SYS_futex => &[(0, Bytes(Any, 4)), (3, Bytes(Read, TIMESPEC)), (4, Bytes(Any, 4))],
        libc::SYS_futex_waitv => &[(0, Counted(Read, 1, 24)), (3, Bytes(Read, TIMESPEC))],
        libc::SYS_get_robust_list => &[(1, Bytes(Store, 8)), (2, Bytes(Store, 8))],
        libc::SYS_rt_sigaction => &[(1, Bytes(Read, SIGACTION)), (2, Bytes(Store, SIGACTION))],
        libc::SYS_rt_sigprocmask => &[(1, Counted(Read, 3, 1)), (2, Counted(Store, 3, 1))],
        libc::SYS_rt_sigpending => &[(0, Counted(Store, 1, 1))],
        libc::SYS_rt_sigsuspend => &[(0, Counted(Read, 1, 1))],
        libc::SYS_rt_sigtimedwait => {
            &[(0, Counted(Read, 3, 1)), (1, Bytes(Store, SIGINFO)), (2, Bytes(Read, TIMESPEC))]
        }
        libc::SYS_rt_sigqueueinfo | libc::SYS_pidfd_send_signal => &[(2, Bytes(Read, SIGINFO))],
        libc::SYS_rt_tgsigqueueinfo => &[(3, Bytes(Read, SIGINFO))],
        libc::SYS_sigaltstack => &[(0, Bytes(Read, 24)), (1, Bytes(Store, 24))],
        libc::SYS_sched_setparam => &[(1, Bytes(Read, 4))],
        libc::SYS_sched_getparam => &[(1, Bytes(Store, 4))],
        libc::SYS_sched_setscheduler => &[(2, Bytes(Read, 4))],
        libc::SYS_sched_setaffinity => &[(2, Counted(Read, 1, 1))],
        libc::SYS_sched_getaffinity => &[(2, Counted(Store, 1, 1))],
        libc::SYS_sched_setattr => &[(1, Bytes(Any, 56))],
        libc::SYS_sched_getattr => &[(1, Counted(Store, 2, 1))],
        libc::SYS_getgroups => &[(1, Counted(Store, 0, 4))],
        libc::SYS_setgroups => &[(1, Counted(Read, 0, 4))],
        libc::SYS_getresuid | libc::SYS_getresgid => {
            &[(0, Bytes(Store, 4)), (1, Bytes(Store, 4)), (2, Bytes(Store, 4))]
        }
        libc::SYS_capget => &[(0, Bytes(Any, 8)), (1, Bytes(Store, 24))],
        libc::SYS_capset => &[(0, Bytes(Any, 8)), (1, Bytes(Read, 24))],
        libc::SYS_getcpu => &[(0, Bytes(Store, 4)), (1, Bytes(Store, 4))],

        // The machine.
        libc::SYS_uname => &[(0, Bytes(Store, 390))],
        libc::SYS_sysinfo => &[(0, Bytes(Store, 112))],
        libc::SYS_syslog => &[(1, Counted(Store, 2, 1))],
        libc::SYS_sethostname | libc::SYS_setdomainname => &[(0, Counted(Read, 1, 1))],
        libc::SYS_init_module => &[(0, Counted(Read, 1, 1)), (2, Text)],
        libc::SYS_bpf => &[(1, Counted(Any, 2, 1))],
        libc::SYS_perf_event_open => &[(0, Bytes(Any, 136))],
        libc::SYS_mincore => &[(2, ByPage(Store, 1))],

        // Addresses that are not used as memory, and memory that is used for longer than the call.
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_msync => NONE,
        libc::SYS_madvise | libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock | libc::SYS_brk => NONE,
        libc::SYS_mbind | libc::SYS_move_pages | libc::SYS_remap_file_pages | libc::SYS_pkey_mprotect => NONE,
        libc::SYS_process_madvise | libc::SYS_mseal | libc::SYS_shmat | libc::SYS_shmdt => NONE,
        libc::SYS_io_submit | libc::SYS_io_uring_setup | libc::SYS_io_uring_enter => NONE,
        libc::SYS_io_uring_register | libc::SYS_vmsplice => NONE,
        libc::SYS_set_robust_list | libc::SYS_set_tid_address | libc::SYS_rseq | libc::SYS_arch_prctl => NONE,
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork | libc::SYS_rt_sigreturn => NONE,
        libc::SYS_exit | libc::SYS_exit_group => NONE,

        // Numbers alone.
        libc::SYS_close | libc::SYS_lseek | libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_ftruncate => NONE,
        libc::SYS_fallocate | libc::SYS_sync_file_range | libc::SYS_fadvise64 | libc::SYS_readahead => NONE,
        libc::SYS_flock | libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 | libc::SYS_sched_yield => NONE,
        libc::SYS_getpid | libc::SYS_gettid | libc::SYS_getppid | libc::SYS_kill | libc::SYS_tgkill => NONE,
        libc::SYS_socket | libc::SYS_listen | libc::SYS_shutdown | libc::SYS_eventfd2 | libc::SYS_epoll_create1 => NONE,
        _ => return None,
    };
    Some(found)
}
