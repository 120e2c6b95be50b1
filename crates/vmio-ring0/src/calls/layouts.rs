//! Structures of calls that have pointers of their own.

use crate::calls::memory::Use::{Any, Read, Store};
use crate::calls::pointers::{At, Layout, Tail, Target};

use Target::{Bytes, Counted, Structures};

const TIMESPEC: usize = size_of::<libc::timespec>();

/// iovec of writev(2), and of readv(2).
pub(super) const READ: &Layout = &Layout { bytes: 16, usage: Read, fields: &[(0, Counted(Read, At::bytes(8, 8), 1))] };
pub(super) const STORED: &Layout =
    &Layout { bytes: 16, usage: Read, fields: &[(0, Counted(Store, At::bytes(8, 8), 1))] };

const MESSAGE: usize = size_of::<libc::msghdr>();
const OF_MANY: usize = size_of::<libc::mmsghdr>();
/// The name, the vectors and the control data of a message.
const SENT_FIELDS: &[(usize, Target)] = &[
    (0, Counted(Read, At::bytes(8, 4), 1)),
    (16, Structures(READ, At::bytes(24, 8))),
    (32, Counted(Read, At::bytes(40, 8), 1)),
];
const RECEIVED_FIELDS: &[(usize, Target)] = &[
    (0, Counted(Store, At::bytes(8, 4), 1)),
    (16, Structures(STORED, At::bytes(24, 8))),
    (32, Counted(Store, At::bytes(40, 8), 1)),
];
/// msghdr of sendmsg(2), and of recvmsg(2).
pub(super) const SENT: Layout = Layout { bytes: MESSAGE, usage: Read, fields: SENT_FIELDS };
pub(super) const RECEIVED: Layout = Layout { bytes: MESSAGE, usage: Any, fields: RECEIVED_FIELDS };
/// mmsghdr: the same with a length behind it, which the call stores.
pub(super) const SENT_OF_MANY: Layout = Layout { bytes: OF_MANY, usage: Any, fields: SENT_FIELDS };
pub(super) const RECEIVED_OF_MANY: Layout = Layout { bytes: OF_MANY, usage: Any, fields: RECEIVED_FIELDS };

/// The last argument of pselect6 and io_pgetevents: a set of signals and its length.
pub(super) const SIGNALS: Layout = Layout { bytes: 16, usage: Read, fields: &[(0, Bytes(Read, 8))] };
/// io_uring_getevents_arg: a set of signals and a time.
pub(super) const SIGNALS_AND_TIME: Layout =
    Layout { bytes: 24, usage: Read, fields: &[(0, Bytes(Read, 8)), (16, Bytes(Read, TIMESPEC))] };
/// futex_waitv: the word to wait for.
pub(super) const AWAITED: Layout = Layout { bytes: 24, usage: Read, fields: &[(8, Bytes(Read, 4))] };
/// A pointer to an iocb, where the kernel leaves a mark.
pub(super) const REQUEST: Layout = Layout { bytes: 8, usage: Read, fields: &[(0, Bytes(Any, 64))] };
/// xattr_args: a value that is set, and one that is got.
pub(super) const VALUE_READ: Layout =
    Layout { bytes: 16, usage: Read, fields: &[(0, Counted(Read, At::bytes(8, 4), 1))] };
pub(super) const VALUE_STORED: Layout =
    Layout { bytes: 16, usage: Read, fields: &[(0, Counted(Store, At::bytes(8, 4), 1))] };
/// kexec_segment.
pub(super) const SEGMENT: Layout = Layout { bytes: 32, usage: Read, fields: &[(0, Counted(Read, At::bytes(8, 8), 1))] };
/// sock_fprog: a filter of instructions.
pub(super) const FILTER: Layout = Layout { bytes: 16, usage: Read, fields: &[(8, Counted(Read, At::bytes(0, 2), 8))] };
/// sigevent of mq_notify(3): its value leads to a cookie where a thread is to be told.
pub(super) const NOTICE: Layout =
    Layout { bytes: size_of::<libc::sigevent>(), usage: Read, fields: &[(0, Bytes(Read, 32))] };
/// prctl_mm_map, with the auxiliary vector.
pub(super) const MEMORY_MAP: Layout =
    Layout { bytes: 104, usage: Read, fields: &[(88, Counted(Read, At::bytes(96, 4), 1))] };
/// ifconf: a list of interfaces.
pub(super) const INTERFACES: Layout =
    Layout { bytes: 16, usage: Any, fields: &[(8, Counted(Store, At::bytes(0, 4), 1))] };
/// nvme_passthru_cmd, and the same with a result of 64 bits: data and metadata go either way.
pub(super) const NVME_COMMAND: Layout = Layout { bytes: 72, usage: Any, fields: NVME_FIELDS };
pub(super) const NVME_COMMAND_64: Layout = Layout { bytes: 80, usage: Any, fields: NVME_FIELDS };
const NVME_FIELDS: &[(usize, Target)] =
    &[(16, Counted(Any, At::bytes(32, 4), 1)), (24, Counted(Any, At::bytes(36, 4), 1))];

/// sched_attr, perf_event_attr and mnt_id_req begin with their length, or have it behind their first word. Zero is that of the first version.
pub(super) const SCHEDULING: Tail = Tail { least: 48, head: 0, count: At::bytes(0, 4), size: 1 };
pub(super) const EVENT: Tail = Tail { least: 64, head: 0, count: At::bytes(4, 4), size: 1 };
pub(super) const MOUNT: Tail = Tail { least: 24, head: 0, count: At::bytes(0, 4), size: 1 };
/// file_handle.
pub(super) const HANDLE: Tail = Tail { least: 8, head: 8, count: At::bytes(0, 4), size: 1 };
/// fiemap, fsmap_head and file_dedupe_range: extents, records and targets behind them.
pub(super) const EXTENTS: Tail = Tail { least: 32, head: 32, count: At::bytes(24, 4), size: 56 };
pub(super) const RECORDS: Tail = Tail { least: 192, head: 192, count: At::bytes(8, 4), size: 64 };
pub(super) const TARGETS: Tail = Tail { least: 24, head: 24, count: At::bytes(16, 2), size: 32 };
