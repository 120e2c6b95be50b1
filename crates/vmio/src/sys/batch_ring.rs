//! io_uring for a few reads at once and a wait for all of them: for any thread, in the trap path too.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::sys::fork::OfProcess;

/// A ring that passes from thread to thread, for one batch at a time.
pub(crate) struct BatchRing {
    uring: OfProcess<IoUring>,
    /// Reads in the batch.
    asked: usize,
    /// Of these, the reads that the kernel has.
    begun: usize,
}

impl BatchRing {
    /// Makes a ring for batches of this many reads.
    pub(crate) fn new(reads: u32) -> io::Result<Self> {
        let uring = IoUring::builder().dontfork().build(reads)?;
        Ok(BatchRing { uring: OfProcess::new(uring)?, asked: 0, begun: 0 })
    }

    /// Adds a read to the batch; [`Self::wait`] returns its token. False if the batch is full, or the ring belongs to
    /// another process.
    ///
    /// # Safety
    /// The buffer is nobody else's and stays where it is until `wait` has returned; so does the file.
    pub(crate) unsafe fn read(&mut self, token: u64, file: BorrowedFd<'_>, buffer: *mut [u8], offset: u64) -> bool {
        let read = opcode::Read::new(Fd(file.as_raw_fd()), buffer.cast(), buffer.len() as u32).offset(offset).build();
        let Some(uring) = self.uring.get_mut() else { return false };
        // SAFETY: the caller vouches that the buffer and the file stay until `wait` has returned.
        let added = unsafe { uring.submission().push(&read.user_data(token)) }.is_ok();
        self.asked += usize::from(added);
        added
    }

    /// Begins the reads of the batch.
    pub(crate) fn submit(&mut self) {
        let Some(uring) = self.uring.get() else { return };
        while self.begun < self.asked {
            match uring.submit() {
                Ok(begun) if begun > 0 => self.begun += begun,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    }

    /// Waits for the reads of the batch, and calls `ended` with the token of each, and the bytes read or a negative
    /// error number. Returns whether that was the whole batch. If not, the ring is of no further use: callers must
    /// neither use nor drop it.
    pub(crate) fn wait(&mut self, mut ended: impl FnMut(u64, i32)) -> bool {
        let mut seen = 0;
        let Some(uring) = self.uring.get_mut() else { return false };
        while self.begun > 0 {
            if uring.completion().is_empty() {
                // This also begins reads that `submit` could not begin, and then waits for them.
                match uring.submitter().submit_and_wait(1) {
                    Ok(begun) => self.begun += begun,
                    // If the kernel does not let us wait, the reads end all the same.
                    Err(_) => std::thread::yield_now(),
                }
            }
            for entry in uring.completion() {
                self.begun -= 1;
                seen += 1;
                ended(entry.user_data(), entry.result());
            }
        }
        std::mem::take(&mut self.asked) == seen
    }
}

/// A read of a batch: its offset in the file, and its buffer.
pub(crate) struct BatchedRead<'buffer> {
    pub(crate) offset: u64,
    pub(crate) buffer: &'buffer mut [u8],
    /// Whether the read has filled the buffer.
    pub(crate) is_whole: bool,
}

impl BatchRing {
    /// Does up to 64 reads at once, and returns when they have ended. Notes for each whether it filled its buffer.
    /// Gives the ring back if it is of further use.
    pub(crate) fn read_all(
        mut self: Box<Self>,
        file: BorrowedFd<'_>,
        reads: &mut [BatchedRead<'_>],
    ) -> Option<Box<Self>> {
        for (token, read) in reads.iter_mut().enumerate() {
            // SAFETY: buffer and file are borrowed until this returns, which is after `wait`; nothing between here and
            // there panics. A read that the kernel has not taken by then never begins: the ring is leaked.
            if !unsafe { self.read(token as u64, file, std::ptr::from_mut(read.buffer), read.offset) } {
                break;
            }
        }
        self.submit();
        let mut whole = 0_u64;
        let is_done = self.wait(|token, bytes| {
            let is_whole =
                reads.get(token as usize).is_some_and(|read| usize::try_from(bytes) == Ok(read.buffer.len()));
            whole |= u64::from(is_whole).checked_shl(token as u32).unwrap_or(0);
        });
        for (token, read) in reads.iter_mut().enumerate().take(u64::BITS as usize) {
            read.is_whole = whole & 1 << token != 0;
        }
        if is_done {
            return Some(self);
        }
        std::mem::forget(self);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_batch_is_read_by_whatever_thread_has_the_ring() {
        let mut ring = match BatchRing::new(8) {
            Ok(ring) => ring,
            Err(error) => return test_depth::skipped(format_args!("no io_uring: {error}")),
        };
        let mut file = tempfile::tempfile().unwrap();
        (0..8).for_each(|byte| file.write_all(&[byte; 512]).unwrap());
        for _ in 0..3 {
            let file = file.as_fd();
            ring = std::thread::scope(|scope| {
                let batch = scope.spawn(move || {
                    let mut buffer = [0_u8; 8 * 512];
                    let start = std::ptr::from_mut(&mut buffer).cast::<u8>();
                    for place in 0..8 {
                        // SAFETY: the part is within the buffer, which nobody looks at before the wait is over.
                        let added = unsafe {
                            let part = std::ptr::slice_from_raw_parts_mut(start.add(place * 512), 512);
                            ring.read(place as u64, file, part, (7 - place as u64) * 512)
                        };
                        assert!(added);
                    }
                    ring.submit();
                    let mut seen = Vec::new();
                    assert!(ring.wait(|token, bytes| seen.push((token, bytes))));
                    seen.sort_unstable();
                    assert!(seen.into_iter().eq((0..8).map(|token| (token, 512))));
                    assert!(buffer.chunks(512).zip((0..8).rev()).all(|(part, byte)| part == [byte; 512]));
                    ring
                });
                batch.join().unwrap()
            });
        }
    }
}
