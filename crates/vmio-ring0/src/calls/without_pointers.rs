//! Calls without pointers, or whose pointers are addresses alone.

use crate::calls::numbers;
use crate::calls::pointers::Pointers;

const NONE: Pointers = &[];

/// The pointers of such a call: none.
pub(super) fn numbers_alone(number: i64) -> Option<Pointers> {
    match number {
        // Addresses that are not used as memory.
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_msync => Some(NONE),
        libc::SYS_madvise | libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock | libc::SYS_brk => Some(NONE),
        libc::SYS_remap_file_pages | libc::SYS_pkey_mprotect | libc::SYS_set_mempolicy_home_node => Some(NONE),
        libc::SYS_mseal | libc::SYS_shmat | libc::SYS_shmdt | numbers::SYS_map_shadow_stack => Some(NONE),
        // Memory that is used for longer than the call.
        libc::SYS_vmsplice | libc::SYS_set_robust_list | libc::SYS_set_tid_address | libc::SYS_rseq => Some(NONE),
        // Calls that the monitor makes itself.
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => Some(NONE),
        libc::SYS_rt_sigreturn | libc::SYS_exit | libc::SYS_exit_group | libc::SYS_restart_syscall => Some(NONE),
        // Calls of the kernel's own stubs of probes.
        numbers::SYS_uretprobe | numbers::SYS_uprobe => Some(NONE),

        // Files and descriptors.
        libc::SYS_close | libc::SYS_close_range | libc::SYS_lseek | libc::SYS_fsync | libc::SYS_fdatasync => Some(NONE),
        libc::SYS_ftruncate | libc::SYS_fallocate | libc::SYS_sync_file_range | libc::SYS_fadvise64 => Some(NONE),
        libc::SYS_readahead | libc::SYS_flock | libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 => Some(NONE),
        libc::SYS_fchdir | libc::SYS_fchmod | libc::SYS_fchown | libc::SYS_umask | libc::SYS_tee => Some(NONE),
        libc::SYS_sync | libc::SYS_syncfs | libc::SYS_fsmount | libc::SYS_memfd_secret => Some(NONE),
        libc::SYS_inotify_init | libc::SYS_inotify_init1 | libc::SYS_inotify_rm_watch => Some(NONE),
        libc::SYS_fanotify_init | libc::SYS_io_destroy | libc::SYS_userfaultfd => Some(NONE),
        // Sockets, events and timers.
        libc::SYS_socket | libc::SYS_listen | libc::SYS_shutdown | libc::SYS_eventfd | libc::SYS_eventfd2 => Some(NONE),
        libc::SYS_epoll_create | libc::SYS_epoll_create1 | libc::SYS_timerfd_create | libc::SYS_pause => Some(NONE),
        libc::SYS_timer_getoverrun | libc::SYS_timer_delete | libc::SYS_alarm => Some(NONE),
        libc::SYS_semget | libc::SYS_shmget | libc::SYS_msgget => Some(NONE),
        // Processes and threads.
        libc::SYS_getpid | libc::SYS_gettid | libc::SYS_getppid | libc::SYS_getpgid | libc::SYS_getpgrp => Some(NONE),
        libc::SYS_getsid | libc::SYS_setsid | libc::SYS_setpgid | libc::SYS_kill | libc::SYS_tkill => Some(NONE),
        libc::SYS_tgkill | libc::SYS_pidfd_open | libc::SYS_pidfd_getfd | libc::SYS_process_mrelease => Some(NONE),
        libc::SYS_getuid | libc::SYS_geteuid | libc::SYS_getgid | libc::SYS_getegid | libc::SYS_setuid => Some(NONE),
        libc::SYS_setgid | libc::SYS_setreuid | libc::SYS_setregid | libc::SYS_setresuid => Some(NONE),
        libc::SYS_setresgid | libc::SYS_setfsuid | libc::SYS_setfsgid | libc::SYS_personality => Some(NONE),
        libc::SYS_getpriority | libc::SYS_setpriority | libc::SYS_ioprio_get | libc::SYS_ioprio_set => Some(NONE),
        libc::SYS_sched_yield | libc::SYS_sched_getscheduler | libc::SYS_sched_get_priority_max => Some(NONE),
        libc::SYS_sched_get_priority_min | libc::SYS_unshare | libc::SYS_setns | libc::SYS_kcmp => Some(NONE),
        libc::SYS_membarrier | libc::SYS_landlock_restrict_self => Some(NONE),
        // Memory and the machine.
        libc::SYS_mlockall | libc::SYS_munlockall | libc::SYS_pkey_alloc | libc::SYS_pkey_free => Some(NONE),
        libc::SYS_iopl | libc::SYS_ioperm | libc::SYS_vhangup => Some(NONE),

        // Linux 6.18 does not have these any more, or never had them on x86-64.
        libc::SYS__sysctl | libc::SYS_nfsservctl | libc::SYS_getpmsg | libc::SYS_putpmsg => Some(NONE),
        libc::SYS_afs_syscall | libc::SYS_tuxcall | libc::SYS_security | libc::SYS_vserver => Some(NONE),
        libc::SYS_set_thread_area | libc::SYS_get_thread_area | libc::SYS_lookup_dcookie => Some(NONE),
        libc::SYS_epoll_ctl_old | libc::SYS_epoll_wait_old | numbers::SYS_create_module => Some(NONE),
        numbers::SYS_get_kernel_syms | numbers::SYS_query_module => Some(NONE),
        _ => None,
    }
}
