//! Managed pages that the kernel sees as well, for system calls: outside the machine the same frame is at the same address.

use crate::error::{Error, Result};
use crate::exposures::{Exposures, Seen};
use crate::frames::Frame;
use crate::managed::{Pages, Rights};
use crate::memory::PAGE_BYTES;
use crate::raw;

/// Callers of these have signals blocked: a handler that exposed a page meanwhile would wait for its own thread.
impl Pages {
    /// Has the process see a page outside the machine, mapped at this address or not, until as many calls of [`Self::conceal`] or
    /// [`Self::withdraw`] with the same rights. System calls take pointers to it, and threads outside touch it without entering. Of several rights,
    /// the address has the most. [`PageState::is_dirty`](crate::PageState::is_dirty) does not say of their stores.
    ///
    /// # Errors
    ///
    /// [`Error::NotManaged`] for a page that has no frame; [`Error::System`] if the process has too many mappings (`vm.max_map_count`). The page is
    /// as it was then.
    ///
    /// # Safety
    /// The page keeps its frame until it is concealed.
    pub unsafe fn expose(&self, address: usize, rights: Rights) -> Result<()> {
        debug_assert!(address.is_multiple_of(PAGE_BYTES));
        let frame = self.frame(address).ok_or(Error::NotManaged { address })?;
        let exposures = self.pool().exposures();
        let mut seen = exposures.seen();
        let before = seen.rights(address);
        if !seen.begin(address, rights) {
            let source = std::io::ErrorKind::OutOfMemory.into();
            return Err(Error::System { operation: "exposing another page to system calls", source });
        }
        exposures.begin(frame);
        if before == seen.rights(address) {
            return Ok(());
        }
        self.show_outside(address, frame, rights).map_err(|error| {
            exposures.end(frame);
            seen.end(address, rights);
            // The kernel may have taken away what was there.
            let is_as_before = before.is_some_and(|rights| self.show_outside(address, frame, rights).is_ok());
            if !is_as_before {
                cover(address, libc::MAP_FIXED_NOREPLACE);
            }
            let source = std::io::Error::from_raw_os_error(error);
            Error::System { operation: "exposing a page to system calls", source }
        })
    }

    /// Ends one [`Self::expose`]. After the last one a touch outside faults again.
    pub fn conceal(&self, address: usize, rights: Rights) {
        self.end(address, |seen| seen.end(address, rights), |exposures, frame, _| exposures.end(frame));
    }

    /// Ends one [`Self::expose`] at its address, while a system call may still use the memory. Returns the frame, which no other page gets until
    /// [`Self::let_go`]. `None` if the page has none.
    pub fn withdraw(&self, address: usize, rights: Rights) -> Option<Frame> {
        self.end(address, |seen| seen.end(address, rights), |exposures, frame, _| exposures.withdraw(frame, 1))
    }

    /// Ends the use of a frame by a system call, after [`Self::withdraw`].
    pub fn let_go(&self, frame: Frame) {
        if self.pool().exposures().let_go(frame) {
            self.pool().make_free(frame);
        }
    }

    /// Withdraws all exposures at an address where a page goes away. Nobody has concealed it, so nobody will let its frame go.
    pub(crate) fn abandon(&self, address: usize) {
        let exposures = self.pool().exposures();
        if self.frame(address).is_some_and(|frame| exposures.is_any(frame)) {
            self.end(address, |seen| seen.end_all(address), Exposures::withdraw);
        }
    }

    /// Ends some exposures at an address, of which `count` is told how many they are.
    fn end(
        &self,
        address: usize,
        end: impl FnOnce(&mut Seen) -> u64,
        count: impl FnOnce(&Exposures, Frame, u64),
    ) -> Option<Frame> {
        debug_assert!(address.is_multiple_of(PAGE_BYTES));
        let frame = self.frame(address)?;
        let exposures = self.pool().exposures();
        let mut seen = exposures.seen();
        let before = seen.rights(address);
        let ended = end(&mut seen);
        count(exposures, frame, ended);
        match seen.rights(address) {
            rights if rights == before => {}
            // No store may come any more that nobody has announced.
            Some(Rights::Read) if take_stores(address) => {}
            _ => cover(address, libc::MAP_FIXED),
        }
        Some(frame)
    }

    /// Maps a frame at its page's address outside. The error is an errno.
    fn show_outside(&self, address: usize, frame: Frame, rights: Rights) -> Result<(), i32> {
        // A mapping without the right to store, from the first instant on, comes from one without it.
        let source = match rights {
            Rights::Read => self.pool().address_for_reading(frame),
            Rights::ReadWrite => self.pool().address(frame) as usize,
        };
        // Of a shared mapping, no bytes moved are a second mapping of the same.
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [source as u64, 0, PAGE_BYTES as u64, flags, address as u64, 0];
        // SAFETY: the address is a managed one, where the process has nothing of its own outside, and the pool's mappings are shared.
        let mapped = unsafe { raw::call(libc::SYS_mremap as u64, arguments) };
        raw::error_of(mapped).map_or(Ok(()), Err)
    }
}

/// Takes the right to store from an exposed page. False if the kernel refuses.
fn take_stores(address: usize) -> bool {
    let arguments = [address as u64, PAGE_BYTES as u64, libc::PROT_READ as u64, 0, 0, 0];
    // SAFETY: takes a right from the mapping that shows the page.
    let taken = unsafe { raw::call(libc::SYS_mprotect as u64, arguments) };
    raw::error_of(taken).is_none()
}

/// Has a touch of a managed address fault outside: in place of what is there (`MAP_FIXED`), or only if the kernel has left a hole there
/// (`MAP_FIXED_NOREPLACE`), in which another thread may have mapped memory of its own by now.
fn cover(address: usize, how: i32) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how;
    let arguments = [address as u64, PAGE_BYTES as u64, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
    // SAFETY: the address is a managed one, so what lies there outside is a page that was exposed, or nothing.
    let covered = unsafe { raw::call(libc::SYS_mmap as u64, arguments) };
    match raw::error_of(covered) {
        None => {}
        Some(libc::EEXIST) => return,
        // The frame may become another page's, whose bytes a system call would change.
        Some(error) => raw::die("hiding a page from system calls failed, errno", error as u64),
    }
    let advice = libc::MADV_DONTFORK as u64;
    // SAFETY: the mapping just made. As the addresses around it, so that the kernel can join them; if it fails, a child has a hole that it may not
    // touch.
    unsafe { raw::call(libc::SYS_madvise as u64, [address as u64, PAGE_BYTES as u64, advice, 0, 0, 0]) };
}
