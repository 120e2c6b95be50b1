//! userfaultfd(2) without SIGBUS. A faulting thread sleeps in the kernel, inside a system call too. A thread that has
//! read the message of the fault wakes it.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use linux_raw_sys::general::{
    UFFD_EVENT_PAGEFAULT, UFFD_FEATURE_POISON, UFFD_PAGEFAULT_FLAG_WP, UFFD_PAGEFAULT_FLAG_WRITE, uffd_msg,
    uffdio_poison, uffdio_range,
};
use linux_raw_sys::ioctl::{UFFDIO_CONTINUE, UFFDIO_WAKE};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::sys::PAGE_BYTES;
use crate::sys::signal::FaultAccess;
use crate::sys::userfaultfd::{StoreTracking, Userfaultfd};

const DEVICE: &str = "/dev/userfaultfd";
/// Missing in the bindings: _IO(0xAA, 0x00).
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xAA00;
/// Missing in the bindings: the request after UFFDIO_CONTINUE, with a structure of the same size.
const UFFDIO_POISON: u32 = UFFDIO_CONTINUE + 1;
const _: () = assert!(size_of::<uffdio_poison>() == 32 && UFFDIO_POISON & 0xff == 8);
const POISON_DONT_WAKE: u64 = 1;

const MESSAGE_BYTES: usize = size_of::<uffd_msg>();
const _: () = assert!(MESSAGE_BYTES == 32);

/// A page fault whose thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The first byte of the page.
    pub(crate) address: usize,
    /// The access that faulted.
    pub(crate) access: FaultAccess,
}

/// The reason why faults are not available as messages.
#[derive(Debug)]
pub(crate) enum NoMessages {
    /// The process may not have a descriptor that also handles the kernel's own accesses: the errors of userfaultfd(2)
    /// and of its device.
    Denied { call: io::Error, device: io::Error },
    /// The kernel does not know a requested feature.
    Unsupported(io::Error),
}

impl Userfaultfd {
    /// Opens a userfaultfd whose faults are messages, those of the kernel inside system calls included. That needs a
    /// privilege, or access to the device.
    pub(crate) fn open_for_messages(tracking: StoreTracking) -> Result<Self, NoMessages> {
        // SAFETY: creating the descriptor changes no memory.
        let fd = match unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) } {
            Ok(fd) => fd,
            Err(call) => new_from_device().map_err(|device| NoMessages::Denied { call: call.into(), device })?,
        };
        Self::from_fd(fd, tracking, UFFD_FEATURE_POISON).map_err(NoMessages::Unsupported)
    }

    /// Returns the next fault that nobody has read, if there is one.
    pub(crate) fn next_fault(&self) -> Option<Fault> {
        let mut message = [0_u8; MESSAGE_BYTES];
        loop {
            match rustix::io::read(self.fd(), &mut message) {
                Ok(MESSAGE_BYTES) if u32::from(message[0]) == UFFD_EVENT_PAGEFAULT => return Some(fault_of(&message)),
                // The descriptor delivers no other events.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Lets the threads that sleep over a page go on: they try their access again.
    pub(crate) fn wake(&self, address: usize) {
        let mut range = uffdio_range { start: address as u64, len: PAGE_BYTES as u64 };
        // SAFETY: `range` is the structure of this request; waking changes no memory. It fails if the range is gone,
        // and its threads with it.
        let _ = unsafe { self.ioctl(UFFDIO_WAKE, &mut range) };
    }

    /// Makes accesses to an absent page fail, without another message: SIGBUS for a load or store, EFAULT for a system
    /// call. Installing the page ends that.
    pub(crate) fn refuse(&self, address: usize) -> io::Result<()> {
        let poison = || {
            let mut request = uffdio_poison {
                range: uffdio_range { start: address as u64, len: PAGE_BYTES as u64 },
                mode: POISON_DONT_WAKE,
                updated: 0,
            };
            // SAFETY: `request` is the structure of this request; where a page has contents it changes nothing.
            unsafe { self.ioctl(UFFDIO_POISON, &mut request) }
        };
        loop {
            match poison() {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                // Either the kernel has marked an absent page of shared memory as write-protected, or the page is
                // refused already.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    self.write_protect(address, PAGE_BYTES, false)?;
                    return poison();
                }
                other => return other,
            }
        }
    }
}

/// Undoes every [`Userfaultfd::refuse`] in a range: accesses to it are faults again.
///
/// # Safety
/// The range is registered with a userfaultfd, and no page in it has contents that anybody needs.
pub(crate) unsafe fn accept(address: usize, len: usize) -> io::Result<()> {
    // This also works for locked memory. A kernel that can refuse pages knows this advice.
    // SAFETY: the caller vouches that the range is registered, and that nobody needs the contents of its pages.
    let done = unsafe { libc::madvise(address as *mut _, len, libc::MADV_DONTNEED_LOCKED) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn new_from_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the request takes flags in place of a pointer and touches no memory; its result is a new descriptor.
    unsafe {
        let fd = libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&device), USERFAULTFD_IOC_NEW, flags);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Reads `struct uffd_msg` of a page fault: flags at byte 8, the address at byte 16.
fn fault_of(message: &[u8; MESSAGE_BYTES]) -> Fault {
    let (words, _) = message.as_chunks::<8>();
    let flags = u64::from_ne_bytes(words[1]);
    let stores = u64::from(UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP);
    let access = if flags & stores != 0 { FaultAccess::Store } else { FaultAccess::Load };
    Fault { address: u64::from_ne_bytes(words[2]) as usize / PAGE_BYTES * PAGE_BYTES, access }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_tells_page_and_access() {
        let message = |flags: u64, address: u64| {
            let mut message = [0; MESSAGE_BYTES];
            message[0] = UFFD_EVENT_PAGEFAULT as u8;
            message[8..16].copy_from_slice(&flags.to_ne_bytes());
            message[16..24].copy_from_slice(&address.to_ne_bytes());
            fault_of(&message)
        };
        assert_eq!(message(0, 0x7000), Fault { address: 0x7000, access: FaultAccess::Load });
        assert_eq!(message(1, 0x7123), Fault { address: 0x7000, access: FaultAccess::Store });
        assert_eq!(message(3, 0x7fff), Fault { address: 0x7000, access: FaultAccess::Store });
    }
}
