//! Ranges of addresses whose pages the program maps itself.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::address_space::{USER_END, entry};
use crate::error::{Error, Result};
use crate::faults::FaultHandler;
use crate::frames::{Frame, FramePool};
use crate::machine::Machine;
use crate::memory::{LARGE_PAGE_BYTES, PAGE_BYTES};

/// The accesses to a page that do not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// A store faults.
    Read,
    /// Loads and stores.
    ReadWrite,
}

impl Rights {
    fn bits(self) -> u64 {
        match self {
            Rights::Read => entry::PRESENT | entry::USER,
            Rights::ReadWrite => entry::PRESENT | entry::USER | entry::WRITABLE,
        }
    }
}

/// A mapped page, as the processor has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Its frame.
    pub frame: Frame,
    /// The rights to it.
    pub rights: Rights,
    /// A thread has touched it since it was mapped, or since [`Pages::take_accessed`].
    pub is_accessed: bool,
    /// A thread has stored to it since it was mapped, or since its rights became [`Rights::Read`].
    pub is_dirty: bool,
}

/// The pages of all ranges whose frames come from one pool.
///
/// Of a change that takes rights away, other threads hear at the next [`Machine::shootdown`]; until then they may go on as before.
#[derive(Clone)]
pub struct Pages {
    machine: &'static Machine,
    pool: Arc<FramePool>,
}

impl Pages {
    /// None so far: ranges have them.
    pub fn new(machine: &'static Machine, pool: FramePool) -> Pages {
        Pages { machine, pool: Arc::new(pool) }
    }

    /// The machine.
    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// The pool of frames.
    pub fn pool(&self) -> &FramePool {
        &self.pool
    }

    /// Maps a frame for the page at an address. False, with nothing changed, if the page has one.
    ///
    /// # Errors
    ///
    /// If the page is in no managed range, or there is no memory for page tables.
    ///
    /// # Safety
    /// The frame holds the page's bytes, and is mapped nowhere else.
    pub unsafe fn map(&self, address: usize, frame: Frame, rights: Rights) -> Result<bool> {
        let place = self.machine.space.make_page_entry(address)?;
        let new = self.pool.physical(frame) | rights.bits();
        Ok(place.compare_exchange(0, new, Ordering::Release, Ordering::Relaxed).is_ok())
    }

    /// Has accesses to a mapped page fault. It keeps its frame, and what the processor has noted, until [`Self::unmap`].
    pub fn hide(&self, address: usize) {
        if let Some(place) = self.machine.space.page_entry(address) {
            place.fetch_and(!entry::PRESENT, Ordering::AcqRel);
        }
    }

    /// Unmaps the page at an address; returns what it was, if it had a frame. That may be used for another page once the TLBs are empty.
    ///
    /// # Safety
    /// Nobody has references to the page's bytes.
    pub unsafe fn unmap(&self, address: usize) -> Option<PageState> {
        self.state_of(self.machine.space.page_entry(address)?.swap(0, Ordering::AcqRel))
    }

    /// Changes the rights to a mapped page; returns what it was before. With fewer rights it counts as clean from then on: a later store faults,
    /// or notes that it was stored to.
    pub fn set_rights(&self, address: usize, rights: Rights) -> Option<PageState> {
        let place = self.machine.space.page_entry(address)?;
        let mut seen = place.load(Ordering::Acquire);
        loop {
            let before = self.state_of(seen).filter(|_| seen & entry::PRESENT != 0)?;
            let kept = match rights {
                Rights::Read => seen & !(entry::WRITABLE | entry::DIRTY),
                Rights::ReadWrite => seen,
            };
            match place.compare_exchange_weak(seen, kept | rights.bits(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(before),
                // The processor has noted an access meanwhile, or another thread was here.
                Err(now) => seen = now,
            }
        }
    }

    /// The page at an address, if it is mapped.
    pub fn state(&self, address: usize) -> Option<PageState> {
        let held = self.machine.space.page_entry(address)?.load(Ordering::Acquire);
        self.state_of(held).filter(|_| held & entry::PRESENT != 0)
    }

    /// Clears the note that a page was touched, and returns it. The processor makes a new one when its TLB has forgotten the page.
    pub fn take_accessed(&self, address: usize) -> bool {
        let place = self.machine.space.page_entry(address);
        place.is_some_and(|place| place.fetch_and(!entry::ACCESSED, Ordering::AcqRel) & entry::ACCESSED != 0)
    }

    /// The frame of a page, mapped or hidden.
    pub(crate) fn frame_of(&self, address: usize) -> Option<Frame> {
        self.state_of(self.machine.space.page_entry(address)?.load(Ordering::Acquire)).map(|state| state.frame)
    }

    fn state_of(&self, held: u64) -> Option<PageState> {
        if held == 0 {
            return None;
        }
        Some(PageState {
            frame: self.pool.frame_at(held & entry::ADDRESS)?,
            rights: if held & entry::WRITABLE != 0 { Rights::ReadWrite } else { Rights::Read },
            is_accessed: held & entry::ACCESSED != 0,
            is_dirty: held & entry::DIRTY != 0,
        })
    }
}

/// A range whose pages are there in the machine when the program maps frames for them, and fault otherwise. Outside the machine the range is
/// whatever the process has mapped there, best nothing (`PROT_NONE`).
pub struct ManagedRange {
    pages: Pages,
    addresses: Range<usize>,
}

impl ManagedRange {
    /// Manages a range, none of whose pages are mapped then, or ever will be with more than `most` rights. `handler` is called for each fault in it, and is the same for all ranges of a process.
    ///
    /// # Errors
    ///
    /// If the range has not whole large pages (2 MiB), or another handler is there, or the page tables are full.
    ///
    /// # Safety
    /// The addresses are the caller's own: nobody has references to what lies there, in the machine or outside.
    pub unsafe fn new(
        pages: Pages,
        addresses: Range<usize>,
        most: Rights,
        handler: FaultHandler,
    ) -> Result<ManagedRange> {
        let Range { start, end } = addresses;
        if start >= end || end > USER_END || !(start | end).is_multiple_of(LARGE_PAGE_BYTES) {
            return Err(Error::BadRange { start, end, limit: USER_END });
        }
        let machine = pages.machine;
        if !std::ptr::fn_addr_eq(*machine.handler.get_or_init(|| handler), handler) {
            return Err(Error::OtherHandler);
        }
        let range = ManagedRange { pages, addresses: start..end };
        machine.space.manage(start..end, most)?;
        machine.shootdown();
        Ok(range)
    }

    /// The addresses.
    pub fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }

    /// The pages of this range, and of others.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }
}

impl Drop for ManagedRange {
    fn drop(&mut self) {
        let Pages { machine, pool } = &self.pages;
        // A child does not have its parent's page tables.
        if !machine.is_of_process() {
            return;
        }
        let with_table = |large: &usize| machine.space.page_entry(*large).is_some();
        let tables = || self.addresses.clone().step_by(LARGE_PAGE_BYTES).filter(with_table);
        let addresses = || tables().flat_map(|large| (large..large + LARGE_PAGE_BYTES).step_by(PAGE_BYTES));
        addresses().for_each(|address| self.pages.hide(address));
        machine.shootdown();
        // A system call may still use a page: it finds nothing there from now on, and nobody else gets the frame.
        addresses().for_each(|address| self.pages.abandon(address));
        for address in addresses() {
            // SAFETY: the range goes away, and whoever drops it has ended every use of its pages.
            if let Some(state) = unsafe { self.pages.unmap(address) } {
                pool.give_back(state.frame);
            }
        }
        machine.space.release(self.addresses.clone());
        // The processor may remember tables that are free now.
        machine.shootdown();
    }
}
