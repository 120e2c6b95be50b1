//! io_uring without system calls: a thread of the kernel takes requests from memory, and puts their ends there (SQPOLL).

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use vmio_core::futex_lock::FutexLock;

use crate::sys::cpu;
use crate::sys::fork::OfProcess;

/// The kernel's thread sleeps after so long without a request. To wake it takes a system call.
const IDLE_MS: u32 = 50;
/// Looks at the end of a request before the requesting thread sleeps: up to a millisecond, longer than a fast device takes.
const LOOKS: u32 = 20_000;
/// Rings for each core: threads that wait for an end leave the core to others.
const RINGS_PER_CORE: usize = 4;
/// The longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Rings with one thread of the kernel for all. A thread has a ring from the submission of a request to its end.
pub(crate) struct PolledRings {
    slots: OfProcess<Box<[RingSlot]>>,
}

struct RingSlot {
    lock: FutexLock,
    uring: UnsafeCell<IoUring>,
}

// SAFETY: only the owner of the lock reaches the ring, which goes from thread to thread as a whole.
unsafe impl Sync for RingSlot {}

impl PolledRings {
    /// Makes the rings, and starts the kernel's thread.
    pub(crate) fn new() -> io::Result<Self> {
        let cores = cpu::count();
        if cores < 2 {
            let why = "the kernel's thread needs a core beside the program's, and this process may run on one only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut slots: Vec<RingSlot> = Vec::with_capacity(RINGS_PER_CORE * cores);
        for _ in 0..slots.capacity() {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_sqpoll(IDLE_MS);
            if let Some(first) = slots.first_mut() {
                builder.setup_attach_wq(first.uring.get_mut().as_raw_fd());
            }
            let uring = builder.build(1)?;
            if !uring.params().is_feature_sqpoll_nonfixed() {
                let why = "a thread of the kernel submits requests for any file from Linux 5.11 on";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            slots.push(RingSlot { lock: FutexLock::default(), uring: UnsafeCell::new(uring) });
        }
        Ok(PolledRings { slots: OfProcess::new(slots.into_boxed_slice())? })
    }

    /// Reads, and returns whether that filled the buffer. If not, a system call says why: the buffer has anything.
    pub(crate) fn read(&self, file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> bool {
        let bytes = buffer.len();
        let read = opcode::Read::new(Fd(file.as_raw_fd()), buffer.as_mut_ptr(), bytes as u32).offset(offset).build();
        // SAFETY: file and buffer are borrowed until this returns.
        unsafe { self.is_done(&read, bytes) }
    }

    /// Writes, and returns whether that wrote all of the data. If not, a system call says why, and writes it again.
    pub(crate) fn write(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64) -> bool {
        let write = opcode::Write::new(Fd(file.as_raw_fd()), data.as_ptr(), data.len() as u32).offset(offset).build();
        // SAFETY: file and data are borrowed until this returns.
        unsafe { self.is_done(&write, data.len()) }
    }

    /// The descriptors of the rings: by them the kernel's thread is woken.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let slots = self.slots.get().map_or(&[][..], |slots| slots);
        // SAFETY: the ring lives as long as the borrow. Its descriptor is read, which nobody changes.
        slots.iter().map(|slot| unsafe { BorrowedFd::borrow_raw((*slot.uring.get()).as_raw_fd()) }).collect()
    }

    /// Does a request for this many bytes, and returns whether it moved all of them. Nobody waits for a ring: a handler of a signal may have
    /// interrupted the user of one.
    ///
    /// # Safety
    /// File and memory of the request stay until this returns.
    unsafe fn is_done(&self, request: &squeue::Entry, bytes: usize) -> bool {
        let Some(slots) = self.slots.get().filter(|_| bytes <= REQUEST_BYTES_MAX) else { return false };
        let (before, after) = slots.split_at(RINGS_PER_CORE * cpu::current() % slots.len());
        let Some(slot) = after.iter().chain(before).find(|slot| slot.lock.try_acquire()) else { return false };
        // SAFETY: by the lock nobody else has the ring, whose requests have all ended. The caller vouches for the request's file and memory.
        let moved = unsafe { end_of(&mut *slot.uring.get(), request) };
        slot.lock.release();
        usize::try_from(moved) == Ok(bytes)
    }
}

/// Does a request on a ring without others: the bytes moved, or a negative error number.
///
/// # Safety
/// File and memory of the request stay until this returns.
unsafe fn end_of(uring: &mut IoUring, request: &squeue::Entry) -> i32 {
    // SAFETY: the caller vouches for the request's file and memory.
    if unsafe { uring.submission().push(request) }.is_err() {
        return -libc::EBUSY;
    }
    // A system call only if the kernel's thread sleeps.
    let mut is_submitted = uring.submit().is_ok();
    loop {
        for _ in 0..LOOKS {
            if let Some(end) = uring.completion().next() {
                return end.result();
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
                        // More threads than rings: those without one would make system calls.
                        while !rings.write(file, &data, offset) {}
                        while !rings.read(file, &mut back, offset) {}
                        assert_eq!(back, data);
                    }
                });
            }
        });
    }

    #[test]
    fn a_thread_of_the_kernels_that_sleeps_is_woken() {
        let Some(rings) = rings() else { return };
        let file = tempfile::tempfile().unwrap();
        for round in 0..3 {
            assert!(rings.write(file.as_fd(), &[round; 4096], 0));
            std::thread::sleep(std::time::Duration::from_millis(u64::from(3 * IDLE_MS)));
            let mut back = [0; 4096];
            assert!(rings.read(file.as_fd(), &mut back, 0) && back == [round; 4096]);
        }
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
