//! The end of leases, and what becomes of the descriptors of regular files that the process has opened.

use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens, seek};
use rustix::io::Errno;
use vmio::SignalsBlocked;

use super::cached_file::CachedFile;
use super::description::{Description, State};
use super::description_table::{self, is_known, known_in, of_descriptor, used};
use super::lease;
use super::lease_messages;
use super::lease_requests;
use super::leased_file::LeasedFile;
use super::mode;
use crate::entry;
use crate::file::identity_of;
use crate::locks;
use crate::settings::Settings;

/// Leases returned so far.
static LEASES_RETURNED: AtomicU64 = AtomicU64::new(0);

/// How long Linux serves a description.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until a lease is worth taking again.
    NextLease,
    /// For good: other processes may use it from now on.
    Forever,
}

/// Whether the caller is a child by vfork. It shares its parent's memory until it runs another program, but has descriptors of its own, so
/// its calls say nothing about its parent's. Linux serves all descriptions of both from here on.
pub(super) fn is_vfork_child() -> bool {
    if mode::is_in_this_process() {
        return false;
    }
    stop_serving_all();
    true
}

/// Forgets the former file of a number by which the C library has opened a file: it was closed without our noticing.
pub(crate) fn opened_elsewhere(fd: RawFd) {
    if let Some(description) = of_descriptor(fd) {
        found_closed(fd, description);
    }
}

/// Records a duplicate of a descriptor. We know of the close of the number's former file.
pub(crate) fn duplicated(fd: RawFd, duplicate: RawFd) {
    if is_vfork_child() {
        return;
    }
    if !description_table::has_place(duplicate) {
        // The kernel would serve the duplicate, at a position of its own.
        return stop_serving(fd);
    }
    opened_elsewhere(duplicate);
    if description_table::is_stream(duplicate) {
        // The C library moves the position of such a description.
        stop_serving(fd);
    } else if let Some(description) = of_descriptor(fd) {
        description.share();
        description_table::insert_duplicate(fd, duplicate);
    }
}

/// Prepares for the replacement of a descriptor. The call may fail, and then leaves the descriptor as it is.
pub(crate) fn replacing(fd: RawFd) {
    if let Some(description) = of_descriptor(fd).filter(|description| description.descriptors() == 1) {
        end_lease(description, Until::Forever);
    }
}

/// Forgets a descriptor that the process is about to close, by a call that does not fail, or has replaced.
pub(crate) fn closed(fd: RawFd) {
    if is_known(fd) && !is_vfork_child() {
        replacing(fd);
        forget(fd, Own::Closed);
    }
}

/// Leaves a descriptor to a stream of the C library, which closes it by itself.
pub(crate) fn taken_by_stream(fd: RawFd) {
    if is_known(fd) && !is_vfork_child() {
        stop_serving(fd);
        forget(fd, Own::ClosedLater);
    }
}

/// Forgets a descriptor that was closed without our noticing, and no longer refers to its description.
pub(super) fn found_closed(fd: RawFd, description: &'static Description) {
    if description.state() == State::Leased {
        description_table::note_closed_unnoticed();
    }
    // Unless we have noticed meanwhile.
    if !is_vfork_child() && of_descriptor(fd).is_some_and(|now| std::ptr::eq(now, description)) {
        forget(fd, Own::ClosedLater);
    }
}

/// Forgets all descriptors of a range that the process is about to close, by a call that does not fail.
pub(crate) fn closed_range(fds: RangeInclusive<u32>) {
    known_in(fds).for_each(closed);
}

/// Stops serving all descriptors of a range, for good.
pub(crate) fn stop_serving_range(fds: RangeInclusive<u32>) {
    known_in(fds).for_each(stop_serving);
}

/// When to close vmio's own descriptor, once the program loses its last one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    /// At once: the program is about to lose its record locks on the file in any case.
    Closed,
    /// Later: the lease manager closes it once the program has no record locks on the file.
    ClosedLater,
}

/// Forgets a descriptor that is closed, is about to be, or is a stream's.
fn forget(fd: RawFd, own: Own) {
    let Some(description) = description_table::take_out(fd) else { return };
    if description.unshare_one_of_several() {
        return;
    }
    end_lease(description, Until::Forever);
    let has_own = description.own.get().is_some();
    if has_own && own == Own::Closed {
        description.own.close();
        description.unshare();
    } else {
        description.unshare();
        if has_own {
            lease_requests::find_closed();
        }
    }
}

/// Finds descriptors that the program has closed without our noticing, and closes vmio's own descriptors of their files.
pub(super) fn find_closed() {
    for fd in 0..=description_table::highest() {
        let Some(description) = of_descriptor(fd).filter(|description| description.own.get().is_some()) else {
            continue;
        };
        // So that the slot is not used again meanwhile.
        description.begin();
        let is_known = || of_descriptor(fd).is_some_and(|now| std::ptr::eq(now, description));
        let is_closed = is_known() && description.own.get().is_some() && !description.own.is_same(fd) && is_known();
        description.end();
        if is_closed {
            found_closed(fd, description);
        }
    }
    for description in used() {
        if description.is_left_over()
            && let Some(own) = description.own.get()
            && let Ok(stat) = fstat(own)
        {
            locks::unless_locked(identity_of(&stat), || description.own.close());
        }
    }
}

/// Stops serving a descriptor's description for good: the kernel gets its position.
pub(crate) fn stop_serving(fd: RawFd) {
    if let Some(description) = of_descriptor(fd) {
        end_lease(description, Until::Forever);
    }
}

/// Keeps a description without a lease while Linux does a call on its file, from the kernel's own position.
#[must_use = "the kernel's call is still to come"]
pub(crate) struct Suspension(Option<&'static Description>);

impl Drop for Suspension {
    fn drop(&mut self) {
        if let Some(description) = self.0 {
            description.resume();
        }
    }
}

/// Suspends serving a descriptor's description, for a call that Linux does.
pub(crate) fn suspend(fd: RawFd) -> Suspension {
    let suspension = Suspension(of_descriptor(fd));
    if let Some(description) = suspension.0 {
        // First, so that the lease manager gives up a lease that it begins to take from here on.
        description.suspend();
        end_lease(description, Until::NextLease);
    }
    suspension
}

/// Stops serving all descriptions, for good.
pub(super) fn stop_serving_all() {
    for description in used() {
        end_lease(description, Until::Forever);
    }
}

/// Returns the leases that the kernel is breaking, and calls a function before each. With `--when-shared refuse` the other process's open
/// fails, and vmio may lease the file again.
pub(super) fn return_broken_leases(report: impl Fn(BorrowedFd<'_>)) {
    let until = if Settings::refuse_shared() { Until::NextLease } else { Until::Forever };
    for description in used() {
        if description.state() == State::Leased && lease::is_being_broken(description) {
            description.own.get().map(&report);
            end_lease(description, until);
        }
    }
}

/// Tries an open that does not wait for leases. If a lease of this process stood in the way, returns that lease and tries again. Does not
/// find out whether another process has returned a lease meanwhile.
pub(crate) fn retry_after_returning_leases<T>(open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let before = LEASES_RETURNED.load(Ordering::SeqCst);
    let outcome = open();
    if !matches!(outcome, Err(Errno::WOULDBLOCK)) {
        return outcome;
    }
    for description in used() {
        while matches!(description.state(), State::Leasing | State::Returning) {
            std::thread::yield_now();
        }
    }
    // This is a thread of the program's, which may not allocate.
    return_broken_leases(|_| ());
    if LEASES_RETURNED.load(Ordering::SeqCst) == before { outcome } else { open() }
}

/// Writes back the bytes that calls have written on any description. Waits for leases that threads are returning. Returns the first error.
pub(crate) fn write_back_all() -> Result<(), Errno> {
    if !mode::has_cache() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for description in used() {
        loop {
            description.begin();
            let state = description.state();
            if state == State::Leased {
                outcome = outcome.and(description.leased().map_or(Ok(()), LeasedFile::write_back));
            }
            description.end();
            if !matches!(state, State::Leasing | State::Returning) {
                break;
            }
            std::thread::yield_now();
        }
    }
    outcome
}

/// Whether Linux serves a description, or does so from now on because there was no lease.
fn is_unserved(description: &Description, until: Until) -> bool {
    match description.state() {
        State::Linux | State::Free => true,
        State::Unleased => until == Until::NextLease || description.change(State::Unleased, State::Linux),
        State::Leasing | State::Leased | State::Returning => false,
    }
}

/// Returns the lease of a description, if there is one: its bytes, position and times go to the kernel first.
fn end_lease(description: &'static Description, until: Until) {
    // Most are not leased: two more system calls for each would slow every fork.
    if is_unserved(description, until) {
        return;
    }
    // A signal handler that comes here must not wait for the thread that it has interrupted.
    let _signals = SignalsBlocked::new();
    while !description.change(State::Leased, State::Returning) {
        if is_unserved(description, until) {
            return;
        }
        if matches!(description.state(), State::Leasing | State::Returning) {
            std::thread::yield_now();
        }
    }
    LEASES_RETURNED.fetch_add(1, Ordering::SeqCst);
    let is_quiet = description.drain();
    let written = description.leased().and_then(LeasedFile::cached).map_or(Ok(()), CachedFile::give_up);
    let own = description.own.get();
    if let Some(own) = own {
        bring_kernel_up_to_date(description, own, written);
    }
    description.log_key.store(0, Ordering::Release);
    if is_quiet {
        // SAFETY: no call is under way, and none can begin.
        unsafe { lease_requests::dispose(description.take_leased()) };
    }
    if let Some(own) = own {
        lease::give_back(own);
    }
    description.ask_again();
    description
        .change(State::Returning, if until == Until::Forever || !is_quiet { State::Linux } else { State::Unleased });
}

/// Gives the kernel the position and times of a description, and retires its log. `written` says whether its cached bytes are
/// written.
fn bring_kernel_up_to_date(description: &Description, fd: BorrowedFd<'_>, written: Result<(), Errno>) {
    let logged = description.leased().and_then(LeasedFile::logged);
    if let Err(error) = written {
        description.has_lost_writes.store(true, Ordering::Relaxed);
        if logged.is_none() {
            lease_messages::not_written(fd, error);
        }
    }
    if description.leased().is_some_and(LeasedFile::has_stored) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        // As writes do. A process without the right to set times has not stored either.
        let _ = futimens(fd, &Timestamps { last_access: same, last_modification: now });
    }
    if let Some(logged) = logged {
        // Nobody may see these writes undone from now on. If the file cannot be written or flushed, the log keeps them.
        if let Err(error) = written.and_then(|()| entry::as_vmio_undisturbed(|| logged.retire(fd))) {
            entry::as_vmio_undisturbed(|| logged.keep());
            lease_messages::not_retired(fd, error);
        }
    }
    let _ = seek(fd, SeekFrom::Start(description.position.load(Ordering::Relaxed)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;
    use crate::leased::call::Call;
    use crate::leased::lease_manager;

    /// A call that has begun on a cached file would else read from the kernel bytes that are not written back yet.
    #[test]
    fn a_call_that_began_with_a_lease_keeps_it_while_the_lease_is_returned() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        description_table::insert(fd, false);
        let description = of_descriptor(fd).unwrap();
        let unleased = Call::begin(fd).unwrap();
        assert!(unleased.leased().is_none());
        drop(unleased);

        assert!(description.change(State::Unleased, State::Leasing));
        description.own.take(file.as_fd()).unwrap();
        description.put_leased(Box::new(LeasedFile::of_writes_alone()));
        assert!(description.change(State::Leasing, State::Leased));
        let call = Call::begin(fd).unwrap();
        assert!(call.leased().is_some() && call.is_still_leased());
        assert!(description.change(State::Leased, State::Returning));
        assert!(call.leased().is_some() && !call.is_still_leased());
        drop(call);

        // SAFETY: it is the box from above, and nobody has it any more.
        drop(unsafe { Box::from_raw(description.take_leased()) });
        assert!(description.change(State::Returning, State::Linux));
        assert!(Call::begin(fd).is_none());
        forget(fd, Own::ClosedLater);
        assert!(description.state() == State::Free && description.is_left_over());
        find_closed();
        assert!(description.own.get().is_none(), "the program has no lock on the file");
    }

    /// A duplicate of a large number is not followed: it would have a position of its own.
    #[test]
    fn a_description_with_a_duplicate_of_a_large_number_is_the_kernels() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        description_table::insert(fd, false);
        let description = of_descriptor(fd).unwrap();
        lease_manager::start();
        duplicated(fd, description_table::DESCRIPTORS as RawFd);
        assert!(description.state() == State::Linux);
        forget(fd, Own::ClosedLater);
    }
}
