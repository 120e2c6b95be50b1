//! Ranges of addresses whose pages the program maps itself.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::address_space::USER_END;
use crate::deferral;
use crate::error::{Error, Result};
use crate::faults::FaultHandler;
use crate::frames::{Frame, FramePool};
use crate::machine::Machine;
use crate::memory::{LARGE_PAGE_BYTES, PAGE_BYTES};
use crate::page_tables::{PageTables, entry};

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
    /// A thread has stored to it since it was mapped, or since [`Pages::protect`].
    pub is_dirty: bool,
}

/// The processor's note that a thread has stored to a page, which was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNote {
    /// The page was mapped: the processor makes a new note when its TLB has forgotten the page.
    pub was_mapped: bool,
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

    fn tables(&self) -> &PageTables {
        self.machine.space.tables()
    }

    /// Maps a frame for the page at an address. False, with nothing changed, if the page has one.
    ///
    /// # Errors
    ///
    /// If the page is in no managed range, or there is no memory for page tables.
    ///
    /// # Safety
    /// The frame holds the page's bytes, and is mapped for no other page.
    pub unsafe fn map(&self, address: usize, frame: Frame, rights: Rights) -> Result<bool> {
        self.set(address, frame, rights.bits())
    }

    /// Gives the page at an address a frame without mapping it: accesses fault until [`Self::show`]. False, with nothing changed, if the page has one.
    ///
    /// # Errors
    ///
    /// Those of [`Self::map`].
    ///
    /// # Safety
    /// Those of [`Self::map`].
    pub unsafe fn hold(&self, address: usize, frame: Frame) -> Result<bool> {
        self.set(address, frame, 0)
    }

    fn set(&self, address: usize, frame: Frame, bits: u64) -> Result<bool> {
        let place = self.tables().make_page_entry(address)?;
        let new = self.pool.physical(frame) | bits;
        Ok(place.compare_exchange(0, new, Ordering::Release, Ordering::Relaxed).is_ok())
    }

    /// Maps a page that has a frame; it counts as stored to if `is_dirty`, and otherwise not. False, with nothing changed, if it is mapped or has none.
    pub fn show(&self, address: usize, rights: Rights, is_dirty: bool) -> bool {
        let Some(place) = self.tables().page_entry(address) else { return false };
        let noted = if is_dirty { entry::DIRTY } else { 0 };
        let show = |held: u64| {
            let is_hidden = held != 0 && held & entry::PRESENT == 0;
            is_hidden.then(|| held & entry::ADDRESS | rights.bits() | noted)
        };
        place.fetch_update(Ordering::AcqRel, Ordering::Acquire, show).is_ok()
    }

    /// Has accesses to a mapped page fault; false if it is not mapped. It keeps its frame, and what the processor has noted, until [`Self::show`]
    /// or [`Self::unmap`].
    pub fn hide(&self, address: usize) -> bool {
        let place = self.tables().page_entry(address);
        place.is_some_and(|place| {
            // Most pages of a range have none: nothing to write.
            place.load(Ordering::Acquire) & entry::PRESENT != 0
                && place.fetch_and(!entry::PRESENT, Ordering::AcqRel) & entry::PRESENT != 0
        })
    }

    /// The most rights that a page at an address may have.
    pub fn most(&self, address: usize) -> Rights {
        if self.machine.space.is_read_only(address) { Rights::Read } else { Rights::ReadWrite }
    }

    /// Allows stores to a mapped page, as far as its range does. The notes of the processor stay.
    pub fn allow_stores(&self, address: usize) {
        if self.most(address) == Rights::ReadWrite {
            self.unprotect(address);
        }
    }

    /// The frame of the page at an address, mapped or not.
    pub fn frame(&self, address: usize) -> Option<Frame> {
        let held = self.tables().page_entry(address)?.load(Ordering::Acquire);
        self.state_of(held).map(|state| state.frame)
    }

    /// Whether a thread has stored to the page at an address, mapped or not, as [`PageState::is_dirty`].
    pub fn is_dirty(&self, address: usize) -> bool {
        self.tables().page_entry(address).is_some_and(|place| place.load(Ordering::Acquire) & entry::DIRTY != 0)
    }

    /// Clears that note, and returns it.
    pub fn take_dirty(&self, address: usize) -> Option<StoreNote> {
        let place = self.tables().page_entry(address)?;
        let has_note = |held: &u64| held & entry::DIRTY != 0;
        Some(place.load(Ordering::Acquire)).filter(has_note)?;
        let held = Some(place.fetch_and(!entry::DIRTY, Ordering::AcqRel)).filter(has_note)?;
        Some(StoreNote { was_mapped: held & entry::PRESENT != 0 })
    }

    /// Unmaps the page at an address; returns what it was, if it had a frame. That may be used for another page once the TLBs are empty.
    ///
    /// # Safety
    /// Nobody has references to the page's bytes.
    pub unsafe fn unmap(&self, address: usize) -> Option<PageState> {
        self.state_of(self.tables().page_entry(address)?.swap(0, Ordering::AcqRel))
    }

    /// Allows stores to a mapped page. The notes of the processor stay.
    pub fn unprotect(&self, address: usize) {
        let Some(place) = self.tables().page_entry(address) else { return };
        let unprotect = |held: u64| (held & entry::PRESENT != 0).then_some(held | entry::WRITABLE);
        let _ = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, unprotect);
    }

    /// Has stores to the mapped pages at some addresses fault. They count as clean from then on. Most of the pages may be absent.
    pub fn protect(&self, addresses: Range<usize>) {
        let protect = |held: u64| (held & entry::PRESENT != 0).then_some(held & !(entry::WRITABLE | entry::DIRTY));
        for place in self.tables().page_entries(addresses) {
            let _ = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, protect);
        }
    }

    /// The page at an address, if it is mapped.
    pub fn state(&self, address: usize) -> Option<PageState> {
        let held = self.tables().page_entry(address)?.load(Ordering::Acquire);
        self.state_of(held).filter(|_| held & entry::PRESENT != 0)
    }

    /// Clears the note that a page was touched, and returns it. The processor makes a new one when its TLB has forgotten the page.
    pub fn take_accessed(&self, address: usize) -> bool {
        let place = self.tables().page_entry(address);
        place.is_some_and(|place| place.fetch_and(!entry::ACCESSED, Ordering::AcqRel) & entry::ACCESSED != 0)
    }

    /// Takes the page tables of some whole large pages (2 MiB) out of the machine, as far as no page there has a frame. Their memory is used again
    /// after [`Self::free_tables`].
    ///
    /// # Safety
    /// Until this returns, nobody maps a page there, or asks for one or changes one.
    pub unsafe fn take_out_tables(&self, addresses: Range<usize>) {
        debug_assert!((addresses.start | addresses.end).is_multiple_of(LARGE_PAGE_BYTES));
        self.tables().detach_empty(addresses);
    }

    /// Frees the page tables that were taken out, after a shootdown. False, without one, if these are less than `least`.
    pub fn free_tables(&self, least: usize) -> bool {
        self.tables().free_detached(least, || self.machine.shootdown())
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
    /// Whether its frames go back to the pool with it.
    owns_frames: bool,
}

impl ManagedRange {
    /// Manages a range, none of whose pages are mapped then, or ever will be with more than `most` rights. `handler` is called for each fault in it,
    /// and is the same for all ranges of a process. The frames that its pages have at the end go back to the pool.
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
        // SAFETY: the caller vouches for the addresses.
        let mut range = unsafe { Self::over_frames_of_others(pages, addresses, most, handler) }?;
        range.owns_frames = true;
        Ok(range)
    }

    /// The same, of further addresses of pages: their frames are those of another range, and stay when this one ends.
    ///
    /// # Errors
    ///
    /// Those of [`Self::new`].
    ///
    /// # Safety
    /// Those of [`Self::new`].
    pub unsafe fn over_frames_of_others(
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
        let range = ManagedRange { pages, addresses: start..end, owns_frames: false };
        // A handler of a signal may touch managed memory, and wait for what this holds.
        deferral::with_signals_deferred(|| {
            machine.space.manage(start..end, most)?;
            machine.shootdown();
            Ok(range)
        })
    }

    /// The addresses.
    pub fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }

    /// Changes the most rights that its pages may have. A mapped page keeps fewer until [`Pages::allow_stores`]. One that another thread
    /// maps meanwhile may have either.
    pub fn set_most(&self, most: Rights) {
        deferral::with_signals_deferred(|| self.change_most(most));
    }

    fn change_most(&self, most: Rights) {
        let space = &self.pages.machine.space;
        space.tables().set_most(self.addresses(), most);
        if most == Rights::Read {
            let large = space.tables().with_page_table(self.addresses());
            let pages = large.flat_map(|large| (large..large + LARGE_PAGE_BYTES).step_by(PAGE_BYTES));
            let entries = pages.filter_map(|page| space.tables().page_entry(page));
            // Of pages without a frame the bit is not set.
            entries.for_each(|place| _ = place.fetch_and(!entry::WRITABLE, Ordering::AcqRel));
            self.pages.machine.shootdown();
        }
    }

    /// The pages of this range, and of others.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }
}

impl Drop for ManagedRange {
    fn drop(&mut self) {
        // A child does not have its parent's page tables.
        if self.pages.machine.is_of_process() {
            deferral::with_signals_deferred(|| self.end());
        }
    }
}

impl ManagedRange {
    fn end(&self) {
        let Pages { machine, pool } = &self.pages;
        let tables = || machine.space.tables().with_page_table(self.addresses.clone());
        let addresses = || tables().flat_map(|large| (large..large + LARGE_PAGE_BYTES).step_by(PAGE_BYTES));
        addresses().for_each(|address| _ = self.pages.hide(address));
        machine.shootdown();
        // A system call may still use a page: it finds nothing there from now on, and nobody else gets the frame.
        addresses().for_each(|address| self.pages.abandon(address));
        for address in addresses() {
            // SAFETY: the range goes away, and whoever drops it has ended every use of its pages.
            let state = unsafe { self.pages.unmap(address) };
            if let Some(state) = state.filter(|_| self.owns_frames) {
                pool.give_back(state.frame);
            }
        }
        machine.space.release(self.addresses.clone());
        // The processor may remember tables.
        if !self.pages.free_tables(1) {
            machine.shootdown();
        }
    }
}
