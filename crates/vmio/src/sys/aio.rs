//! Linux AIO: any thread may begin a read. It ends in another thread, without the help of the one that began it.
//!
//! With io_uring, the thread that submitted a request has to process its end. A thread that sleeps in its executor, or
//! that computes, would be woken or interrupted for each read.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::{EventfdFlags, eventfd};

/// From linux/aio_abi.h.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_POLL: u16 = 5;

/// The token of the wait that [`Aio::stop`] begins.
const STOP: u64 = u64::MAX;

/// The kernel's `aio_context_t`, and a file that can always be read.
pub(crate) struct Aio {
    context: libc::c_ulong,
    readable: OwnedFd,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    token: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Event>() == 32 && size_of::<libc::iocb>() == 64);

/// A buffer for completions.
pub(crate) struct Ended(Box<[Event]>);

impl Ended {
    /// Makes a buffer for this many reads.
    pub(crate) fn of(reads: u32) -> Self {
        Ended(vec![Event::default(); reads as usize].into())
    }
}

impl Aio {
    /// Makes a context for this many reads at a time.
    pub(crate) fn new(reads: u32) -> io::Result<Self> {
        let readable = eventfd(1, EventfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context there, and shares no other memory with us.
        check(unsafe { libc::syscall(libc::SYS_io_setup, libc::c_long::from(reads) + 1, &raw mut context) })?;
        Ok(Aio { context, readable })
    }

    /// Begins a read. Once it has ended, [`Self::wait`] returns its `token`, which is anything but `u64::MAX`. A read
    /// that cannot begin at once ends with EAGAIN. Async-signal-safe.
    ///
    /// # Safety
    /// Unless this returns an error: the buffer is nobody else's and stays where it is until the read has ended; so
    /// does the file.
    pub(crate) unsafe fn read(
        &self,
        token: u64,
        file: BorrowedFd<'_>,
        buffer: *mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        let mut request = request(IOCB_CMD_PREAD, token, file);
        request.aio_rw_flags = libc::RWF_NOWAIT;
        (request.aio_buf, request.aio_nbytes) = (buffer.cast::<u8>().addr() as u64, buffer.len() as u64);
        request.aio_offset = offset as i64;
        // SAFETY: the caller vouches that the buffer and the file stay until the read has ended.
        unsafe { self.submit(&request) }
    }

    /// Makes [`Self::wait`] return `false` in one thread. Callers stop once no read is under way.
    pub(crate) fn stop(&self) -> io::Result<()> {
        use std::os::fd::AsFd;
        let mut poll = request(IOCB_CMD_POLL, STOP, self.readable.as_fd());
        poll.aio_buf = libc::POLLIN as u64;
        // SAFETY: the request points to no memory.
        unsafe { self.submit(&poll) }
    }

    /// # Safety
    /// The memory that the request points to is the kernel's until it has ended, unless there is an error.
    unsafe fn submit(&self, request: &libc::iocb) -> io::Result<()> {
        let list = [ptr::from_ref(request)];
        // SAFETY: the caller vouches for the request's memory. The kernel reads the request itself and the list before
        // the call returns.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1_usize, list.as_ptr()) })
    }

    /// Sleeps until reads have ended. Calls `each` with the token of each, and the bytes read or a negative error
    /// number. Returns `false` after [`Self::stop`].
    pub(crate) fn wait(&self, ended: &mut Ended, mut each: impl FnMut(u64, i32)) -> io::Result<bool> {
        let (events, room) = (ended.0.as_mut_ptr(), ended.0.len());
        let forever = ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes no more events than there is space for.
        let count = unsafe { libc::syscall(libc::SYS_io_getevents, self.context, 1_usize, room, events, forever) };
        if let Err(error) = check(count) {
            return if error.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(error) };
        }
        let ended = &ended.0[..count as usize];
        for event in ended.iter().filter(|event| event.token != STOP) {
            each(event.token, event.result as i32);
        }
        Ok(ended.iter().all(|event| event.token != STOP))
    }
}

fn request(operation: u16, token: u64, file: BorrowedFd<'_>) -> libc::iocb {
    // SAFETY: the structure has integers only, and zeros are the defaults of fields that are not set.
    let mut request: libc::iocb = unsafe { std::mem::zeroed() };
    request.aio_lio_opcode = operation;
    request.aio_data = token;
    request.aio_fildes = file.as_raw_fd() as u32;
    request
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: no thread uses the context any more. A forked child has no context of that number, and the call is an
        // error there.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_read_ends_in_another_thread_than_it_began_in() {
        let Ok(aio) = Aio::new(4) else { return test_depth::skipped("no Linux AIO") };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        let unreadable = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let mut buffer = vec![0_u8; 8192];
        let first = std::ptr::slice_from_raw_parts_mut(buffer.as_mut_ptr(), 4096);
        let mut results = Vec::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut ended = Ended::of(4);
                while aio.wait(&mut ended, |token, result| results.push((token, result))).unwrap() {}
            });
            // SAFETY: nobody looks at the buffer before the reader has ended; buffer and file outlive it.
            unsafe { aio.read(3, file.as_fd(), first, 4096) }.unwrap();
            // SAFETY: nothing reads into the buffer before the reader has ended; buffer and file outlive it.
            let refused = unsafe { aio.read(4, unreadable.as_fd(), first, 0) };
            aio.stop().unwrap();
            reader.join().unwrap();
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBADF));
        });
        assert_eq!(results, [(3, 4096)]);
        assert_eq!(buffer, [[7; 4096], [0; 4096]].concat());
    }
}
