//! The files that the process opens.

use std::os::fd::{BorrowedFd, RawFd};

use super::description_table;
use super::descriptors::{is_vfork_child, opened_elsewhere};
use super::lease_manager;

/// Records that the process has opened a file.
pub(crate) fn opened(fd: RawFd, hides_dsync: bool) {
    if !description_table::has_place(fd) || description_table::is_stream(fd) || is_vfork_child() {
        return;
    }
    opened_elsewhere(fd);
    // SAFETY: the program has just opened it.
    if !lease_manager::start_for(unsafe { BorrowedFd::borrow_raw(fd) }) {
        return;
    }
    description_table::insert(fd, hides_dsync);
}
