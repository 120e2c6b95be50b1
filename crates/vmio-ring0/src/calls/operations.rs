//! Calls that do different things, by an argument: each operation has pointers of its own.

use crate::calls::layouts;
use crate::calls::memory::Use::{Any, Read, Store};
use crate::calls::pointers::Pointer::{
    Bytes, Counted, Request, Semaphores, Structure, Structures, Tailed, Text, Unknown,
};
use crate::calls::pointers::{Number, Pointers};

use Number::{Int, Long, Unsigned};

const TIMESPEC: usize = size_of::<libc::timespec>();
const SIGINFO: usize = size_of::<libc::siginfo_t>();
const NONE: Pointers = &[];

/// futex: the word, another word, and a time. A private futex to wake is an address alone.
pub(super) fn futex(operation: u64) -> Pointers {
    const PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;
    const WAKES_PRIVATE: i32 = libc::FUTEX_WAKE | PRIVATE;
    const WAKES_SOME_PRIVATE: i32 = libc::FUTEX_WAKE_BITSET | PRIVATE;
    let operation = operation as i32 & !libc::FUTEX_CLOCK_REALTIME;
    if matches!(operation, WAKES_PRIVATE | WAKES_SOME_PRIVATE) {
        return NONE;
    }
    match operation & !PRIVATE {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => &[(0, Bytes(Read, 4)), (3, Bytes(Read, TIMESPEC))],
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => &[(0, Bytes(Read, 4))],
        libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE => &[(0, Bytes(Read, 4)), (4, Bytes(Read, 4))],
        libc::FUTEX_WAKE_OP | libc::FUTEX_CMP_REQUEUE_PI => &[(0, Bytes(Read, 4)), (4, Bytes(Any, 4))],
        libc::FUTEX_LOCK_PI | libc::FUTEX_LOCK_PI2 => &[(0, Bytes(Any, 4)), (3, Bytes(Read, TIMESPEC))],
        libc::FUTEX_UNLOCK_PI | libc::FUTEX_TRYLOCK_PI => &[(0, Bytes(Any, 4))],
        libc::FUTEX_WAIT_REQUEUE_PI => &[(0, Bytes(Read, 4)), (3, Bytes(Read, TIMESPEC)), (4, Bytes(Any, 4))],
        _ => NONE,
    }
}

/// fcntl: locks, owners and hints of lifetimes.
pub(super) fn fcntl(command: u64) -> Pointers {
    const F_SETOWN_EX: i32 = 15;
    const F_GETOWN_EX: i32 = 16;
    const F_GETOWNER_UIDS: i32 = 17;
    const F_GET_RW_HINT: i32 = 1035;
    const F_SET_RW_HINT: i32 = 1036;
    const F_GET_FILE_RW_HINT: i32 = 1037;
    const F_SET_FILE_RW_HINT: i32 = 1038;
    const LOCK: usize = size_of::<libc::flock>();
    match command as i32 {
        libc::F_GETLK | libc::F_OFD_GETLK => &[(2, Bytes(Any, LOCK))],
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => &[(2, Bytes(Read, LOCK))],
        F_GETOWN_EX | F_GETOWNER_UIDS | F_GET_RW_HINT | F_GET_FILE_RW_HINT => &[(2, Bytes(Store, 8))],
        F_SETOWN_EX | F_SET_RW_HINT | F_SET_FILE_RW_HINT => &[(2, Bytes(Read, 8))],
        _ => NONE,
    }
}

/// ioctl: the number says how long the structure is, but not what is behind it. Old numbers do not even say that.
pub(super) fn ioctl(request: u64) -> Pointers {
    const FS_IOC_FIEMAP: u64 = 0xc020_660b;
    const FS_IOC_GETFSMAP: u64 = 0xc0c0_583b;
    const FIDEDUPERANGE: u64 = 0xc018_9436;
    const NVME_ADMIN: u64 = 0xc048_4e41;
    const NVME_IO: u64 = 0xc048_4e43;
    const NVME_ADMIN_64: u64 = 0xc050_4e47;
    const NVME_IO_64: u64 = 0xc050_4e48;
    /// Of a terminal: what it takes is a number, or nothing.
    const TCSBRK: u64 = 0x5409;
    const TCXONC: u64 = 0x540a;
    const TCFLSH: u64 = 0x540b;
    const TIOCEXCL: u64 = 0x540c;
    const TIOCNXCL: u64 = 0x540d;
    const TIOCSCTTY: u64 = 0x540e;
    const TIOCNOTTY: u64 = 0x5422;
    const TCSBRKP: u64 = 0x5425;
    const TIOCSBRK: u64 = 0x5427;
    const TIOCCBRK: u64 = 0x5428;
    /// Close on exec, or not.
    const FIONCLEX: u64 = 0x5450;
    const FIOCLEX: u64 = 0x5451;
    match request & 0xffff_ffff {
        FS_IOC_FIEMAP => &[(2, Tailed(Any, layouts::EXTENTS))],
        FS_IOC_GETFSMAP => &[(2, Tailed(Any, layouts::RECORDS))],
        FIDEDUPERANGE => &[(2, Tailed(Any, layouts::TARGETS))],
        NVME_ADMIN | NVME_IO => &[(2, Structure(&layouts::NVME_COMMAND))],
        NVME_ADMIN_64 | NVME_IO_64 => &[(2, Structure(&layouts::NVME_COMMAND_64))],
        libc::SIOCGIFCONF => &[(2, Structure(&layouts::INTERFACES))],
        // FIONREAD, FIONBIO, FIOASYNC and TIOCOUTQ are numbers behind a pointer, TCGETS a structure.
        0x541b | 0x5411 => &[(2, Bytes(Store, 4))],
        0x5421 | 0x5452 => &[(2, Bytes(Read, 4))],
        TCSBRK | TCXONC | TCFLSH | TIOCEXCL | TIOCNXCL | TIOCSCTTY | TIOCNOTTY | TCSBRKP | TIOCSBRK | TIOCCBRK => NONE,
        FIONCLEX | FIOCLEX => NONE,
        _ => &[(2, Request(1))],
    }
}

/// prctl: nearly all of its operations take numbers.
pub(super) fn prctl(operation: u64, second: u64) -> Pointers {
    const PR_SET_VMA: i32 = 0x5356_4d41;
    const PR_GET_AUXV: i32 = 0x4155_5856;
    match operation as i32 {
        libc::PR_GET_PDEATHSIG | libc::PR_GET_UNALIGN | libc::PR_GET_FPEMU | libc::PR_GET_FPEXC => {
            &[(1, Bytes(Store, 4))]
        }
        libc::PR_GET_ENDIAN | libc::PR_GET_TSC | libc::PR_GET_CHILD_SUBREAPER => &[(1, Bytes(Store, 4))],
        libc::PR_GET_TID_ADDRESS => &[(1, Bytes(Store, 8))],
        libc::PR_SET_NAME => &[(1, Text)],
        libc::PR_GET_NAME => &[(1, Bytes(Store, 16))],
        libc::PR_SET_SECCOMP => &[(2, Structure(&layouts::FILTER))],
        libc::PR_SET_MM => match second as i32 {
            libc::PR_SET_MM_AUXV => &[(2, Counted(Read, Long(3), 1))],
            libc::PR_SET_MM_MAP => &[(2, Structure(&layouts::MEMORY_MAP))],
            libc::PR_SET_MM_MAP_SIZE => &[(2, Bytes(Store, 4))],
            _ => NONE,
        },
        PR_SET_VMA => &[(4, Text)],
        PR_GET_AUXV => &[(1, Counted(Store, Long(2), 1))],
        libc::PR_SCHED_CORE if second as i32 == libc::PR_SCHED_CORE_GET => &[(4, Bytes(Store, 8))],
        _ => NONE,
    }
}

/// ptrace: registers and signals of the other process.
pub(super) fn ptrace(request: u64) -> Pointers {
    const REGISTERS: usize = size_of::<libc::user_regs_struct>();
    const FLOATING_POINT: usize = size_of::<libc::user_fpregs_struct>();
    const GETREGSET: i64 = 0x4204;
    const SETREGSET: i64 = 0x4205;
    match request as i64 {
        // PEEKTEXT, PEEKDATA, PEEKUSER, GETEVENTMSG.
        1..=3 | 0x4201 => &[(3, Bytes(Store, 8))],
        12 => &[(3, Bytes(Store, REGISTERS))],
        13 => &[(3, Bytes(Read, REGISTERS))],
        14 => &[(3, Bytes(Store, FLOATING_POINT))],
        15 => &[(3, Bytes(Read, FLOATING_POINT))],
        // GETSIGINFO and SETSIGINFO.
        0x4202 => &[(3, Bytes(Store, SIGINFO))],
        0x4203 => &[(3, Bytes(Read, SIGINFO))],
        GETREGSET => &[(3, Structure(layouts::STORED))],
        SETREGSET => &[(3, Structure(layouts::READ))],
        // GETSIGMASK, GET_SYSCALL_INFO, GET_RSEQ_CONFIGURATION, GET_SYSCALL_USER_DISPATCH_CONFIG; and their opposites.
        0x420a | 0x420e | 0x420f | 0x4211 => &[(3, Counted(Store, Long(2), 1))],
        0x420b | 0x4210 | 0x4212 => &[(3, Counted(Read, Long(2), 1))],
        // PEEKSIGINFO, SECCOMP_GET_FILTER, SECCOMP_GET_METADATA.
        0x4209 | 0x420c | 0x420d => &[(2, Unknown), (3, Unknown)],
        _ => NONE,
    }
}

/// keyctl.
pub(super) fn keyctl(operation: u64) -> Pointers {
    match operation as i32 {
        1 => &[(1, Text)],
        // UPDATE and INSTANTIATE; DESCRIBE, READ and GET_SECURITY.
        2 | 12 => &[(2, Counted(Read, Long(3), 1))],
        6 | 11 | 17 => &[(2, Counted(Store, Long(3), 1))],
        // SEARCH and RESTRICT_KEYRING.
        10 | 29 => &[(2, Text), (3, Text)],
        20 => &[(2, Structures(layouts::READ, Unsigned(3)))],
        31 => &[(1, Counted(Store, Long(2), 1))],
        // Computations with keys have structures with pointers.
        23..=28 => &[(1, Unknown), (2, Unknown), (3, Unknown), (4, Unknown)],
        _ => NONE,
    }
}

/// msgctl, semctl and shmctl, with the lengths of what they get and set, and of what they tell of the system.
pub(super) fn queues(command: u64) -> Pointers {
    match command as i32 {
        libc::IPC_STAT | 11 | 13 => &[(2, Bytes(Store, size_of::<libc::msqid_ds>()))],
        libc::IPC_SET => &[(2, Bytes(Read, size_of::<libc::msqid_ds>()))],
        libc::IPC_INFO | 12 => &[(2, Bytes(Store, 32))],
        _ => NONE,
    }
}

/// See [`queues`].
pub(super) fn segments(command: u64) -> Pointers {
    match command as i32 {
        libc::IPC_STAT | 13 | 15 => &[(2, Bytes(Store, size_of::<libc::shmid_ds>()))],
        libc::IPC_SET => &[(2, Bytes(Read, size_of::<libc::shmid_ds>()))],
        libc::IPC_INFO => &[(2, Bytes(Store, 72))],
        14 => &[(2, Bytes(Store, 48))],
        _ => NONE,
    }
}

/// See [`queues`].
pub(super) fn semaphores(command: u64) -> Pointers {
    match command as i32 {
        libc::IPC_STAT | 18 | 20 => &[(3, Bytes(Store, size_of::<libc::semid_ds>()))],
        libc::IPC_SET => &[(3, Bytes(Read, size_of::<libc::semid_ds>()))],
        libc::IPC_INFO | 19 => &[(3, Bytes(Store, 40))],
        libc::GETALL => &[(3, Semaphores(Store, 0))],
        libc::SETALL => &[(3, Semaphores(Read, 0))],
        _ => NONE,
    }
}

/// Calls with fewer operations than those.
pub(super) fn epoll_ctl(operation: u64) -> Pointers {
    match operation as i32 {
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => &[(3, Bytes(Read, size_of::<libc::epoll_event>()))],
        _ => NONE,
    }
}

/// See [`epoll_ctl`].
pub(super) fn seccomp(operation: u64) -> Pointers {
    match operation {
        1 => &[(2, Structure(&layouts::FILTER))],
        2 => &[(2, Bytes(Read, 4))],
        3 => &[(2, Bytes(Store, 6))],
        _ => NONE,
    }
}

/// See [`epoll_ctl`].
pub(super) fn arch_prctl(operation: u64) -> Pointers {
    match operation {
        // GET_FS and GET_GS; states that are granted; tags; the shadow stack.
        0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 | 0x4001 | 0x4003 | 0x5005 => &[(1, Bytes(Store, 8))],
        _ => NONE,
    }
}

/// See [`epoll_ctl`].
pub(super) fn setsockopt(level: u64, name: u64) -> Pointers {
    match (level as i32, name as i32) {
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_REUSEPORT_CBPF) => {
            &[(3, Structure(&layouts::FILTER))]
        }
        _ => &[(3, Counted(Read, Int(4), 1))],
    }
}

/// See [`epoll_ctl`].
pub(super) fn syslog(kind: u64) -> Pointers {
    // READ, READ_ALL and READ_CLEAR.
    if matches!(kind as i32, 2..=4) { &[(1, Counted(Store, Int(2), 1))] } else { NONE }
}

/// See [`epoll_ctl`].
pub(super) fn sysfs(option: u64) -> Pointers {
    match option as i32 {
        1 => &[(1, Text)],
        2 => &[(2, Unknown)],
        _ => NONE,
    }
}

/// See [`epoll_ctl`].
pub(super) fn modify_ldt(function: u64) -> Pointers {
    match function as i32 {
        0 | 2 => &[(1, Counted(Store, Long(2), 1))],
        1 | 0x11 => &[(1, Counted(Read, Long(2), 1))],
        _ => NONE,
    }
}

/// See [`epoll_ctl`].
pub(super) fn fsconfig(command: u64) -> Pointers {
    match command {
        0 => &[(2, Text)],
        2 => &[(2, Text), (3, Counted(Read, Int(4), 1))],
        1 | 3 | 4 => &[(2, Text), (3, Text)],
        5 => &[(2, Text)],
        _ => NONE,
    }
}

/// See [`epoll_ctl`].
pub(super) fn landlock_add_rule(kind: u64) -> Pointers {
    match kind as i32 {
        1 => &[(2, Bytes(Read, 12))],
        2 => &[(2, Bytes(Read, 16))],
        _ => NONE,
    }
}

/// quotactl and quotactl_fd, whose structure is the argument of that number.
pub(super) fn quotas(command: u64, with_device: bool) -> Pointers {
    const ON: u32 = 0x80_0002;
    const OFF: u32 = 0x80_0003;
    const SYNC: u32 = 0x80_0001;
    match (command as u32 >> 8, with_device) {
        (ON, true) => &[(1, Text), (3, Text)],
        (SYNC | OFF, true) => &[(1, Text)],
        (_, true) => &[(1, Text), (3, Unknown)],
        (ON, false) => &[(3, Text)],
        (SYNC | OFF, false) => NONE,
        (_, false) => &[(3, Unknown)],
    }
}

/// io_uring_enter, whose last arguments are a set of signals, or a structure with one.
pub(super) fn io_uring_enter(flags: u64) -> Pointers {
    const HAS_STRUCTURE: u64 = 1 << 3;
    const IS_REGISTERED: u64 = 1 << 6;
    match flags & (HAS_STRUCTURE | IS_REGISTERED) {
        0 => &[(4, Counted(Read, Long(5), 1))],
        HAS_STRUCTURE => &[(4, Structure(&layouts::SIGNALS_AND_TIME))],
        _ => NONE,
    }
}

/// name_to_handle_at, whose number of a mount is long if that is wanted.
pub(super) fn name_to_handle_at(flags: u64) -> Pointers {
    const UNIQUE: u64 = 1;
    if flags & UNIQUE == 0 {
        &[(1, Text), (2, Tailed(Any, layouts::HANDLE)), (3, Bytes(Store, 4))]
    } else {
        &[(1, Text), (2, Tailed(Any, layouts::HANDLE)), (3, Bytes(Store, 8))]
    }
}
