//! userfaultfd(2): page faults of a range come to vmio, which installs pages there and write-protects them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use linux_raw_sys::general::{
    UFFD_API, UFFD_FEATURE_MINOR_SHMEM, UFFD_FEATURE_MISSING_SHMEM, UFFD_FEATURE_MOVE, UFFD_FEATURE_PAGEFAULT_FLAG_WP,
    UFFD_FEATURE_SIGBUS, UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, UFFD_FEATURE_WP_UNPOPULATED,
    UFFDIO_COPY_MODE_DONTWAKE, UFFDIO_COPY_MODE_WP, UFFDIO_REGISTER_MODE_MINOR, UFFDIO_REGISTER_MODE_MISSING,
    UFFDIO_REGISTER_MODE_WP, uffdio_api, uffdio_continue, uffdio_copy, uffdio_move, uffdio_range, uffdio_register,
    uffdio_writeprotect,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_CONTINUE, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::sys::PAGE_BYTES;

const WRITE_PROTECT: u64 = 1;
const DONT_WAKE: u64 = 2;
const CONTINUE_DONT_WAKE: u64 = 1;
const CONTINUE_PROTECTED: u64 = 2;
const MOVE_DONT_WAKE: u64 = 1;
/// `_IOWR(0xAA, 5, struct uffdio_move)`.
const UFFDIO_MOVE: u32 = 3 << 30 | (size_of::<uffdio_move>() as u32) << 16 | 0xaa << 8 | 5;

/// The way in which the first store to a write-protected page is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreTracking {
    /// The store is a fault that comes to vmio. For private anonymous memory (Linux 5.7).
    Trap,
    /// The kernel notes the store and lets it through (UFFD_FEATURE_WP_ASYNC, Linux 6.7); [`crate::sys::pagemap`] reads
    /// the notes. For shared memory, where an access to a page that is in memory but not mapped is a fault too.
    Kernel,
}

impl StoreTracking {
    fn features(self) -> u32 {
        match self {
            StoreTracking::Trap => UFFD_FEATURE_PAGEFAULT_FLAG_WP,
            StoreTracking::Kernel => {
                UFFD_FEATURE_MISSING_SHMEM
                    | UFFD_FEATURE_MINOR_SHMEM
                    | UFFD_FEATURE_WP_HUGETLBFS_SHMEM
                    | UFFD_FEATURE_WP_UNPOPULATED
                    | UFFD_FEATURE_WP_ASYNC
            }
        }
    }

    fn register_modes(self) -> u32 {
        match self {
            StoreTracking::Trap => UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
            // With MINOR alone, a page that was punched out would silently read as zeros.
            StoreTracking::Kernel => {
                UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP
            }
        }
    }
}

/// An open userfaultfd. Its faults arrive as SIGBUS in the faulting thread, or as messages (`fault_messages.rs`).
pub(crate) struct Userfaultfd {
    fd: OwnedFd,
    tracking: StoreTracking,
    moves: bool,
}

impl Userfaultfd {
    /// Opens a userfaultfd that handles faults of user code only, which needs no privilege.
    pub(crate) fn open(tracking: StoreTracking) -> io::Result<Self> {
        // A feature that the kernel does not know is an error. Moving pages is new (Linux 6.8), and works for anonymous
        // pages only.
        match tracking {
            StoreTracking::Trap => Self::open_with(tracking, true).or_else(|_| Self::open_with(tracking, false)),
            StoreTracking::Kernel => Self::open_with(tracking, false),
        }
    }

    /// All features that the kernel supports (UFFD_FEATURE_*).
    pub(crate) fn supported_features() -> io::Result<u64> {
        Ok(Self::negotiate(Userfaultfd { fd: new_for_user_code()?, tracking: StoreTracking::Trap, moves: false }, 0)?.1)
    }

    fn open_with(tracking: StoreTracking, moves: bool) -> io::Result<Self> {
        let features = UFFD_FEATURE_SIGBUS | tracking.features() | if moves { UFFD_FEATURE_MOVE } else { 0 };
        Ok(Self::negotiate(Userfaultfd { fd: new_for_user_code()?, tracking, moves }, features)?.0)
    }

    /// A userfaultfd whose faults are messages, not signals; `features` are those that messages need.
    pub(super) fn from_fd(fd: OwnedFd, tracking: StoreTracking, features: u32) -> io::Result<Self> {
        Ok(Self::negotiate(Userfaultfd { fd, tracking, moves: false }, features | tracking.features())?.0)
    }

    /// Enables features of a new descriptor. Returns all features that the kernel supports.
    fn negotiate(this: Self, features: u32) -> io::Result<(Self, u64)> {
        let mut api = uffdio_api { api: u64::from(UFFD_API), features: u64::from(features), ioctls: 0 };
        // SAFETY: `api` is the structure that this request reads and writes.
        unsafe { this.ioctl(UFFDIO_API, &mut api)? };
        Ok((this, api.features))
    }

    /// The descriptor, to wait for messages.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether [`Self::move_pages`] works.
    pub(crate) fn moves_pages(&self) -> bool {
        self.moves
    }

    /// Subscribes to the faults of a range.
    pub(crate) fn register(&self, address: usize, len: usize) -> io::Result<()> {
        let mut register = uffdio_register {
            range: uffdio_range { start: address as u64, len: len as u64 },
            mode: u64::from(self.tracking.register_modes()),
            ioctls: 0,
        };
        // SAFETY: `register` is the structure of this request; registering changes no contents.
        unsafe { self.ioctl(UFFDIO_REGISTER, &mut register) }
    }

    /// Copies `data` into an absent range. An error tells how many bytes went in before it.
    ///
    /// # Safety
    /// The range at `address` must be registered with this userfaultfd, and its owner must expect the pages.
    pub(crate) unsafe fn copy(&self, address: usize, data: &[u8], protect: bool) -> Result<(), (usize, io::Error)> {
        debug_assert!(data.len().is_multiple_of(PAGE_BYTES));
        let mut done = 0;
        while done < data.len() {
            let mut copy = uffdio_copy {
                dst: (address + done) as u64,
                src: data[done..].as_ptr() as u64,
                len: (data.len() - done) as u64,
                mode: u64::from(UFFDIO_COPY_MODE_DONTWAKE) | if protect { u64::from(UFFDIO_COPY_MODE_WP) } else { 0 },
                copy: 0,
            };
            // SAFETY: `copy` is the structure of this request; `data` is readable; the caller vouches for the target.
            match unsafe { self.ioctl(UFFDIO_COPY, &mut copy) } {
                Ok(()) => done += copy.copy as usize,
                Err(error) => {
                    done += copy.copy.max(0) as usize;
                    // EAGAIN: another thread is changing the address space, or a part went in. Go on from there.
                    if error.raw_os_error() != Some(libc::EAGAIN) {
                        return Err((done, error));
                    }
                }
            }
        }
        Ok(())
    }

    /// Maps a page that is in its file but not in the address space. False if the page is mapped already, which changes
    /// nothing.
    pub(crate) fn map_existing(&self, address: usize, protect: bool) -> io::Result<bool> {
        loop {
            let mut request = uffdio_continue {
                range: uffdio_range { start: address as u64, len: PAGE_BYTES as u64 },
                mode: CONTINUE_DONT_WAKE | if protect { CONTINUE_PROTECTED } else { 0 },
                mapped: 0,
            };
            // SAFETY: `request` is the structure of this request; it changes no contents.
            match unsafe { self.ioctl(UFFDIO_CONTINUE, &mut request) } {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(false),
                other => return other.map(|()| true),
            }
        }
    }

    /// Moves the memory of a range of private pages to an absent range. A huge page takes one step if both ends are
    /// aligned and no page tables stand in the way. The target is writable. After an error, a part may have moved.
    ///
    /// # Safety
    /// The range at `address` must be registered with this userfaultfd, and its owner must expect the pages. Nobody
    /// else may use the range at `source`, which has no memory afterwards.
    pub(crate) unsafe fn move_pages(&self, address: usize, source: usize, len: usize) -> io::Result<()> {
        let mut request =
            uffdio_move { dst: address as u64, src: source as u64, len: len as u64, mode: MOVE_DONT_WAKE, move_: 0 };
        // SAFETY: `request` is the structure of this request; the caller vouches for both ranges.
        unsafe { self.ioctl(UFFDIO_MOVE, &mut request) }
    }

    /// Write-protects a registered range, or makes it writable again. One TLB shootdown.
    pub(crate) fn write_protect(&self, address: usize, len: usize, protect: bool) -> io::Result<()> {
        loop {
            let mut request = uffdio_writeprotect {
                range: uffdio_range { start: address as u64, len: len as u64 },
                mode: if protect { WRITE_PROTECT } else { DONT_WAKE },
            };
            // SAFETY: `request` is the structure of this request; protection changes no contents.
            match unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut request) } {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                other => return other,
            }
        }
    }

    /// # Safety
    /// `argument` must be the structure that `request` expects.
    pub(super) unsafe fn ioctl<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: the caller vouches for the pair.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn new_for_user_code() -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(1); // UFFD_USER_MODE_ONLY
    // SAFETY: creating the descriptor changes no memory.
    Ok(unsafe { userfaultfd(flags)? })
}
