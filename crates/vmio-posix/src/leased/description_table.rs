//! The table of descriptions, and which of them the descriptors of the process refer to.

use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::io::Errno;

use super::description::{Description, State};
use super::leased_file::{Counts, LeasedFile};

/// Descriptors with larger numbers are not served.
pub(super) const DESCRIPTORS: usize = 1 << 16;
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

/// The descriptions that may be in use.
pub(super) fn used() -> &'static [Description] {
    &ALL[..USED.load(Ordering::Relaxed) as usize]
}

/// The highest descriptor that has had a description so far.
pub(super) fn highest() -> RawFd {
    HIGHEST.load(Ordering::Relaxed) as RawFd
}

/// Whether the table has a place for a descriptor.
pub(super) fn has_place(fd: RawFd) -> bool {
    number(fd).is_some()
}

/// Whether it is a standard stream.
pub(super) fn is_stream(fd: RawFd) -> bool {
    STREAMS.contains(&fd)
}

/// Gives a descriptor that the process has opened a description.
pub(super) fn insert(fd: RawFd, hides_dsync: bool) {
    let Some(number) = number(fd) else { return };
    if let Some((index, description)) = free() {
        description.hides_dsync.store(hides_dsync, Ordering::Relaxed);
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
        number.store(index + 1, Ordering::SeqCst);
    }
}

/// Gives a duplicate the description of a descriptor.
pub(super) fn insert_duplicate(fd: RawFd, duplicate: RawFd) {
    let Some(number) = number(duplicate) else { return };
    let same = self::number(fd).map_or(0, |number| number.load(Ordering::SeqCst));
    HIGHEST.fetch_max(duplicate as u32, Ordering::Relaxed);
    number.store(same, Ordering::SeqCst);
}

/// Takes a descriptor out; returns the description that it had.
pub(super) fn take_out(fd: RawFd) -> Option<&'static Description> {
    let index = number(fd)?.swap(0, Ordering::SeqCst);
    ALL.get((index as usize).wrapping_sub(1))
}

/// Notes that the program closes descriptors of leased files without our noticing.
pub(super) fn note_closed_unnoticed() {
    CLOSES_UNNOTICED.store(true, Ordering::Relaxed);
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
    let mut all = all.map(|index| (index, &ALL[index as usize]));
    let found = all.find(|(index, description)| {
        // Before its state changes: a child that is forked in between resets what is in use, and nobody else would.
        USED.fetch_max(index + 1, Ordering::SeqCst);
        description.take()
    })?;
    NEXT.store(found.0 + 1, Ordering::Relaxed);
    Some(found)
}

/// The descriptors of a range that have descriptions.
pub(super) fn known_in(fds: RangeInclusive<u32>) -> impl Iterator<Item = RawFd> {
    let end = (*fds.end()).min(DESCRIPTORS as u32 - 1);
    (*fds.start()..=end).map(|fd| fd as RawFd).filter(|fd| is_known(*fd))
}

/// Adds the counts of leased descriptions.
pub(super) fn add_counts(total: &Counts) {
    for description in used() {
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

/// vmio's own descriptor of the file whose operations have this key in a log. When this returns the kernel has all bytes written to it.
pub(super) fn own_of_logged(key: u64) -> Option<Result<RawFd, Errno>> {
    let found = used().iter().find(|description| description.log_key.load(Ordering::Acquire) == key)?;
    // A thread that removes the descriptor retires the file first, and waits for the log.
    let written = found.leased().map_or(Ok(()), LeasedFile::write_back);
    Some(written.and_then(|()| Ok(found.own.get().ok_or(Errno::BADF)?.as_raw_fd())))
}

/// Closes vmio's own descriptors in a forked child, where nothing is leased: nobody finishes changes that other threads of the parent were
/// making.
pub(super) fn reset_in_child() {
    for description in used() {
        description.abandon();
        description.own.close();
    }
}
