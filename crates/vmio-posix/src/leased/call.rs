//! A call of the program's on a description that vmio may serve.

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::fs::fstat;
use rustix::io::Errno;

use super::description::{Description, State};
use super::description_table::{self, of_descriptor};
use super::descriptors;
use super::lease_requests;
use super::leased_file::LeasedFile;
use super::mode;

/// The number of cuts of a file that nobody else can cut.
pub(super) const NEVER_CUT: u64 = 0;

/// A call on a description, which keeps its lease until the call ends: a thread that returns the lease waits for the call if it can.
pub(crate) struct Call {
    pub(super) description: &'static Description,
    pub(super) fd: RawFd,
    /// The state when the call began. If a thread begins to return the lease in the middle, the kernel must not do the rest of the call: it
    /// does not have the written bytes and the position yet.
    leased: Option<&'static LeasedFile>,
    /// How often the file may have become shorter before the call learnt its length. None where the kernel serves the map: it alone knows the length,
    /// and only now.
    cuts: Option<u64>,
    /// A lower bound of the file's length after these cuts, from the beginning of the call and from what it has done.
    learnt_len: Cell<u64>,
}

impl Call {
    /// None if nothing is known of the descriptor: Linux does the call.
    pub(super) fn begin(fd: RawFd) -> Option<Self> {
        loop {
            let description = of_descriptor(fd)?;
            if description.state() == State::Linux {
                return None;
            }
            description.begin();
            let mut call = Call { description, fd, leased: None, cuts: Some(NEVER_CUT), learnt_len: Cell::new(0) };
            let is_same = of_descriptor(fd).is_some_and(|now| std::ptr::eq(now, description));
            match description.state() {
                State::Unleased if is_same => return Some(call),
                State::Leased if is_same => {
                    if call.is_of_the_same_file() {
                        call.leased = description.leased();
                        call.learn_length();
                        return Some(call);
                    }
                    drop(call);
                    descriptors::found_closed(fd, description);
                }
                State::Linux | State::Free if is_same => return None,
                _ => {
                    drop(call);
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Whether the descriptor still refers to the leased description. Asks the kernel once a clock tick. Asks at each call if vmio alone
    /// has bytes of the file, or if the program was found to close descriptors without our noticing.
    fn is_of_the_same_file(&self) -> bool {
        let description = self.description;
        let has_bytes = mode::is_strict() || description.leased().is_some_and(|leased| leased.cached().is_some());
        if has_bytes || description_table::has_closed_unnoticed() {
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

    /// Learns the length. Asks for it if another process may have cut the file: nothing keeps it from that where this process maps the medium itself.
    #[inline]
    fn learn_length(&mut self) {
        let Some(leased) = self.leased else { return };
        if leased.has_extents() {
            self.cuts = leased.cuts();
        }
        let Some(cuts) = self.cuts else { return };
        match self.description.known_length.after(cuts) {
            Some(len) => self.learnt_len.set(len),
            None if leased.has_extents() => self.ask_for_length(leased),
            None => {}
        }
    }

    #[cold]
    fn ask_for_length(&mut self, leased: &LeasedFile) {
        let description = self.description;
        loop {
            let len = description.own.get().and_then(|own| fstat(own).ok()).map_or(0, |stat| stat.st_size as u64);
            if let Some(cuts) = self.cuts {
                description.known_length.learn(len, cuts);
            }
            let before = std::mem::replace(&mut self.cuts, leased.cuts());
            if before == self.cuts {
                self.learnt_len.set(self.known_len());
                return;
            }
        }
    }

    /// How many bytes of a range, which the call has copied, are of the file. Others may have cut it meanwhile: then the kernel has to do the rest.
    #[inline]
    pub(super) fn bytes_that_count(&self, leased: &LeasedFile, bytes: &Range<u64>) -> u64 {
        match !leased.has_extents() || leased.cuts() == self.cuts {
            true => bytes.end - bytes.start,
            false => self.bytes_kept(leased, bytes),
        }
    }

    /// The same, once parts were leased or taken away. A write that the kernel repeats may undo another process's in between, which answers this one. So it
    /// does if these very bytes were taken away, and not for leases or for cuts behind them. Before a lease nobody tells of cuts.
    #[cold]
    fn bytes_kept(&self, leased: &LeasedFile, bytes: &Range<u64>) -> u64 {
        let (Some(cuts), Some(_), Some(own)) = (self.cuts, leased.cuts(), self.description.own.get()) else { return 0 };
        if leased.has_lost(cuts, bytes) {
            return 0;
        }
        let len = fstat(own).map_or(0, |stat| stat.st_size as u64);
        len.clamp(bytes.start, bytes.end) - bytes.start
    }

    /// The file is at least this long, says what this call has done.
    pub(super) fn is_as_long_as(&self, len: u64) {
        // If others have cut it since, nobody looks for the length from before.
        if let Some(cuts) = self.cuts {
            self.description.known_length.grow(len, cuts);
            self.learnt_len.set(self.learnt_len.get().max(len));
        }
    }

    /// A lower bound of the file's length, as other calls have learnt it by now.
    #[inline]
    pub(super) fn known_len(&self) -> u64 {
        self.cuts.and_then(|cuts| self.description.known_length.after(cuts)).unwrap_or(0)
    }

    /// The leased file, if there was a lease when the call began.
    pub(super) fn leased(&self) -> Option<&LeasedFile> {
        self.leased
    }

    /// Whether no thread has begun to return the lease since.
    pub(super) fn is_still_leased(&self) -> bool {
        self.description.state() == State::Leased
    }

    /// Counts a kernel read or write, and asks for a lease after enough of them.
    pub(super) fn count_kernel_call(&self) {
        if self.description.is_worth_a_lease() && !lease_requests::request_lease(self.fd) {
            self.description.ask_again();
        }
    }

    /// The file's length as far as it is known; asks the kernel if that is less than `end`.
    pub(super) fn len(&self, fd: BorrowedFd<'_>, end: u64) -> Result<u64, Errno> {
        if let Some(file) = self.leased().and_then(LeasedFile::cached) {
            return Ok(file.len());
        }
        let len = self.learnt_len.get();
        if end <= len {
            return Ok(len);
        }
        let now = fstat(fd)?.st_size as u64;
        self.is_as_long_as(now);
        Ok(now)
    }

    /// The end of the bytes from an offset on that can be copied: the known length, or the end of the cached part.
    #[inline]
    pub(super) fn copyable_end(&self, leased: &LeasedFile, offset: u64) -> u64 {
        leased.cached().map_or_else(|| self.learnt_len.get(), |file| file.mapped(offset))
    }

    /// Moves the position by the number that `bytes` returns for it. Returns the old position and that number.
    pub(super) fn advance(&self, bytes: impl Fn(u64) -> Result<u64, Errno>) -> Result<(u64, u64), Errno> {
        let position = &self.description.position;
        let mut start = position.load(Ordering::Relaxed);
        loop {
            let bytes = bytes(start)?;
            match position.compare_exchange_weak(start, start + bytes, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok((start, bytes)),
                Err(now) => start = now,
            }
        }
    }

    /// Moves the position; false if another call has moved it.
    pub(super) fn moved(&self, from: u64, to: u64) -> bool {
        self.description.position.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Moves the position back after a short transfer, unless another call has moved it since.
    pub(super) fn rewind(&self, from: u64, to: u64) {
        self.moved(from, to);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.description.end();
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

/// The time, accurate to some milliseconds, without a system call.
fn tick() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
