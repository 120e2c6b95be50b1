//! io_uring: reads that are under way at the same time, begun and ended by one thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

/// Marks the completion of the wait for [`Wake`].
const WAKE: u64 = u64::MAX;

/// A ring, for the thread that made it.
pub(crate) struct Ring {
    uring: IoUring,
    wake: Arc<Wake>,
    waits_for_wake: bool,
}

/// Wakes a thread that sleeps over its ring.
pub(crate) struct Wake {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Wake {
    /// Something to wake a thread with that makes a ring with it later.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Wake { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, asleep: AtomicBool::new(false) })
    }

    /// Ends the thread's sleep, if it sleeps. What the caller did before, the thread sees after.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = rustix::io::write(&self.event, &1_u64.to_ne_bytes())
        {
            tracing::error!(%error, "a thread that fetches pages cannot be woken");
        }
    }
}

impl Ring {
    /// A ring for so many reads at a time. To be used by the calling thread alone.
    pub(crate) fn new(reads: u32, wake: Arc<Wake>) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.dontfork();
        // Completions are handled when this thread waits for them, not by interrupting it (Linux 6.1).
        let mut newer = builder.clone();
        newer.setup_single_issuer().setup_defer_taskrun();
        let uring = newer.build(reads + 1).or_else(|_| builder.build(reads + 1))?;
        if !uring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into()); // Before Linux 5.11: no waiting with a limit.
        }
        Ok(Ring { uring, wake, waits_for_wake: false })
    }

    /// Whether the kernel lets this process have one.
    pub(crate) fn probe() -> io::Result<()> {
        Ring::new(1, Arc::new(Wake::new()?)).map(drop)
    }

    /// Begins a read at the next [`Self::sleep`]; [`Self::completed`] tells its `token`, anything but `u64::MAX`, when it
    /// has ended.
    ///
    /// # Safety
    /// The buffer is nobody else's, and stays where it is, until then; so does the file.
    pub(crate) unsafe fn read(&mut self, token: u64, file: BorrowedFd<'_>, buffer: *mut [u8], offset: u64) {
        let read = opcode::Read::new(Fd(file.as_raw_fd()), buffer.cast(), buffer.len() as u32).offset(offset);
        // SAFETY: by the caller.
        unsafe { self.push(&read.build().user_data(token)) };
    }

    /// # Safety
    /// What the entry points to is the kernel's until its completion has been seen.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: by the caller.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            // More at a time than the ring was made for: make room.
            let _ = self.uring.submit();
        }
    }

    /// Begins what has been asked for, and sleeps until a read has ended, somebody calls [`Wake::wake`], or `limit` is
    /// over. Does not sleep if `has_work`, which is asked after a wake would be noticed.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>, has_work: impl FnOnce() -> bool) {
        if !self.waits_for_wake {
            let wait = opcode::PollAdd::new(Fd(self.wake.event.as_raw_fd()), libc::POLLIN as u32);
            // SAFETY: it points to nothing.
            unsafe { self.push(&wait.build().user_data(WAKE)) };
            self.waits_for_wake = true;
        }
        self.wake.asleep.store(true, Ordering::SeqCst);
        let outcome = if has_work() {
            self.uring.submit()
        } else {
            let limit = limit.map(Timespec::from);
            let args = SubmitArgs::new();
            let args = if let Some(limit) = &limit { args.timespec(limit) } else { args };
            self.uring.submitter().submit_with_args(1, &args)
        };
        self.wake.asleep.store(false, Ordering::SeqCst);
        match outcome.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => {}
            // Short of memory, most likely: what was not begun still waits to be.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    /// A read that has ended: its token, and the bytes read or an error number below zero.
    pub(crate) fn completed(&mut self) -> Option<(u64, i32)> {
        loop {
            let entry = self.uring.completion().next()?;
            if entry.user_data() != WAKE {
                return Some((entry.user_data(), entry.result()));
            }
            let _ = rustix::io::read(&self.wake.event, &mut [0; 8]);
            self.waits_for_wake = false;
        }
    }
}
