//! SplitFS's data path (thesis §4.5): reads and overwrites are copies from and to the kernel's shared mapping of a file, and
//! everything else is the kernel file system's.
//!
//! A file that the process opens is the kernel's at first. Once some calls have read or written it by one *description* (an open file
//! description: what duplicated descriptors share), the `lease_manager` looks whether it lies under one of the folders and takes a lease on
//! it, which nobody gets who shares the file with a writer. While there is a lease the description is *warm*: its position is
//! counted here, and what lies within the length that is known is copied. Whoever opens the file, or changes its length by its path,
//! waits for the kernel to have the lease back; the description is left to Linux then, for good, and so it is before anybody else can
//! get at it (fork, exec, a stream of the C library's). So no call ever sees or leaves other bytes than it would without.
//!
//! With `--cache` the bytes of a leased file are in frames of a vmio cache of the process's in place of the kernel's page cache
//! (`cached_file`): what was written is handed to the kernel before anybody else can ask it, with the lease.
//!
//! Nothing here allocates or waits for a lock in a thread of the program's: what it does, signal handlers do, too. The exceptions are
//! a file in frames of which more is mapped, or that is written back: they wait for each other, with signals blocked, and seldom allocate.

mod all_left;
mod answer;
mod cached_file;
mod calls;
mod description;
mod descriptors;
mod lease_manager;
mod leased_file;
mod own_descriptor;
mod refusal;
mod report;
mod strict;
mod strict_calls;
mod warm;

pub(crate) use all_left::AllLeft;
pub(crate) use calls::{Way, changes, lseek, maps, read, reads, synced, write};
pub(crate) use descriptors::{
    Held, closed, closed_range, duplicated, flags, give_way_to, given_away, held, is_alone, leave, leave_range, opened,
    opened_elsewhere, replacing, write_back_all,
};
pub(crate) use lease_manager::{begin_anew, close_logs, has_frames, is_on, is_strict, replay_before_changes, start};
pub(crate) use report::{goes_on, report};
pub(crate) use strict::opening_logs;
