//! The pointers of Linux's system calls on x86-64, up to Linux 6.18.

use crate::calls::memory::Call;
use crate::calls::memory::Use::{Any, Read, Store};
use crate::calls::pointers::Number::{Fixed, Int, Long, Unsigned};
use crate::calls::pointers::Pointer::{
    ByPage, Bytes, Counted, Descriptors, Headed, LongText, Nodes, OfProcess, Sized, Structure, Structures, Tailed,
    Text, Texts, Unknown,
};
use crate::calls::pointers::Pointers;
use crate::calls::without_pointers::numbers_alone;
use crate::calls::{layouts, numbers, operations};
use crate::memory::PAGE_BYTES;

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
const TIMEX: usize = size_of::<libc::timex>();
/// The kernel's sigaction and its set of signals, which have no room for signals that do not exist.
const SIGACTION: usize = 32;
const SIGNALS: usize = 8;
const SIGEVENT: usize = size_of::<libc::sigevent>();
const MQ_ATTR: usize = size_of::<libc::mq_attr>();
const SEMBUF: usize = 6;

/// The pointers of a call. `None` for numbers that Linux 6.18 does not have.
///
/// Addresses whose memory a call does not use are not here (mmap, madvise). Nor is memory that the kernel uses after the call, too. The program must
/// pin the buffers of io_submit, io_uring and vmsplice, for longer than the call.
pub(super) fn pointers_of(call: &Call) -> Option<Pointers> {
    let [first, second, third, fourth, fifth, _] = call.arguments;
    let found: Pointers = match call.number as i64 {
        // By an operation.
        libc::SYS_futex => operations::futex(second),
        libc::SYS_fcntl => operations::fcntl(second),
        libc::SYS_ioctl => operations::ioctl(second),
        libc::SYS_prctl => operations::prctl(first, second),
        libc::SYS_ptrace => operations::ptrace(first),
        libc::SYS_keyctl => operations::keyctl(first),
        libc::SYS_msgctl => operations::queues(second),
        libc::SYS_shmctl => operations::segments(second),
        libc::SYS_semctl => operations::semaphores(third),
        libc::SYS_epoll_ctl => operations::epoll_ctl(second),
        libc::SYS_seccomp => operations::seccomp(first),
        libc::SYS_syslog => operations::syslog(first),
        libc::SYS_sysfs => operations::sysfs(first),
        libc::SYS_modify_ldt => operations::modify_ldt(first),
        libc::SYS_fsconfig => operations::fsconfig(second),
        libc::SYS_landlock_add_rule => operations::landlock_add_rule(second),
        libc::SYS_quotactl => operations::quotas(first, true),
        libc::SYS_quotactl_fd => operations::quotas(second, false),
        libc::SYS_io_uring_enter => operations::io_uring_enter(fourth),
        libc::SYS_arch_prctl => operations::arch_prctl(first),
        libc::SYS_setsockopt => operations::setsockopt(second, third),
        libc::SYS_name_to_handle_at => operations::name_to_handle_at(fifth),
        // Always the same.
        number => {
            files(number).or_else(|| events(number)).or_else(|| processes(number)).or_else(|| numbers_alone(number))?
        }
    };
    Some(found)
}

/// Calls that read, write, and know files by their names.
fn files(number: i64) -> Option<Pointers> {
    let found: Pointers = match number {
        libc::SYS_read | libc::SYS_pread64 => &[(1, Counted(Store, Long(2), 1))],
        libc::SYS_write | libc::SYS_pwrite64 => &[(1, Counted(Read, Long(2), 1))],
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => &[(1, Structures(layouts::STORED, Long(2)))],
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => &[(1, Structures(layouts::READ, Long(2)))],
        libc::SYS_sendfile => &[(2, Bytes(Any, 8))],
        libc::SYS_splice | libc::SYS_copy_file_range => &[(1, Bytes(Any, 8)), (3, Bytes(Any, 8))],
        libc::SYS_getdents | libc::SYS_getdents64 => &[(1, Counted(Store, Unsigned(2), 1))],
        libc::SYS_io_submit => &[(2, Structures(&layouts::REQUEST, Long(1)))],
        libc::SYS_io_cancel => &[(1, Bytes(Read, 64)), (2, Bytes(Store, 32))],
        libc::SYS_io_uring_setup => &[(1, Bytes(Any, 120))],
        libc::SYS_io_uring_register => &[(2, Unknown)],
        numbers::SYS_cachestat => &[(1, Bytes(Read, 16)), (2, Bytes(Store, 40))],

        libc::SYS_open | libc::SYS_creat | libc::SYS_access | libc::SYS_truncate | libc::SYS_chdir => TEXT,
        libc::SYS_mkdir | libc::SYS_rmdir | libc::SYS_unlink | libc::SYS_chmod | libc::SYS_chown => TEXT,
        libc::SYS_lchown | libc::SYS_mknod | libc::SYS_chroot | libc::SYS_acct | libc::SYS_swapon => TEXT,
        libc::SYS_swapoff | libc::SYS_umount2 | libc::SYS_memfd_create | libc::SYS_mq_unlink => TEXT,
        libc::SYS_delete_module | libc::SYS_fsopen | libc::SYS_uselib => TEXT,
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink | libc::SYS_pivot_root => TWO_TEXTS,
        libc::SYS_openat | libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_fchownat | libc::SYS_unlinkat => TEXT_1,
        libc::SYS_fchmodat | libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_fchmodat2 => TEXT_1,
        libc::SYS_inotify_add_watch | libc::SYS_open_tree | libc::SYS_fspick => TEXT_1,
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat | libc::SYS_move_mount => TEXTS_1_3,
        numbers::SYS_removexattrat => TEXTS_1_3,
        libc::SYS_symlinkat => &[(0, Text), (2, Text)],
        libc::SYS_fanotify_mark => &[(4, Text)],
        libc::SYS_openat2 => &[(1, Text), (2, Counted(Read, Long(3), 1))],
        libc::SYS_readlink => &[(0, Text), (1, Counted(Store, Int(2), 1))],
        libc::SYS_readlinkat => &[(1, Text), (2, Counted(Store, Int(3), 1))],
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
        libc::SYS_getcwd => &[(0, Counted(Store, Long(1), 1))],
        libc::SYS_open_by_handle_at => &[(1, Tailed(Read, layouts::HANDLE))],
        libc::SYS_mount => &[(0, Text), (1, Text), (2, Text), (4, Bytes(Read, PAGE_BYTES))],
        libc::SYS_mount_setattr | numbers::SYS_open_tree_attr => &[(1, Text), (3, Counted(Read, Long(4), 1))],
        numbers::SYS_statmount => &[(0, Tailed(Read, layouts::MOUNT)), (1, Counted(Store, Long(2), 1))],
        numbers::SYS_listmount => &[(0, Tailed(Read, layouts::MOUNT)), (1, Counted(Store, Long(2), 8))],
        libc::SYS_setxattr | libc::SYS_lsetxattr => &[(0, Text), (1, Text), (2, Counted(Read, Long(3), 1))],
        libc::SYS_fsetxattr => &[(1, Text), (2, Counted(Read, Long(3), 1))],
        libc::SYS_getxattr | libc::SYS_lgetxattr => &[(0, Text), (1, Text), (2, Counted(Store, Long(3), 1))],
        libc::SYS_fgetxattr => &[(1, Text), (2, Counted(Store, Long(3), 1))],
        libc::SYS_listxattr | libc::SYS_llistxattr => &[(0, Text), (1, Counted(Store, Long(2), 1))],
        libc::SYS_flistxattr => &[(1, Counted(Store, Long(2), 1))],
        libc::SYS_removexattr | libc::SYS_lremovexattr => TWO_TEXTS,
        libc::SYS_fremovexattr => TEXT_1,
        numbers::SYS_setxattrat => &[(1, Text), (3, Text), (4, Structure(&layouts::VALUE_READ))],
        numbers::SYS_getxattrat => &[(1, Text), (3, Text), (4, Structure(&layouts::VALUE_STORED))],
        numbers::SYS_listxattrat => &[(1, Text), (3, Counted(Store, Long(4), 1))],
        numbers::SYS_file_getattr => &[(1, Text), (2, Counted(Store, Long(3), 1))],
        numbers::SYS_file_setattr => &[(1, Text), (2, Counted(Read, Long(3), 1))],
        libc::SYS_landlock_create_ruleset => &[(0, Counted(Read, Long(1), 1))],
        _ => return None,
    };
    Some(found)
}

/// Calls that wait, of sockets, queues and clocks.
fn events(number: i64) -> Option<Pointers> {
    let found: Pointers = match number {
        libc::SYS_pipe | libc::SYS_pipe2 => &[(0, Bytes(Store, 8))],
        libc::SYS_poll => &[(0, Counted(Any, Unsigned(1), POLLFD))],
        libc::SYS_ppoll => {
            &[(0, Counted(Any, Unsigned(1), POLLFD)), (2, Bytes(Any, TIMESPEC)), (3, Bytes(Read, SIGNALS))]
        }
        libc::SYS_select => &[
            (1, Descriptors(Any, Int(0))),
            (2, Descriptors(Any, Int(0))),
            (3, Descriptors(Any, Int(0))),
            (4, Bytes(Any, TIMESPEC)),
        ],
        libc::SYS_pselect6 => &[
            (1, Descriptors(Any, Int(0))),
            (2, Descriptors(Any, Int(0))),
            (3, Descriptors(Any, Int(0))),
            (4, Bytes(Any, TIMESPEC)),
            (5, Structure(&layouts::SIGNALS)),
        ],
        libc::SYS_epoll_wait => &[(1, Counted(Store, Int(2), EPOLL_EVENT))],
        libc::SYS_epoll_pwait => &[(1, Counted(Store, Int(2), EPOLL_EVENT)), (4, Bytes(Read, SIGNALS))],
        libc::SYS_epoll_pwait2 => {
            &[(1, Counted(Store, Int(2), EPOLL_EVENT)), (3, Bytes(Read, TIMESPEC)), (4, Bytes(Read, SIGNALS))]
        }
        libc::SYS_io_setup => &[(1, Bytes(Any, 8))],
        libc::SYS_io_getevents => &[(3, Counted(Store, Long(2), 32)), (4, Bytes(Read, TIMESPEC))],
        numbers::SYS_io_pgetevents => {
            &[(3, Counted(Store, Long(2), 32)), (4, Bytes(Read, TIMESPEC)), (5, Structure(&layouts::SIGNALS))]
        }
        libc::SYS_signalfd | libc::SYS_signalfd4 => &[(1, Bytes(Read, SIGNALS))],
        libc::SYS_futex_waitv => &[(0, Structures(&layouts::AWAITED, Unsigned(1))), (3, Bytes(Read, TIMESPEC))],
        numbers::SYS_futex_wait => &[(0, Bytes(Read, 4)), (4, Bytes(Read, TIMESPEC))],
        numbers::SYS_futex_wake => &[(0, Bytes(Read, 4))],
        numbers::SYS_futex_requeue => &[(0, Structures(&layouts::AWAITED, Fixed(2)))],

        libc::SYS_connect | libc::SYS_bind => &[(1, Counted(Read, Int(2), 1))],
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => &[(1, Sized(Store, 2))],
        libc::SYS_sendto => &[(1, Counted(Read, Long(2), 1)), (4, Counted(Read, Int(5), 1))],
        libc::SYS_recvfrom => &[(1, Counted(Store, Long(2), 1)), (4, Sized(Store, 5))],
        libc::SYS_sendmsg => &[(1, Structure(&layouts::SENT))],
        libc::SYS_recvmsg => &[(1, Structure(&layouts::RECEIVED))],
        libc::SYS_sendmmsg => &[(1, Structures(&layouts::SENT_OF_MANY, Unsigned(2)))],
        libc::SYS_recvmmsg => &[(1, Structures(&layouts::RECEIVED_OF_MANY, Unsigned(2))), (4, Bytes(Any, TIMESPEC))],
        libc::SYS_socketpair => &[(3, Bytes(Store, 8))],
        libc::SYS_getsockopt => &[(3, Sized(Store, 4))],

        libc::SYS_msgsnd => &[(1, Headed(Read, Long(2), 8))],
        libc::SYS_msgrcv => &[(1, Headed(Store, Long(2), 8))],
        libc::SYS_semop => &[(1, Counted(Read, Unsigned(2), SEMBUF))],
        libc::SYS_semtimedop => &[(1, Counted(Read, Unsigned(2), SEMBUF)), (3, Bytes(Read, TIMESPEC))],
        libc::SYS_mq_open => &[(0, Text), (3, Bytes(Read, MQ_ATTR))],
        libc::SYS_mq_timedsend => &[(1, Counted(Read, Long(2), 1)), (4, Bytes(Read, TIMESPEC))],
        libc::SYS_mq_timedreceive => {
            &[(1, Counted(Store, Long(2), 1)), (3, Bytes(Store, 4)), (4, Bytes(Read, TIMESPEC))]
        }
        libc::SYS_mq_notify => &[(1, Structure(&layouts::NOTICE))],
        libc::SYS_mq_getsetattr => &[(1, Bytes(Read, MQ_ATTR)), (2, Bytes(Store, MQ_ATTR))],

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
        _ => return None,
    };
    Some(found)
}

/// Calls of processes, threads, signals, and of the whole machine.
fn processes(number: i64) -> Option<Pointers> {
    let found: Pointers = match number {
        libc::SYS_execve => &[(0, Text), (1, Texts), (2, Texts)],
        libc::SYS_execveat => &[(1, Text), (2, Texts), (3, Texts)],
        libc::SYS_wait4 => &[(1, Bytes(Store, 4)), (3, Bytes(Store, RUSAGE))],
        libc::SYS_waitid => &[(2, Bytes(Store, SIGINFO)), (4, Bytes(Store, RUSAGE))],
        libc::SYS_getrusage => &[(1, Bytes(Store, RUSAGE))],
        libc::SYS_getrlimit => &[(1, Bytes(Store, 16))],
        libc::SYS_setrlimit => &[(1, Bytes(Read, 16))],
        libc::SYS_prlimit64 => &[(2, Bytes(Read, 16)), (3, Bytes(Store, 16))],
        libc::SYS_process_vm_readv => {
            &[(1, Structures(layouts::STORED, Long(2))), (3, OfProcess(layouts::READ, Long(4), 0))]
        }
        libc::SYS_process_vm_writev => {
            &[(1, Structures(layouts::READ, Long(2))), (3, OfProcess(layouts::STORED, Long(4), 0))]
        }
        // The vectors name addresses alone.
        libc::SYS_process_madvise => &[(1, Counted(Read, Long(2), 16))],
        libc::SYS_get_robust_list => &[(1, Bytes(Store, 8)), (2, Bytes(Store, 8))],
        libc::SYS_rt_sigaction => &[(1, Bytes(Read, SIGACTION)), (2, Bytes(Store, SIGACTION))],
        libc::SYS_rt_sigprocmask => &[(1, Bytes(Read, SIGNALS)), (2, Bytes(Store, SIGNALS))],
        libc::SYS_rt_sigpending => &[(0, Counted(Store, Long(1), 1))],
        libc::SYS_rt_sigsuspend => &[(0, Bytes(Read, SIGNALS))],
        libc::SYS_rt_sigtimedwait => {
            &[(0, Bytes(Read, SIGNALS)), (1, Bytes(Store, SIGINFO)), (2, Bytes(Read, TIMESPEC))]
        }
        libc::SYS_rt_sigqueueinfo | libc::SYS_pidfd_send_signal => &[(2, Bytes(Read, SIGINFO))],
        libc::SYS_rt_tgsigqueueinfo => &[(3, Bytes(Read, SIGINFO))],
        libc::SYS_sigaltstack => &[(0, Bytes(Read, 24)), (1, Bytes(Store, 24))],
        libc::SYS_sched_setparam => &[(1, Bytes(Read, 4))],
        libc::SYS_sched_getparam => &[(1, Bytes(Store, 4))],
        libc::SYS_sched_setscheduler => &[(2, Bytes(Read, 4))],
        libc::SYS_sched_setaffinity => &[(2, Counted(Read, Unsigned(1), 1))],
        libc::SYS_sched_getaffinity => &[(2, Counted(Store, Unsigned(1), 1))],
        libc::SYS_sched_setattr => &[(1, Tailed(Any, layouts::SCHEDULING))],
        libc::SYS_sched_getattr => &[(1, Counted(Store, Unsigned(2), 1))],
        libc::SYS_getgroups => &[(1, Counted(Store, Int(0), 4))],
        libc::SYS_setgroups => &[(1, Counted(Read, Int(0), 4))],
        libc::SYS_getresuid | libc::SYS_getresgid => {
            &[(0, Bytes(Store, 4)), (1, Bytes(Store, 4)), (2, Bytes(Store, 4))]
        }
        libc::SYS_capget => &[(0, Bytes(Any, 8)), (1, Bytes(Store, 24))],
        libc::SYS_capset => &[(0, Bytes(Any, 8)), (1, Bytes(Read, 24))],
        libc::SYS_getcpu => &[(0, Bytes(Store, 4)), (1, Bytes(Store, 4))],
        libc::SYS_add_key => &[(0, Text), (1, Text), (2, Counted(Read, Long(3), 1))],
        libc::SYS_request_key => &[(0, Text), (1, Text), (2, Text)],
        numbers::SYS_lsm_get_self_attr => &[(1, Sized(Store, 2))],
        numbers::SYS_lsm_set_self_attr => &[(1, Counted(Read, Unsigned(2), 1))],
        numbers::SYS_lsm_list_modules => &[(0, Sized(Store, 1))],

        libc::SYS_mincore => &[(2, ByPage(Store, Long(1)))],
        libc::SYS_move_pages => {
            &[(2, Counted(Read, Long(1), 8)), (3, Counted(Read, Long(1), 4)), (4, Counted(Store, Long(1), 4))]
        }
        libc::SYS_migrate_pages => &[(2, Nodes(Read, Long(1))), (3, Nodes(Read, Long(1)))],
        libc::SYS_mbind => &[(3, Nodes(Read, Long(4)))],
        libc::SYS_set_mempolicy => &[(1, Nodes(Read, Long(2)))],
        libc::SYS_get_mempolicy => &[(0, Bytes(Store, 4)), (1, Nodes(Store, Long(2)))],

        libc::SYS_uname => &[(0, Bytes(Store, 390))],
        libc::SYS_sysinfo => &[(0, Bytes(Store, 112))],
        libc::SYS_getrandom => &[(0, Counted(Store, Long(1), 1))],
        libc::SYS_sethostname | libc::SYS_setdomainname => &[(0, Counted(Read, Int(1), 1))],
        libc::SYS_reboot => &[(3, Text)],
        libc::SYS_init_module => &[(0, Counted(Read, Long(1), 1)), (2, LongText)],
        libc::SYS_finit_module => &[(1, LongText)],
        libc::SYS_kexec_load => &[(2, Structures(&layouts::SEGMENT, Long(1)))],
        libc::SYS_kexec_file_load => &[(3, Counted(Read, Long(2), 1))],
        // Its command decides where the structure leads: the program must pin keys and values in managed memory.
        libc::SYS_bpf => &[(1, Counted(Any, Unsigned(2), 1))],
        libc::SYS_perf_event_open => &[(0, Tailed(Any, layouts::EVENT))],
        _ => return None,
    };
    Some(found)
}
