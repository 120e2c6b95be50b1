//! Managed pages that the kernel sees as well, for system calls: outside the machine the same frame is at the same address.

use crate::error::{Error, Result};
use crate::managed::{Pages, Rights};
use crate::memory::PAGE_BYTES;
use crate::raw;

impl Pages {
    /// Has the process see a page that has a frame outside the machine, until [`Self::conceal`]: system calls take pointers to it, and threads outside touch it
    /// without entering. [`PageState::is_dirty`](crate::PageState::is_dirty) does not say of their stores.
    ///
    /// # Errors
    ///
    /// [`Error::NotManaged`] for a page that has no frame; [`Error::System`] if the process has too many mappings (`vm.max_map_count`).
    ///
    /// # Safety
    /// The page keeps its frame until it is concealed.
    pub unsafe fn expose(&self, address: usize, rights: Rights) -> Result<()> {
        debug_assert!(address.is_multiple_of(PAGE_BYTES));
        let failed = |source| Error::System { operation: "exposing a page to system calls", source };
        let frame = self.frame(address).ok_or(Error::NotManaged { address })?;
        let frame = self.pool().address(frame) as u64;
        // Of a shared mapping, no bytes moved are a second mapping of the same.
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [frame, 0, PAGE_BYTES as u64, flags, address as u64, 0];
        // SAFETY: the address is a managed one, where the process has nothing outside, and the pool's mapping is shared.
        let mapped = unsafe { raw::call(libc::SYS_mremap as u64, arguments) };
        if let Some(error) = raw::error_of(mapped) {
            return Err(failed(std::io::Error::from_raw_os_error(error)));
        }
        if rights == Rights::Read {
            let arguments = [address as u64, PAGE_BYTES as u64, libc::PROT_READ as u64, 0, 0, 0];
            // SAFETY: takes a right from the mapping just made.
            let protected = unsafe { raw::call(libc::SYS_mprotect as u64, arguments) };
            if let Some(error) = raw::error_of(protected) {
                self.conceal(address);
                return Err(failed(std::io::Error::from_raw_os_error(error)));
            }
        }
        Ok(())
    }

    /// Ends that: a touch outside faults again.
    pub fn conceal(&self, address: usize) {
        debug_assert!(address.is_multiple_of(PAGE_BYTES));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let arguments = [address as u64, PAGE_BYTES as u64, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
        // SAFETY: the address is a managed one, so what lies there outside is a page that was exposed, or nothing.
        let covered = unsafe { raw::call(libc::SYS_mmap as u64, arguments) };
        if let Some(error) = raw::error_of(covered) {
            // The frame may become another page's, whose bytes a system call would change.
            raw::die("hiding a page from system calls failed, errno", error as u64);
        }
        let advice = libc::MADV_DONTFORK as u64;
        // SAFETY: the mapping just made. As the addresses around it, so that the kernel can join them; if it fails, a child has a hole that it may not
        // touch.
        unsafe { raw::call(libc::SYS_madvise as u64, [address as u64, PAGE_BYTES as u64, advice, 0, 0, 0]) };
    }
}
