//! Frames of the engine's own, mapped in the machine's page tables: no system call, and access and dirty bits are the processor's.

use std::io;
use std::ptr;

use vmio_ring0::{Frame, Pages, Rights};

use crate::engine::{BlankFrame, Frames, InstallError, WithdrawnFrame};
use crate::sys::unmap::UnmapList;
use crate::sys::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// As many page tables that were taken out wait for others, so that they share a shootdown.
const TABLES_WAITING: usize = 64;

/// The frames of all ranges of a cache.
pub(crate) struct Ring0Frames {
    pages: Pages,
}

impl Ring0Frames {
    /// Frames for ranges with these pages.
    pub(crate) fn new(pages: Pages) -> Self {
        Ring0Frames { pages }
    }

    fn install_page(&self, address: usize, data: &[u8], rights: Rights) -> io::Result<()> {
        let pool = self.pages.pool();
        let frame = pool.take().ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the frame is ours alone, and has a page.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), pool.address(frame), PAGE_BYTES) };
        self.map(address, frame, rights)
    }

    /// Maps a page's frame, which has its bytes. On an error the frame is free.
    fn map(&self, address: usize, frame: Frame, rights: Rights) -> io::Result<()> {
        let pool = self.pages.pool();
        // SAFETY: the frame is ours alone, and holds the page's bytes.
        match unsafe { self.pages.map(address, frame, rights) } {
            Ok(true) => return Ok(()),
            Ok(false) => pool.give_back(frame),
            Err(error) => {
                pool.give_back(frame);
                return Err(io::Error::other(error));
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

fn rights(for_stores: bool) -> Rights {
    if for_stores { Rights::ReadWrite } else { Rights::Read }
}

impl Frames for Ring0Frames {
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError> {
        let rights = rights(!protect);
        for (number, page) in data.chunks_exact(PAGE_BYTES).enumerate() {
            let installed_bytes = number * PAGE_BYTES;
            self.install_page(address + installed_bytes, page, rights)
                .map_err(|source| InstallError { installed_bytes, source })?;
        }
        Ok(())
    }

    fn blank(&self) -> Option<BlankFrame<'_>> {
        let pool = self.pages.pool();
        let frame = pool.take()?;
        // SAFETY: the frame is ours until it is given back, and the pool, whose memory it is, lasts as long as this.
        Some(unsafe { BlankFrame::new(self, frame.number(), pool.address(frame)) })
    }

    unsafe fn install_blank(&self, address: usize, frame: BlankFrame<'_>, protect: bool) -> Result<(), InstallError> {
        let frame = self.pages.pool().frame(frame.into_number()).ok_or(io::ErrorKind::NotFound);
        let mapped = frame.map_err(io::Error::from).and_then(|frame| self.map(address, frame, rights(!protect)));
        mapped.map_err(|source| InstallError { installed_bytes: 0, source })
    }

    fn discard(&self, number: u32) {
        if let Some(frame) = self.pages.pool().frame(number) {
            self.pages.pool().give_back(frame);
        }
    }

    fn protect(&self, address: usize, len: usize) -> io::Result<()> {
        self.pages.protect(address..address + len);
        self.pages.machine().shootdown();
        Ok(())
    }

    fn unprotect(&self, address: usize, len: usize) -> io::Result<()> {
        // A TLB that still has it protected faults once more.
        for page in (address..address + len).step_by(PAGE_BYTES) {
            self.pages.unprotect(page);
        }
        Ok(())
    }

    fn unmaps_scattered(&self) -> bool {
        true
    }

    fn unmaps_without_calls(&self) -> bool {
        vmio_ring0::is_at_ring_0()
    }

    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64 {
        let each = |address: usize, len: usize| (address..address + len).step_by(PAGE_BYTES);
        pages.drop_ranges(0, |address, len| {
            each(address, len).for_each(|page| _ = self.pages.hide(page));
            true
        });
        self.pages.machine().shootdown();
        pages.drop_ranges(0, |address, len| {
            for page in each(address, len) {
                // SAFETY: the caller vouches for the pages, whose contents nobody needs any more.
                if let Some(state) = unsafe { self.pages.unmap(page) } {
                    self.pages.pool().give_back(state.frame);
                }
            }
            true
        });
        1
    }

    unsafe fn expose(&self, address: usize, len: usize, for_stores: bool) -> io::Result<()> {
        for page in (address..address + len).step_by(PAGE_BYTES) {
            // SAFETY: the caller keeps the page resident until it is concealed.
            if let Err(error) = unsafe { self.pages.expose(page, rights(for_stores)) } {
                self.conceal(address, page - address, for_stores);
                return Err(match error {
                    // Holds of system calls allocate nothing.
                    vmio_ring0::Error::System { source, .. } => source,
                    _ => io::ErrorKind::NotFound.into(),
                });
            }
        }
        Ok(())
    }

    fn conceal(&self, address: usize, len: usize, for_stores: bool) {
        for page in (address..address + len).step_by(PAGE_BYTES) {
            self.pages.conceal(page, rights(for_stores));
        }
    }

    fn withdraw(&self, address: usize, for_stores: bool) -> Option<WithdrawnFrame> {
        let frame = self.pages.withdraw(address, rights(for_stores))?;
        Some(WithdrawnFrame(frame.number()))
    }

    fn let_go(&self, frame: WithdrawnFrame) {
        if let Some(frame) = self.pages.pool().frame(frame.0) {
            self.pages.let_go(frame);
        }
    }

    unsafe fn take_out_tables(&self, address: usize, len: usize) {
        let end = (address + len).next_multiple_of(HUGE_PAGE_BYTES);
        // SAFETY: the caller vouches for the pages.
        unsafe { self.pages.take_out_tables(address..end) };
    }

    fn free_tables(&self) -> u64 {
        u64::from(self.pages.free_tables(TABLES_WAITING))
    }

    fn set_capacity(&self, pages: u32) {
        self.pages.pool().set_limit(pages);
    }
}
