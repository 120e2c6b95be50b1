//! io_uring: many reads under way at the same time, begun and ended by one thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

/// The token of the wait for [`Wake`].
const WAKE: u64 = u64::MAX;

/// Once there is a completion, how long a thread sleeps on until there are enough to be worth waking it. That is a
/// fraction of the time of a read where many are under way.
const LINGER_US: u32 = 50;
/// To linger, the kernel needs a limit.
const LIMIT: Duration = Duration::from_secs(1);

/// A ring, for the thread that made it.
pub(crate) struct Ring {
    uring: IoUring,
    wake: Arc<Wake>,
    waits_for_wake: bool,
    /// Whether the kernel holds the pages of the buffers for reads.
    is_registered: bool,
}

/// Wakes a thread that sleeps over its ring.
pub(crate) struct Wake {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Wake {
    /// Makes a wake for a thread that makes a ring with it later.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Wake { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, asleep: AtomicBool::new(false) })
    }

    /// Ends the thread's sleep, if it sleeps. The thread then sees all that the caller did before this call.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = rustix::io::write(&self.event, &1_u64.to_ne_bytes())
        {
            tracing::error!(%error, "a thread that fetches pages cannot be woken");
        }
    }
}

impl Ring {
    /// Makes a ring for this many reads at a time. Only the calling thread may use it.
    pub(crate) fn new(reads: u32, wake: Arc<Wake>) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        // The thread handles completions while it waits for them, instead of being interrupted (Linux 6.1).
        let mut newer = builder.clone();
        newer.setup_single_issuer().setup_defer_taskrun();
        let uring = newer.build(reads + 1).or_else(|_| builder.build(reads + 1))?;
        if !uring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into()); // Before Linux 5.11: no waiting with a limit.
        }
        Ok(Ring { uring, wake, waits_for_wake: false, is_registered: false })
    }

    /// Says that all reads will go into this memory: the kernel then looks its pages up once, in place of once for each
    /// read. The kernel may refuse, since the pages count as locked memory, which may have a limit. Nothing else
    /// changes then.
    ///
    /// # Safety
    /// The memory is mapped. While the ring exists, there are no references into it that reads contradict.
    pub(crate) unsafe fn register(&mut self, memory: *mut [u8]) {
        let buffer = libc::iovec { iov_base: memory.cast(), iov_len: memory.len() };
        // SAFETY: the kernel holds the pages itself, as long as the ring lives.
        let registered = unsafe { self.uring.submitter().register_buffers(&[buffer]) };
        self.is_registered = registered.is_ok();
    }

    /// Whether the kernel lets this process have a ring.
    pub(crate) fn probe() -> io::Result<()> {
        Ring::new(1, Arc::new(Wake::new()?)).map(drop)
    }

    /// Queues a read for the next [`Self::submit`] or [`Self::sleep`]. Once it has ended, [`Self::completed`] returns
    /// its `token`, which is anything but `u64::MAX`.
    ///
    /// # Safety
    /// Until then the buffer is nobody else's and stays where it is; so does the file. If memory was registered, the
    /// buffer lies in it.
    pub(crate) unsafe fn read(&mut self, token: u64, file: BorrowedFd<'_>, buffer: *mut [u8], offset: u64) {
        let (file, start, bytes) = (Fd(file.as_raw_fd()), buffer.cast(), buffer.len() as u32);
        let read = if self.is_registered {
            opcode::ReadFixed::new(file, start, bytes, 0).offset(offset).build()
        } else {
            opcode::Read::new(file, start, bytes).offset(offset).build()
        };
        // SAFETY: the caller vouches that the buffer and the file stay until the completion of the read has been seen.
        unsafe { self.push(&read.user_data(token)) };
    }

    /// # Safety
    /// The memory that the entry points to is the kernel's until the caller has seen its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller vouches that the entry's memory is the kernel's until the caller has seen the completion.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            // More reads at a time than the ring was made for: make space.
            let _ = self.uring.submit();
        }
    }

    /// Begins the queued reads. Those that cannot begin yet wait for the next [`Self::sleep`].
    pub(crate) fn submit(&mut self) {
        if !self.uring.submission().is_empty() {
            let _ = self.uring.submit();
        }
    }

    /// Begins the queued reads, and sleeps until a read has ended, a thread calls [`Wake::wake`], or `limit` is over.
    /// With `enough` above 1 it sleeps a little longer until this many have ended (Linux 6.12). It does not sleep if
    /// `has_work` returns true. It calls `has_work` only once it would notice a wake.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>, enough: u32, has_work: impl FnOnce() -> bool) {
        if !self.waits_for_wake {
            // Nobody reads the event: each write to it is a completion, until the kernel says otherwise (Linux 5.13).
            let wait = opcode::PollAdd::new(Fd(self.wake.event.as_raw_fd()), libc::POLLIN as u32).multi(true);
            // SAFETY: the entry points to no memory.
            unsafe { self.push(&wait.build().user_data(WAKE)) };
            self.waits_for_wake = true;
        }
        self.wake.asleep.store(true, Ordering::SeqCst);
        let outcome = if has_work() {
            self.uring.submit()
        } else {
            let lingers = enough > 1 && self.uring.params().is_feature_min_timeout();
            let limit = limit.or(lingers.then_some(LIMIT)).map(Timespec::from);
            let args = SubmitArgs::new().min_wait_usec(if lingers { LINGER_US } else { 0 });
            let args = if let Some(limit) = &limit { args.timespec(limit) } else { args };
            self.uring.submitter().submit_with_args(if lingers { enough as usize } else { 1 }, &args)
        };
        self.wake.asleep.store(false, Ordering::SeqCst);
        match outcome.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => {}
            // Most likely the kernel is short of memory: reads that have not begun still wait in the queue.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    /// Returns a read that has ended: its token, and the number of bytes read or a negative error number.
    pub(crate) fn completed(&mut self) -> Option<(u64, i32)> {
        loop {
            let entry = self.uring.completion().next()?;
            if entry.user_data() != WAKE {
                return Some((entry.user_data(), entry.result()));
            }
            self.waits_for_wake = cqueue::more(entry.flags());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn ring() -> Option<(Ring, Arc<Wake>)> {
        let made = Wake::new().map(Arc::new).and_then(|wake| Ok((Ring::new(4, Arc::clone(&wake))?, wake)));
        made.inspect_err(|error| test_depth::skipped(format_args!("no io_uring: {error}"))).ok()
    }

    #[test]
    fn each_wake_ends_a_sleep() {
        let Some((mut ring, wake)) = ring() else { return };
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !wake.asleep.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    wake.wake();
                });
                ring.sleep(None, 1, || false);
            });
            assert!(ring.completed().is_none());
            assert!(ring.waits_for_wake, "the wait must be begun anew for each wake");
        }
    }

    #[test]
    fn fewer_reads_than_are_enough_end_a_sleep_too() {
        let Some((mut ring, _)) = ring() else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        for registered in [false, true] {
            let mut buffer = vec![0_u8; 8192];
            let bytes = std::ptr::from_mut(&mut buffer[..]);
            // SAFETY: the buffer lives until the read has ended, and nobody looks at it before.
            unsafe {
                if registered {
                    ring.register(bytes);
                }
                ring.read(3, file.as_fd(), std::ptr::slice_from_raw_parts_mut(bytes.cast(), 4096), 4096);
            }
            let ended = loop {
                ring.sleep(None, 100, || false);
                if let Some(ended) = ring.completed() {
                    break ended;
                }
            };
            assert_eq!(ended, (3, 4096));
            assert_eq!(buffer, [[7; 4096], [0; 4096]].concat());
        }
    }
}
