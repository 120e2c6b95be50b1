//! The messages about leases.

use std::fmt;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::unserved_reason::UnservedReason;
use crate::messages;
use crate::settings::Settings;

/// Says that this process cannot build the cache of `--cache`.
pub(super) fn no_cache(error: &vmio::Error) {
    messages::say(format_args!("cannot build the cache, so reads and writes use the page cache: {error}"));
}

/// Says that a file lacks bytes that the program wrote to it, after the return of a lease.
pub(super) fn not_written(fd: BorrowedFd<'_>, error: Errno) {
    say(fd, format_args!("could not be written ({error}): some of the program's writes to it are lost"));
}

/// Says that vmio could not write or flush a file before it returned the lease: the file's log must be replayed.
pub(super) fn not_retired(fd: BorrowedFd<'_>, error: Errno) {
    say(fd, format_args!("could not be written or flushed ({error}); its log keeps the writes: run vmio recover"));
}

/// Says with `--verbose` whether the process reads and writes a file without system calls from here on.
pub(super) fn lease_tried(fd: BorrowedFd<'_>, taken: Result<(), UnservedReason>) {
    if !is_verbose() {
        return;
    }
    match taken {
        Ok(()) => say(fd, format_args!("is read and written without system calls")),
        Err(UnservedReason::NotAsked) => {}
        Err(reason) => say(fd, format_args!("is not served: {reason}")),
    }
}

/// Says with `--verbose` that another process uses the file, too. If the descriptor's number is another file's by now, the message names
/// that file.
pub(super) fn lease_broken(fd: BorrowedFd<'_>) {
    if is_verbose() {
        say(fd, format_args!("is not served any more: it was opened elsewhere"));
    }
}

fn is_verbose() -> bool {
    Settings::of_this_process().is_some_and(|settings| settings.is_verbose)
}

fn say(fd: BorrowedFd<'_>, what: fmt::Arguments<'_>) {
    let path = Settings::of_this_process().and_then(|settings| settings.path_under(fd));
    messages::say(format_args!("{} {what}", path.unwrap_or_default().display()));
}
