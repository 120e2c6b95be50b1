//! The data path of `vmio run --mode`: reads and overwrites of leased files are copies from and to a mapping of the file, and Linux does
//! everything else. This is SplitFS's division of work (thesis §4.5).
//!
//! At first Linux serves a file that the process opens. After some reads or writes by one *description* (an open file description: the
//! state that duplicated descriptors share), the `lease_manager` checks that the file lies under one of the folders and takes a lease on
//! it. Linux grants a lease only if no other process writes to the file. While the description is *leased*, vmio keeps its position
//! and copies bytes within the known length. A process that opens the file, or cuts it by its path, waits until Linux has the lease
//! back. From then on Linux serves the description for good. The same happens before anybody else can use the description: a child by
//! fork, a program after exec, a stream of the C library. So no call ever sees or leaves other bytes than it would without vmio.
//!
//! With `--cache` leased files are *cached*: their bytes are in the process's own vmio cache, in place of Linux's page cache
//! (`cached_file`). Written bytes go to Linux before the lease does, so that nobody else can ask Linux for them too early.
//!
//! In threads of the program's nothing here allocates or waits for a lock, since signal handlers make these calls, too. The exceptions
//! are cached files while more of the file is mapped or written back: those calls wait for each other with signals blocked, and may
//! allocate.

mod answer;
mod append_turns;
mod cached_file;
mod call;
mod calls;
mod description;
mod description_table;
mod descriptors;
mod known_length;
mod lease;
mod lease_manager;
mod lease_messages;
mod lease_requests;
mod leased_backing;
mod leased_file;
mod mode;
mod opened;
mod own_descriptor;
mod report;
mod strict;
mod strict_calls;
mod transfer;
mod unserved_descriptions;
mod unserved_reason;

pub(crate) use call::flags;
pub(crate) use calls::{
    before_kernel_maps, before_kernel_reads, before_kernel_truncates, before_kernel_writes, lseek, read, sync, write,
};
pub(crate) use description_table::is_alone;
pub(crate) use descriptors::{
    Suspension, closed, closed_range, duplicated, opened_elsewhere, replacing, retry_after_returning_leases,
    stop_serving, stop_serving_range, suspend, taken_by_stream, write_back_all,
};
pub(crate) use lease_manager::{reset_in_child, start};
pub(crate) use lease_requests::{close_logs, replay_before_changes};
pub(crate) use mode::{has_cache, is_on, is_strict};
pub(crate) use opened::opened;
pub(crate) use report::{exec_failed, report};
pub(crate) use strict::opening_logs;
pub(crate) use transfer::Way;
pub(crate) use unserved_descriptions::AllUnserved;
