//! The descriptors of regular files that the process has opened, and their descriptions.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens, seek};
use rustix::io::Errno;
use vmio::SignalsBlocked;

use super::cached_file::CachedFile;
use super::call::Call;
use super::description::{Description, State};
use super::lease;
use super::lease_manager;
use super::leased_file::{Counts, LeasedFile};
use super::mode;
use super::report;
use crate::entry;
use crate::file::identity_of;
use crate::locks;
use crate::settings::Settings;

/// Descriptors with larger numbers are not served.
const DESCRIPTORS: usize = 1 << 16;
/// The size of the table of descriptions: further files are not served.
const DESCRIPTIONS: usize = 1 << 13;
/// The standard streams: the C library reads and writes them without calling its own exported names.
const STREAMS: RangeInclusive<RawFd> = 0..=2;

/// The number of a descriptor's description, from 1; 0 if it has none.
static NUMBERS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
static ALL: [Description; DESCRIPTIONS] = [const { Description::new() }; DESCRIPTIONS];
/// Where the search for a free description begins.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// No description with a larger number has been used yet.
static USED: AtomicU32 = AtomicU32::new(0);
/// Leases returned so far.
static LEASES_RETURNED: AtomicU64 = AtomicU64::new(0);
/// No descriptor with a larger number has had a description yet.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
/// Whether the program has closed a descriptor of a leased file without our noticing: it may do so again at any time.
static CLOSES_UNNOTICED: AtomicBool = AtomicBool::new(false);

fn number(fd: RawFd) -> Option<&'static AtomicU32> {
    NUMBERS.get(usize::try_from(fd).ok()?)
}

/// The description of a descriptor.
pub(crate) fn of_descriptor(fd: RawFd) -> Option<&'static Description> {
    match number(fd)?.load(Ordering::SeqCst) {
        0 => None,
        number => ALL.get(number as usize - 1),
    }
}

/// The flags of a descriptor that `ask` returns, without those that vmio has set.
pub(crate) fn flags(fd: RawFd, ask: impl FnOnce() -> c_int) -> c_int {
    // While the call lasts nobody takes or returns a lease of it.
    let call = Call::begin(fd);
    let flags = ask();
    let is_leased = call.is_some_and(|call| call.leased().is_some());
    let has_dsync = of_descriptor(fd).is_some_and(|description| description.hides_dsync.load(Ordering::Relaxed));
    let own = [(is_leased, libc::O_ASYNC), (has_dsync, libc::O_DSYNC)];
    own.iter().filter(|(is_set, _)| *is_set && flags >= 0).fold(flags, |flags, (_, own)| flags & !own)
}

/// Whether a write by a descriptor could not be passed on to the kernel: every fsync fails from then on.
pub(super) fn has_lost_writes(fd: RawFd) -> bool {
    of_descriptor(fd).is_some_and(|description| description.has_lost_writes.load(Ordering::Relaxed))
}

/// Whether no other descriptor shares the description of this one, as far as is known.
pub(crate) fn is_alone(fd: RawFd) -> bool {
    of_descriptor(fd).is_some_and(|description| description.descriptors() == 1)
}

/// Whether the program was found to close descriptors without our noticing.
pub(super) fn has_closed_unnoticed() -> bool {
    CLOSES_UNNOTICED.load(Ordering::Relaxed)
}

/// Whether anything is known of a descriptor.
pub(super) fn is_known(fd: RawFd) -> bool {
    of_descriptor(fd).is_some()
}

/// Whether a descriptor is known to be that of a file under none of the folders.
pub(super) fn is_outside(fd: RawFd) -> bool {
    of_descriptor(fd).is_some_and(|description| description.is_outside.load(Ordering::Relaxed))
}

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
fn is_vfork_child() -> bool {
    if mode::is_in_this_process() {
        return false;
    }
    stop_serving_all();
    true
}

/// Records that the process has opened a file.
pub(crate) fn opened(fd: RawFd, hides_dsync: bool) {
    let Some(number) = number(fd).filter(|_| !STREAMS.contains(&fd) && !is_vfork_child()) else { return };
    opened_elsewhere(fd);
    // SAFETY: the program has just opened it.
    if !lease_manager::start_for(unsafe { BorrowedFd::borrow_raw(fd) }) {
        return;
    }
    if let Some((index, description)) = free() {
        description.hides_dsync.store(hides_dsync, Ordering::Relaxed);
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
        number.store(index + 1, Ordering::SeqCst);
    }
}

/// Forgets the former file of a number by which the C library has opened a file: it was closed without our noticing.
pub(crate) fn opened_elsewhere(fd: RawFd) {
    if let Some(description) = of_descriptor(fd) {
        found_closed(fd, description);
    }
}

/// Records an unknown descriptor that the process writes by: inherited, or opened by the C library.
pub(super) fn adopt(fd: RawFd) -> Option<&'static Description> {
    let number = number(fd)?;
    let (index, description) = free()?;
    description.change(State::Unleased, State::Linux);
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    match number.compare_exchange(0, index + 1, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Some(description),
        Err(_) => {
            description.unshare();
            of_descriptor(fd)
        }
    }
}

/// A free description, and its index.
fn free() -> Option<(u32, &'static Description)> {
    let start = NEXT.load(Ordering::Relaxed);
    let all = (0..DESCRIPTIONS as u32).map(|at| (start + at) % DESCRIPTIONS as u32);
    let found = all.map(|index| (index, &ALL[index as usize])).find(|(_, description)| description.take())?;
    NEXT.store(found.0 + 1, Ordering::Relaxed);
    USED.fetch_max(found.0 + 1, Ordering::Relaxed);
    Some(found)
}

/// Records a duplicate of a descriptor. We know of the close of the number's former file.
pub(crate) fn duplicated(fd: RawFd, duplicate: RawFd) {
    if is_vfork_child() {
        return;
    }
    let Some(number) = number(duplicate) else {
        // The kernel would serve the duplicate, at a position of its own.
        return stop_serving(fd);
    };
    opened_elsewhere(duplicate);
    if STREAMS.contains(&duplicate) {
        // The C library moves the position of such a description.
        stop_serving(fd);
    } else if let Some(description) = of_descriptor(fd) {
        description.share();
        let same = self::number(fd).map_or(0, |number| number.load(Ordering::SeqCst));
        HIGHEST.fetch_max(duplicate as u32, Ordering::Relaxed);
        number.store(same, Ordering::SeqCst);
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
        CLOSES_UNNOTICED.store(true, Ordering::Relaxed);
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

fn known_in(fds: RangeInclusive<u32>) -> impl Iterator<Item = RawFd> {
    let end = (*fds.end()).min(DESCRIPTORS as u32 - 1);
    (*fds.start()..=end).map(|fd| fd as RawFd).filter(|fd| is_known(*fd))
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
    let Some(number) = number(fd) else { return };
    let index = number.swap(0, Ordering::SeqCst);
    let Some(description) = ALL.get((index as usize).wrapping_sub(1)) else { return };
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
            lease_manager::find_closed();
        }
    }
}

/// Finds descriptors that the program has closed without our noticing, and closes vmio's own descriptors of their files.
pub(super) fn find_closed() {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) as RawFd {
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
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        if description.is_left_over()
            && let Some(own) = description.own.get()
            && fstat(own).is_ok_and(|stat| !locks::is_locked_by_program(identity_of(&stat)))
        {
            description.own.close();
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
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        end_lease(description, Until::Forever);
    }
}

/// Closes vmio's own descriptors in a forked child, where nothing is leased: nobody finishes changes that other threads of the parent were
/// making.
pub(super) fn reset_in_child() {
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        description.abandon();
        description.own.close();
    }
}

/// Returns the leases that the kernel is breaking, and calls a function before each. With `--when-shared refuse` the other process's open
/// fails, and vmio may lease the file again.
pub(super) fn return_broken_leases(report: impl Fn(BorrowedFd<'_>)) {
    let until = if Settings::refuse_shared() { Until::NextLease } else { Until::Forever };
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
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
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        while matches!(description.state(), State::Leasing | State::Returning) {
            std::thread::yield_now();
        }
    }
    // This is a thread of the program's, which may not allocate.
    return_broken_leases(|_| ());
    if LEASES_RETURNED.load(Ordering::SeqCst) == before { outcome } else { open() }
}

/// Adds the counts of leased descriptions.
pub(super) fn add_counts(total: &Counts) {
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        description.begin();
        // A thread that returns the lease from here on waits for `end`.
        if description.state() == State::Leased
            && let Some(counts) = description.leased().and_then(LeasedFile::counts)
        {
            total.absorb(counts);
        }
        description.end();
    }
}

/// Writes back the bytes that calls have written on any description. Waits for leases that threads are returning. Returns the first error.
pub(crate) fn write_back_all() -> Result<(), Errno> {
    if !mode::has_cache() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
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

/// vmio's own descriptor of the file whose operations have this key in a log. When this returns the kernel has all bytes written to it.
pub(super) fn own_of_logged(key: u64) -> Option<Result<RawFd, Errno>> {
    let all = &ALL[..USED.load(Ordering::Relaxed) as usize];
    let found = all.iter().find(|description| description.log_key.load(Ordering::Acquire) == key)?;
    // A thread that removes the descriptor retires the file first, and waits for the log.
    let written = found.leased().map_or(Ok(()), LeasedFile::write_back);
    Some(written.and_then(|()| Ok(found.own.get().ok_or(Errno::BADF)?.as_raw_fd())))
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
        unsafe { lease_manager::dispose(description.take_leased()) };
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
            report::not_written(fd, error);
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
            report::not_retired(fd, error);
        }
    }
    let _ = seek(fd, SeekFrom::Start(description.position.load(Ordering::Relaxed)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A call that has begun on a cached file would else read from the kernel bytes that are not written back yet.
    #[test]
    fn a_call_that_began_with_a_lease_keeps_it_while_the_lease_is_returned() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let (index, description) = free().unwrap();
        number(fd).unwrap().store(index + 1, Ordering::SeqCst);
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
        let (index, description) = free().unwrap();
        number(fd).unwrap().store(index + 1, Ordering::SeqCst);
        lease_manager::start();
        duplicated(fd, DESCRIPTORS as RawFd);
        assert!(description.state() == State::Linux);
        forget(fd, Own::ClosedLater);
    }
}
