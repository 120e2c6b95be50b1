//! io_uring without system calls: a thread of the kernel takes requests from memory, and puts their ends there (SQPOLL).

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use vmio_core::futex_lock::FutexLock;

use crate::sys::cpu;
use crate::sys::fork::OfProcess;

/// The kernel's thread sleeps after so long without a request. To wake it takes a system call.
const IDLE_MS: u32 = 50;
/// Looks at the end of a request before the requesting thread sleeps: up to a millisecond, longer than a fast device takes.
const LOOKS: u32 = 20_000;
/// Rings for each core, so that threads which wait for an end leave the core to others; and the most of them, each a descriptor.
const RINGS_PER_CORE: usize = 4;
const RINGS_MAX: usize = 64;
/// The kernel counts a request that ends at once as taken only after its end is seen: the next one needs a place beside it.
const REQUESTS: u32 = 2;
/// The longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Rings with one thread of the kernel for all. A thread has a ring from the submission of a request to its end.
pub(crate) struct PolledRings {
    slots: OfProcess<Box<[RingSlot]>>,
}

struct RingSlot {
    lock: FutexLock,
    uring: UnsafeCell<IoUring>,
    descriptor: RawFd,
    /// The kernel's thread cannot be woken: the descriptor is closed, or a filter forbids the call.
    is_lost: AtomicBool,
}

// SAFETY: only the owner of the lock reaches the ring, which goes from thread to thread as a whole.
unsafe impl Sync for RingSlot {}

impl PolledRings {
    /// Makes the rings, and starts the kernel's thread, which runs on the cores of the calling one.
    pub(crate) fn new() -> io::Result<Self> {
        let cores = cpu::count();
        if cores < 2 {
            let why = "the kernel's thread needs a core beside the program's, and this thread may run on one only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut slots: Vec<RingSlot> = Vec::with_capacity((RINGS_PER_CORE * cores).min(RINGS_MAX));
        for _ in 0..slots.capacity() {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_sqpoll(IDLE_MS);
            if let Some(first) = slots.first() {
                builder.setup_attach_wq(first.descriptor);
            }
            let uring = builder.build(REQUESTS).map_err(explain)?;
            if !uring.params().is_feature_sqpoll_nonfixed() {
                let why = "a thread of the kernel submits requests for any file from Linux 5.11 on";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            let descriptor = uring.as_raw_fd();
            let (lock, uring, is_lost) = (FutexLock::default(), UnsafeCell::new(uring), AtomicBool::new(false));
            slots.push(RingSlot { lock, uring, descriptor, is_lost });
        }
        Ok(PolledRings { slots: OfProcess::new(slots.into_boxed_slice())? })
    }

    /// Reads, and returns whether that filled the buffer. If not, a system call says why: the buffer has anything.
    pub(crate) fn read(&self, file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> bool {
        let bytes = buffer.len();
        let read = opcode::Read::new(Fd(file.as_raw_fd()), buffer.as_mut_ptr(), bytes as u32).offset(offset).build();
        // SAFETY: file and buffer are borrowed until this returns.
        unsafe { self.moves_all(&read, bytes) }
    }

    /// Writes, and returns whether that wrote all of the data. If not, a system call says why, and writes it again.
    pub(crate) fn write(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64) -> bool {
        let write = opcode::Write::new(Fd(file.as_raw_fd()), data.as_ptr(), data.len() as u32).offset(offset).build();
        // SAFETY: file and data are borrowed until this returns.
        unsafe { self.moves_all(&write, data.len()) }
    }

    /// The descriptors of the rings: by them the kernel's thread is woken.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let slots = self.slots.get().map_or(&[][..], |slots| slots);
        // SAFETY: the ring, which owns the descriptor, lives as long as the borrow.
        slots.iter().map(|slot| unsafe { BorrowedFd::borrow_raw(slot.descriptor) }).collect()
    }

    /// Does a request for this many bytes, and returns whether it moved all of them. Nobody waits for a ring: a handler of a signal may have
    /// interrupted the user of one.
    ///
    /// # Safety
    /// File and memory of the request stay until this returns.
    unsafe fn moves_all(&self, request: &squeue::Entry, bytes: usize) -> bool {
        let Some(slots) = self.slots.get().filter(|_| (1..=REQUEST_BYTES_MAX).contains(&bytes)) else { return false };
        let (before, after) = slots.split_at(RINGS_PER_CORE * cpu::current() % slots.len());
        let mut usable = after.iter().chain(before).filter(|slot| !slot.is_lost.load(Ordering::Relaxed));
        let Some(slot) = usable.find(|slot| slot.lock.try_acquire()) else { return false };
        // SAFETY: by the lock nobody else has the ring, whose requests have all ended. The caller vouches for the request's file and memory.
        let moved = unsafe { end_of(&mut *slot.uring.get(), request) };
        if moved.is_none() {
            slot.is_lost.store(true, Ordering::Relaxed);
        }
        slot.lock.release();
        moved.is_some_and(|moved| usize::try_from(moved) == Ok(bytes))
    }
}

/// Does a request on a ring without others: the bytes moved, or a negative error number. None if the kernel's thread cannot be woken for it.
///
/// # Safety
/// File and memory of the request stay until this returns.
unsafe fn end_of(uring: &mut IoUring, request: &squeue::Entry) -> Option<i32> {
    // A system call only if the kernel's thread sleeps. It is woken before it has the request: where that fails there is nothing to wait for.
    while let Err(error) = uring.submit() {
        if error.kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    // SAFETY: the caller vouches for the request's file and memory.
    unsafe { uring.submission().push(request) }.ok()?;
    // It may have fallen asleep since.
    let mut is_submitted = uring.submit().is_ok();
    loop {
        for _ in 0..LOOKS {
            if let Some(end) = uring.completion().next() {
                return Some(end.result());
            }
            if !is_submitted {
                break;
            }
            std::hint::spin_loop();
        }
        // The kernel has the request's memory until its end, whatever the answer to the wait.
        is_submitted = uring.submit_and_wait(1).is_ok();
        if !is_submitted {
            std::thread::yield_now();
        }
    }
}

/// The answer to making a ring, with what to do about it.
fn explain(error: io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => "kernel.io_uring_disabled or a filter of system calls forbids io_uring",
        io::ErrorKind::Unsupported => "this kernel has no io_uring",
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn rings() -> Option<PolledRings> {
        PolledRings::new().inspect_err(|error| test_depth::skipped(format_args!("no polled rings: {error}"))).ok()
    }

    #[test]
    fn bytes_come_back_that_several_threads_wrote_at_once() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 50;
        let Some(rings) = rings() else { return };
        let file = tempfile::tempfile().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (rings, file) = (&rings, file.as_fd());
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let (offset, data) = ((round * THREADS + thread) * 4096, [(round + thread) as u8; 4096]);
                        let mut back = [0; 4096];
                        // There are more rings than threads here.
                        assert!(rings.write(file, &data, offset) && rings.read(file, &mut back, offset));
                        assert_eq!(back, data);
                    }
                });
            }
        });
    }

    #[test]
    fn a_part_or_an_error_is_left_to_a_system_call() {
        let Some(rings) = rings() else { return };
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096 + 10).unwrap();
        let mut buffer = [0; 4096];
        assert!(rings.read(file.as_file().as_fd(), &mut buffer, 10));
        assert!(!rings.read(file.as_file().as_fd(), &mut buffer, 4096), "the end of the file");
        let for_reading = File::open(file.path()).unwrap();
        assert!(!rings.write(for_reading.as_fd(), &buffer, 0), "not opened for writing");
    }

    /// Waits until the kernel's thread has to be woken.
    fn falls_asleep(rings: &PolledRings) {
        for slot in rings.slots.get().unwrap() {
            // SAFETY: nobody else uses the rings of a test.
            while !unsafe { (*slot.uring.get()).submission().need_wakeup() } {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_thread_of_the_kernels_that_sleeps_is_woken() {
        let Some(rings) = rings() else { return };
        let file = tempfile::tempfile().unwrap();
        for round in 0..3 {
            assert!(rings.write(file.as_fd(), &[round; 4096], 0));
            falls_asleep(&rings);
            let mut back = [0; 4096];
            assert!(rings.read(file.as_fd(), &mut back, 0) && back == [round; 4096]);
        }
    }

    /// As a program does that closes all descriptors which it finds.
    #[test]
    fn nobody_waits_for_a_thread_that_cannot_be_woken() {
        let Some(rings) = rings() else { return };
        let (file, null) = (tempfile::tempfile().unwrap(), File::open("/dev/null").unwrap());
        assert!(rings.write(file.as_fd(), &[1; 4096], 0));
        falls_asleep(&rings);
        for ring in rings.descriptors() {
            // SAFETY: the number stays open, for the ring to close; nobody else has it.
            assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), ring.as_raw_fd()) }, ring.as_raw_fd());
        }
        for _ in 0..=rings.descriptors().len() {
            assert!(!rings.read(file.as_fd(), &mut [0; 4096], 0));
        }
        assert!(rings.slots.get().unwrap().iter().all(|slot| slot.is_lost.load(Ordering::Relaxed)));
    }

    #[test]
    fn a_forked_child_has_no_rings() {
        let Some(rings) = rings() else { return };
        let file = tempfile::tempfile().unwrap();
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let has = rings.write(file.as_fd(), &[1; 512], 0) || !rings.descriptors().is_empty();
            drop(rings);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(has)) };
        }
        let mut status = -1;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(rings.write(file.as_fd(), &[1; 512], 0));
    }
}
