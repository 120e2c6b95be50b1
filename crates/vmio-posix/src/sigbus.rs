//! SIGBUS in mapped files: the access is tried again, or a message gives the reason. With `--on-full wait` a program whose disk is full
//! waits until there is space. Pages that a reader thread could not read get another try, since they may be readable by now.
//!
//! The handler runs in the signal, without allocations and locks, except [`adopt_length`].

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use rustix::thread::{Timespec, nanosleep};
use vmio::{PAGE_BYTES, Unavailable, WhyUnavailable};

use crate::entry::{self, Answer};
use crate::process::Process;
use crate::settings::Settings;
use crate::watched::{self, Message};

/// How often to retry a store to one page while there is space for the page.
const TRIES_MAX: u32 = 8;
/// The largest folio of the page cache, all of which XFS allocates at a store.
const FOLIO_BYTES_MAX: u64 = 2 << 20;
/// The time between two attempts to get space on a full disk.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// From now on, retries or explains the SIGBUS that nobody else handles. If that fails, the program gets its signals as without vmio.
pub(crate) fn explain() {
    // SAFETY: `resolve_or_explain` does as handlers of signals must.
    let _ = unsafe { vmio::on_unresolved_sigbus(resolve_or_explain) };
}

/// Handles a SIGBUS that nobody else handles; true to try the access again.
fn resolve_or_explain(address: usize, is_store: bool) -> bool {
    // The calls that the cache makes are vmio's own.
    let refused = match entry::as_vmio(|| vmio::fault_again(address, is_store)) {
        Some(Ok(())) => return true,
        Some(Err(refused)) => Some(refused),
        None => None,
    };
    // The cache knows the file's main addresses, whichever window the fault is in.
    let known_at = refused.map_or(address, |refused| refused.mapping + refused.offset as usize + address % PAGE_BYTES);
    let Some((watched, offset)) = watched::find(known_at) else { return false };
    let Some((fd, len)) = watched.file() else { return false };
    let page = offset / PAGE_BYTES as u64;
    if let Some(Unavailable { why: WhyUnavailable::BehindEnd, .. }) = refused
        && page < len.div_ceil(PAGE_BYTES as u64)
        && entry::enter(|| adopt_length(address)).is_some_and(|adopted| adopted.is_ok())
    {
        return entry::as_vmio(|| vmio::fault_again(address, is_store)).is_some_and(|outcome| outcome.is_ok());
    }
    if page >= len.div_ceil(PAGE_BYTES as u64) {
        watched.say(fd, Message::Shorter { len }, offset);
        return false;
    }
    if let Some(Unavailable { why: WhyUnavailable::NotWritten(number), .. }) = refused {
        let error = if number == 0 { Errno::IO } else { Errno::from_raw_os_error(number) };
        watched.say(fd, Message::CacheIsFull(error), offset);
        return false;
    }
    if !is_store || refused.is_some() {
        watched.say(fd, Message::NotRead, offset);
        return false;
    }
    let uses_page_cache = watched.uses_page_cache.load(Ordering::Relaxed);
    let waits = Settings::of_this_process().is_some_and(|settings| settings.waits_for_space);
    let tries = watched.tries_of(page);
    let space = space_for(page, tries, len);
    match retry_on_intr(|| fallocate(fd, FallocateFlags::KEEP_SIZE, space.start, space.end - space.start)) {
        Ok(()) if tries < TRIES_MAX && uses_page_cache => {
            watched.tries.store(tries + 1, Ordering::Relaxed);
            true
        }
        Ok(()) => {
            watched.tries.store(0, Ordering::Relaxed);
            watched.say(fd, Message::NotStored, offset);
            false
        }
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) if waits => {
            watched.say(fd, Message::ProgramWaits(error), offset);
            let time = Timespec { tv_sec: 0, tv_nsec: RETRY_AFTER.subsec_nanos().into() };
            let _ = nanosleep(&time);
            // The repeated store finds out whether there is space by now. Before it the thread gets its pending signals.
            true
        }
        Err(error) => {
            watched.say(fd, Message::NoRoom(error), offset);
            false
        }
    }
}

/// Tells the mapping at an address about a length that another process has given the file. Takes locks and may allocate, as calls of the
/// program's do. The thread could wait for itself only in a program whose allocator works in a mapped file.
fn adopt_length(address: usize) -> Answer<()> {
    let (file, _) = Process::current()?.table.lock().by_address(address)?;
    Some(file.adopt_length().map(drop))
}

/// The range that needs space for a store to a page: the page itself or, if that was not enough, all of the folio that it may be in.
fn space_for(page: u64, tries: u32, len: u64) -> Range<u64> {
    let page_bytes = PAGE_BYTES as u64;
    let start = page * page_bytes;
    if tries == 0 {
        return start..start + page_bytes;
    }
    let start = start / FOLIO_BYTES_MAX * FOLIO_BYTES_MAX;
    start..(start + FOLIO_BYTES_MAX).min(len.next_multiple_of(page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_space_gets_it_with_its_folio() {
        let page = PAGE_BYTES as u64;
        assert_eq!(space_for(513, 0, 600 * page), 513 * page..514 * page);
        assert_eq!(space_for(513, 1, 600 * page - 5), 512 * page..600 * page);
        assert_eq!(space_for(3, 1, u64::MAX - page), 0..FOLIO_BYTES_MAX);
    }
}
