//! The descriptors of regular files that the process has opened, and their descriptions.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens, seek};
use rustix::io::Errno;
use vmio::SignalsBlocked;

use super::cached_file::CachedFile;
use super::description::{Description, State};
use super::lease_manager;
use super::report;
use super::warm::{Counts, Warm};
use crate::entry;
use crate::file::identity_of;
use crate::locks;
use crate::settings::Settings;

/// Descriptors with larger numbers are left to Linux.
const DESCRIPTORS: usize = 1 << 16;
/// Descriptions, likewise.
const DESCRIPTIONS: usize = 1 << 13;
/// The standard streams: the C library reads and writes them past its own names.
const STREAMS: RangeInclusive<RawFd> = 0..=2;

/// The number of a descriptor's description, from 1; 0 if it has none.
static NUMBERS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
static ALL: [Description; DESCRIPTIONS] = [const { Description::new() }; DESCRIPTIONS];
/// Where to look for a free one.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// No description with a larger number has been used yet.
static USED: AtomicU32 = AtomicU32::new(0);
/// How often one that was warm has been left.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// No descriptor with a larger number has had a description yet.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
/// Whether the program has closed a descriptor of a warm file in a way that nobody tells us of: it may do so at any time.
static CLOSES_UNSEEN: AtomicBool = AtomicBool::new(false);

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

/// The flags of a descriptor, as `ask` tells them, but for those that are there without the program's doing.
pub(crate) fn flags(fd: RawFd, ask: impl FnOnce() -> c_int) -> c_int {
    // As long as there is the call nobody takes a lease of it or gives one back.
    let call = Call::begin(fd);
    let flags = ask();
    let is_leased = call.is_some_and(|call| call.warm().is_some());
    let has_dsync = of_descriptor(fd).is_some_and(|description| description.hides_dsync.load(Ordering::Relaxed));
    let hidden = [(is_leased, libc::O_ASYNC), (has_dsync, libc::O_DSYNC)];
    hidden.iter().filter(|(is_there, _)| *is_there && flags >= 0).fold(flags, |flags, (_, hidden)| flags & !hidden)
}

/// Whether something that was written by a descriptor could not be handed to the kernel: every fsync says so from then on.
pub(super) fn has_lost_writes(fd: RawFd) -> bool {
    of_descriptor(fd).is_some_and(|description| description.has_lost_writes.load(Ordering::Relaxed))
}

/// Whether no other descriptor shares the description of this one, as far as is known.
pub(crate) fn is_alone(fd: RawFd) -> bool {
    of_descriptor(fd).is_some_and(|description| description.descriptors() == 1)
}

/// Whether anything is known of a descriptor.
pub(super) fn is_known(fd: RawFd) -> bool {
    of_descriptor(fd).is_some()
}

/// Whether a descriptor is known to be that of a file under none of the folders.
pub(super) fn is_outside(fd: RawFd) -> bool {
    of_descriptor(fd).is_some_and(|description| description.is_outside.load(Ordering::Relaxed))
}

/// How long a description is left to Linux.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until it is worth another look.
    ItIsWarm,
    /// For good: others may have it from now on.
    TheEnd,
}

/// A call about a description, which stays what it is until the call ends: who leaves it waits for that, if it can.
pub(crate) struct Call {
    pub(super) description: &'static Description,
    pub(super) fd: RawFd,
    /// As it was when the call began. Who has begun to leave it since must not make half of the call the kernel's: that reads
    /// what is not written back yet, from a position that is not its own yet.
    warm: Option<&'static Warm>,
}

impl Call {
    /// None if there is nothing to know of the descriptor: the call is Linux's.
    pub(super) fn begin(fd: RawFd) -> Option<Self> {
        loop {
            let description = of_descriptor(fd)?;
            if description.state() == State::Linux {
                return None;
            }
            description.begin();
            let mut call = Call { description, fd, warm: None };
            let is_same = of_descriptor(fd).is_some_and(|now| std::ptr::eq(now, description));
            match description.state() {
                State::Cold if is_same => return Some(call),
                State::Warm if is_same => {
                    if call.is_of_the_same_file() {
                        call.warm = description.warm();
                        return Some(call);
                    }
                    drop(call);
                    found_closed(fd, description);
                }
                State::Linux | State::Free if is_same => return None,
                _ => {
                    drop(call);
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Whether the descriptor is still one of the description, for all that is known, which is warm. That is asked of the kernel at each call
    /// where vmio alone has something of the file, or the program was found to close descriptors without our knowing; else once a tick of the clock.
    fn is_of_the_same_file(&self) -> bool {
        let description = self.description;
        let has_bytes = lease_manager::is_strict() || description.warm().is_some_and(|warm| warm.cached().is_some());
        if has_bytes || CLOSES_UNSEEN.load(Ordering::Relaxed) {
            return description.own.is_same(self.fd);
        }
        let tick = tick();
        if description.verified_at.load(Ordering::Relaxed) == tick {
            return true;
        }
        let is_same = description.own.is_same(self.fd);
        if is_same {
            description.verified_at.store(tick, Ordering::Relaxed);
        }
        is_same
    }

    /// What there is of it, if it was warm when the call began.
    pub(super) fn warm(&self) -> Option<&Warm> {
        self.warm
    }

    /// Whether nobody has begun to leave it since.
    pub(super) fn is_still_warm(&self) -> bool {
        self.description.state() == State::Warm
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.description.end();
    }
}

/// The time, to some milliseconds, without a system call.
fn tick() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether the caller is a child that has its parent's memory until it is another program (vfork), and descriptors of its own: what it does to
/// those says nothing of its parent's. All is Linux's from here on, for both.
fn is_childs() -> bool {
    if lease_manager::is_in_this_process() {
        return false;
    }
    leave_all();
    true
}

/// The process has opened a file.
pub(crate) fn opened(fd: RawFd, hides_dsync: bool) {
    let Some(number) = number(fd).filter(|_| !STREAMS.contains(&fd) && !is_childs()) else { return };
    opened_elsewhere(fd);
    // SAFETY: the program has just opened it.
    if !lease_manager::is_there(unsafe { BorrowedFd::borrow_raw(fd) }) {
        return;
    }
    if let Some((index, description)) = free() {
        description.hides_dsync.store(hides_dsync, Ordering::Relaxed);
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
        number.store(index + 1, Ordering::SeqCst);
    }
}

/// The C library has opened something by itself. Whatever had the number was closed, and we were not told.
pub(crate) fn opened_elsewhere(fd: RawFd) {
    if let Some(description) = of_descriptor(fd) {
        found_closed(fd, description);
    }
}

/// The process writes by a descriptor that we know nothing of: it has inherited it, or the C library has opened it.
pub(super) fn adopted(fd: RawFd) -> Option<&'static Description> {
    let number = number(fd)?;
    let (index, description) = free()?;
    description.change(State::Cold, State::Linux);
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    match number.compare_exchange(0, index + 1, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Some(description),
        Err(_) => {
            description.unshare();
            of_descriptor(fd)
        }
    }
}

/// One that was nobody's, and its index.
fn free() -> Option<(u32, &'static Description)> {
    let start = NEXT.load(Ordering::Relaxed);
    let all = (0..DESCRIPTIONS as u32).map(|at| (start + at) % DESCRIPTIONS as u32);
    let found = all.map(|index| (index, &ALL[index as usize])).find(|(_, description)| description.take())?;
    NEXT.store(found.0 + 1, Ordering::Relaxed);
    USED.fetch_max(found.0 + 1, Ordering::Relaxed);
    Some(found)
}

/// The process has duplicated a descriptor, to one that it has told us is closed.
pub(crate) fn duplicated(fd: RawFd, duplicate: RawFd) {
    if is_childs() {
        return;
    }
    let Some(number) = number(duplicate) else {
        // It would be the kernel's, with a position of its own.
        return leave(fd);
    };
    opened_elsewhere(duplicate);
    if STREAMS.contains(&duplicate) {
        // The C library moves the position of such a description.
        leave(fd);
    } else if let Some(description) = of_descriptor(fd) {
        description.share();
        let same = self::number(fd).map_or(0, |number| number.load(Ordering::SeqCst));
        HIGHEST.fetch_max(duplicate as u32, Ordering::Relaxed);
        number.store(same, Ordering::SeqCst);
    }
}

/// The process is about to have a descriptor replaced, by a call that may fail: then it stays what it is.
pub(crate) fn replacing(fd: RawFd) {
    if let Some(description) = of_descriptor(fd).filter(|description| description.descriptors() == 1) {
        leave_description(description, Until::TheEnd);
    }
}

/// The process is about to close a descriptor, by a call that does not fail, or has had it replaced.
pub(crate) fn closed(fd: RawFd) {
    if is_known(fd) && !is_childs() {
        replacing(fd);
        forget(fd, Own::GoesWithIt);
    }
}

/// A stream of the C library's has a descriptor from now on, and closes it by itself.
pub(crate) fn given_away(fd: RawFd) {
    if is_known(fd) && !is_childs() {
        leave(fd);
        forget(fd, Own::Stays);
    }
}

/// A descriptor that we took for one of a description is not: it was closed, and we were not told.
fn found_closed(fd: RawFd, description: &'static Description) {
    if description.state() == State::Warm {
        CLOSES_UNSEEN.store(true, Ordering::Relaxed);
    }
    // Unless we have been told meanwhile.
    if !is_childs() && of_descriptor(fd).is_some_and(|now| std::ptr::eq(now, description)) {
        forget(fd, Own::Stays);
    }
}

/// The process is about to close all descriptors of a range, by a call that does not fail.
pub(crate) fn closed_range(fds: RangeInclusive<u32>) {
    known_in(fds).for_each(closed);
}

/// Leaves the descriptions of all descriptors of a range to Linux for good.
pub(crate) fn leave_range(fds: RangeInclusive<u32>) {
    known_in(fds).for_each(leave);
}

fn known_in(fds: RangeInclusive<u32>) -> impl Iterator<Item = RawFd> {
    let end = (*fds.end()).min(DESCRIPTORS as u32 - 1);
    (*fds.start()..=end).map(|fd| fd as RawFd).filter(|fd| is_known(*fd))
}

/// What becomes of vmio's own descriptor with the last of the program's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    /// The program is about to lose its record locks on the file in any case.
    GoesWithIt,
    /// It may have some, so that the lease manager looks before it is closed.
    Stays,
}

/// A descriptor is closed, or is about to be, or is not ours to know any more.
fn forget(fd: RawFd, own: Own) {
    let Some(number) = number(fd) else { return };
    let index = number.swap(0, Ordering::SeqCst);
    let Some(description) = ALL.get((index as usize).wrapping_sub(1)) else { return };
    if description.unshare_one_of_several() {
        return;
    }
    leave_description(description, Until::TheEnd);
    let has_own = description.own.get().is_some();
    if has_own && own == Own::GoesWithIt {
        description.own.close();
        description.unshare();
    } else {
        description.unshare();
        if has_own {
            lease_manager::look_for_closed();
        }
    }
}

/// Looks for descriptors that the program has closed without our knowing, and closes what vmio has of their files.
pub(super) fn look_for_closed() {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) as RawFd {
        let Some(description) = of_descriptor(fd).filter(|description| description.own.get().is_some()) else {
            continue;
        };
        // It becomes no other meanwhile.
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

/// Leaves a descriptor's description to Linux for good: its position is the kernel's then.
pub(crate) fn leave(fd: RawFd) {
    if let Some(description) = of_descriptor(fd) {
        leave_description(description, Until::TheEnd);
    }
}

/// As long as there is one, a description does not become warm: the kernel does a call about its file, from the position that it knows.
#[must_use = "the call is still to come"]
pub(crate) struct Held(Option<&'static Description>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(description) = self.0 {
            description.release();
        }
    }
}

/// Leaves a descriptor's description to Linux for a call of the kernel's.
pub(crate) fn held(fd: RawFd) -> Held {
    let held = Held(of_descriptor(fd));
    if let Some(description) = held.0 {
        // Before: what the lease manager begins to warm up from here on it gives up again.
        description.hold();
        leave_description(description, Until::ItIsWarm);
    }
    held
}

/// Leaves all descriptions to Linux.
pub(super) fn leave_all() {
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        leave_description(description, Until::TheEnd);
    }
}

/// In a forked child, where nothing is warm: what other threads of the parent were just doing nobody ends.
pub(super) fn belong_to_child() {
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        description.abandon();
        description.own.close();
    }
}

/// All of which the lease is being asked back; each is told of before. They may be warm again if who has asked is refused; else he has the
/// file from now on.
pub(super) fn leave_those_asked_back(told: impl Fn(BorrowedFd<'_>)) {
    let until = if Settings::refuse_shared() { Until::ItIsWarm } else { Until::TheEnd };
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        if description.state() == State::Warm && lease_manager::is_asked_back(description) {
            description.own.get().map(&told);
            leave_description(description, until);
        }
    }
}

/// Tries an open that does not wait for leases, and again if one of this process's was in its way: that is given back then. Of others'
/// no account is taken, which may have been given back meanwhile.
pub(crate) fn give_way_to<T>(open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let before = LEFT.load(Ordering::SeqCst);
    let outcome = open();
    if !matches!(outcome, Err(Errno::WOULDBLOCK)) {
        return outcome;
    }
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        while matches!(description.state(), State::Warming | State::Leaving) {
            std::thread::yield_now();
        }
    }
    // In a thread of the program's, which may not allocate.
    leave_those_asked_back(|_| ());
    if LEFT.load(Ordering::SeqCst) == before { outcome } else { open() }
}

/// Adds what was done through descriptions that are warm.
pub(super) fn add_counts(total: &Counts) {
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        description.begin();
        // Who leaves it from here on waits for the end of this.
        if description.state() == State::Warm
            && let Some(counts) = description.warm().and_then(Warm::counts)
        {
            total.absorb(counts);
        }
        description.end();
    }
}

/// Hands to the kernel what was written by all descriptions, and waits for those that are just being left. The first error.
pub(crate) fn write_back_all() -> Result<(), Errno> {
    if !lease_manager::has_frames() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for description in &ALL[..USED.load(Ordering::Relaxed) as usize] {
        loop {
            description.begin();
            let state = description.state();
            if state == State::Warm {
                outcome = outcome.and(description.warm().map_or(Ok(()), Warm::write_back));
            }
            description.end();
            if !matches!(state, State::Warming | State::Leaving) {
                break;
            }
            std::thread::yield_now();
        }
    }
    outcome
}

/// vmio's own descriptor of the file whose operations a log knows by this key. The kernel knows of all that was written by it
/// when this returns.
pub(super) fn own_of_logged(key: u64) -> Option<Result<RawFd, Errno>> {
    let all = &ALL[..USED.load(Ordering::Relaxed) as usize];
    let found = all.iter().find(|description| description.log_key.load(Ordering::Acquire) == key)?;
    // Who takes this away retires the file before, and waits for the log.
    let written = found.warm().map_or(Ok(()), Warm::write_back);
    Some(written.and_then(|()| Ok(found.own.get().ok_or(Errno::BADF)?.as_raw_fd())))
}

/// Whether a description is the kernel's as it should be, or has been made so: it was not warm.
fn is_left(description: &Description, until: Until) -> bool {
    match description.state() {
        State::Linux | State::Free => true,
        State::Cold => until == Until::ItIsWarm || description.change(State::Cold, State::Linux),
        State::Warming | State::Warm | State::Leaving => false,
    }
}

fn leave_description(description: &'static Description, until: Until) {
    // Most are not warm: two system calls for each of them would be felt at every fork.
    if is_left(description, until) {
        return;
    }
    // A handler that comes here must not wait for the thread that it has interrupted.
    let _signals = SignalsBlocked::new();
    while !description.change(State::Warm, State::Leaving) {
        if is_left(description, until) {
            return;
        }
        if matches!(description.state(), State::Warming | State::Leaving) {
            std::thread::yield_now();
        }
    }
    LEFT.fetch_add(1, Ordering::SeqCst);
    let is_quiet = description.drain();
    let written = description.warm().and_then(Warm::cached).map_or(Ok(()), CachedFile::give_up);
    let own = description.own.get();
    if let Some(own) = own {
        hand_over(description, own, written);
    }
    description.log_key.store(0, Ordering::Release);
    if is_quiet {
        // SAFETY: no call is under way, and none can begin.
        unsafe { lease_manager::dispose(description.take_warm()) };
    }
    if let Some(own) = own {
        lease_manager::give_back(own);
    }
    description.ask_again();
    description.change(State::Leaving, if until == Until::TheEnd || !is_quiet { State::Linux } else { State::Cold });
}

/// Tells the kernel what it does not know yet of a description, but for bytes in frames, which have been written or not.
fn hand_over(description: &Description, fd: BorrowedFd<'_>, written: Result<(), Errno>) {
    let logged = description.warm().and_then(Warm::logged);
    if let Err(error) = written {
        description.has_lost_writes.store(true, Ordering::Relaxed);
        if logged.is_none() {
            report::not_written(fd, error);
        }
    }
    if description.warm().is_some_and(Warm::has_stored) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        // As writes do; who may not has not stored.
        let _ = futimens(fd, &Timestamps { last_access: same, last_modification: now });
    }
    if let Some(logged) = logged {
        // Whoever has the file from now on must not see it undone. If it cannot be written or flushed, the log keeps what was promised.
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

    /// Who has begun a call about frames would else read from the kernel what is not written back yet.
    #[test]
    fn a_call_that_began_while_the_file_was_warm_stays_so_while_it_is_left() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let (index, description) = free().unwrap();
        number(fd).unwrap().store(index + 1, Ordering::SeqCst);
        let cold = Call::begin(fd).unwrap();
        assert!(cold.warm().is_none());
        drop(cold);

        assert!(description.change(State::Cold, State::Warming));
        description.own.take(file.as_fd()).unwrap();
        description.put_warm(Box::new(Warm::of_writes_alone()));
        assert!(description.change(State::Warming, State::Warm));
        let call = Call::begin(fd).unwrap();
        assert!(call.warm().is_some() && call.is_still_warm());
        assert!(description.change(State::Warm, State::Leaving));
        assert!(call.warm().is_some() && !call.is_still_warm());
        drop(call);

        // SAFETY: it is the box from above, and nobody has it any more.
        drop(unsafe { Box::from_raw(description.take_warm()) });
        assert!(description.change(State::Leaving, State::Linux));
        assert!(Call::begin(fd).is_none());
        forget(fd, Own::Stays);
        assert!(description.state() == State::Free && description.is_left_over());
        look_for_closed();
        assert!(description.own.get().is_none(), "the program has no lock on the file");
    }

    /// Nothing is known of such a duplicate: it would have a position of its own.
    #[test]
    fn a_description_with_a_duplicate_of_a_large_number_is_the_kernels() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_raw_fd();
        let (index, description) = free().unwrap();
        number(fd).unwrap().store(index + 1, Ordering::SeqCst);
        lease_manager::start();
        duplicated(fd, DESCRIPTORS as RawFd);
        assert!(description.state() == State::Linux);
        forget(fd, Own::Stays);
    }
}
