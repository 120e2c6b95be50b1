//! Frames of the engine's own that are at several addresses, or inactive. The processor notes stores, so none faults.
//!
//! The page's entry at the first range says which frame it has, mapped there or not. At another range a page has an entry once it was mapped there;
//! it names the same frame. An entry that maps nothing keeps the note of a store.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use vmio_core::page::views::VIEWS_MAX;
use vmio_ring0::{Frame, Pages, Rights};

use crate::engine::ring0_engine::{Managed, Owner, manage};
use crate::engine::{BlankFrame, DeactivatableFrames, Frames, InstallError, Prepare, Ring0Frames, WithdrawnFrame};
use crate::sys::PAGE_BYTES;
use crate::sys::pagemap::StoredPages;
use crate::sys::reservation::Reservation;
use crate::sys::unmap::UnmapList;

/// The frames of one range and of the ranges that share them.
pub(super) struct Ring0SharedFrames {
    pages: Pages,
    /// For what is done alike.
    plain: Ring0Frames,
    /// The first range, which the engine manages.
    first: Range<usize>,
    /// Where each of the others begins, 0 for none. A fault there takes no lock.
    bases: [AtomicUsize; VIEWS_MAX],
    /// The others. A thread that unmaps a page goes to all of them, and keeps them from going meanwhile.
    others: RwLock<[Option<Managed>; VIEWS_MAX]>,
}

impl Ring0SharedFrames {
    /// Frames for a managed range.
    pub(super) fn of(range: &Reservation, pages: Pages) -> Self {
        let plain = Ring0Frames::new(pages.clone());
        Ring0SharedFrames {
            pages,
            plain,
            first: range.addresses(),
            bases: Default::default(),
            others: RwLock::default(),
        }
    }

    /// Where the others begin.
    fn bases(&self) -> impl Iterator<Item = usize> + '_ {
        self.bases.iter().map(|base| base.load(Ordering::Acquire)).filter(|base| *base != 0)
    }

    /// The number of a range.
    fn number(&self, range: &Reservation) -> Option<usize> {
        self.bases.iter().position(|base| base.load(Ordering::Acquire) == range.base() as usize)
    }

    /// The page's address in the first range.
    fn at_first(&self, address: usize) -> io::Result<usize> {
        if self.first.contains(&address) {
            return Ok(address);
        }
        let offset = |base: usize| address.checked_sub(base).filter(|offset| *offset < self.first.len());
        let offset = self.bases().find_map(offset);
        offset.map(|offset| self.first.start + offset).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Makes sure that a page in memory has its entry at an address, mapped there or not.
    fn note_frame(&self, address: usize, at_first: usize) -> io::Result<()> {
        if address == at_first || self.pages.frame(address).is_some() {
            return Ok(());
        }
        let frame = self.pages.frame(at_first).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the frame is the page's, and leaves all addresses of it together.
        unsafe { self.pages.hold(address, frame) }.map_err(io::Error::other)?;
        Ok(())
    }

    fn install_page(&self, address: usize, at_first: usize, data: &[u8], is_dirty: bool) -> io::Result<()> {
        let pool = self.pages.pool();
        let frame = pool.take().ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the frame is ours alone, and has a page.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), pool.address(frame), PAGE_BYTES) };
        self.map(address, at_first, frame, is_dirty)
    }

    /// Maps a page's frame, which has its bytes. On an error the frame is free.
    fn map(&self, address: usize, at_first: usize, frame: Frame, is_dirty: bool) -> io::Result<()> {
        let installed = self.hold(address, at_first, frame);
        if installed.is_err() {
            self.pages.pool().give_back(frame);
            return installed;
        }
        let shown = self.pages.show(address, self.pages.most(address), is_dirty);
        debug_assert!(shown, "the page at {address:#x} was mapped already");
        Ok(())
    }

    /// Gives an absent page its frame.
    fn hold(&self, address: usize, at_first: usize, frame: Frame) -> io::Result<()> {
        let hold = |address| {
            // SAFETY: the frame holds the page's bytes, and is no other page's.
            match unsafe { self.pages.hold(address, frame) } {
                Ok(true) => Ok(()),
                Ok(false) => Err(io::ErrorKind::AlreadyExists.into()),
                Err(error) => Err(io::Error::other(error)),
            }
        };
        hold(at_first)?;
        let held = if address == at_first { Ok(()) } else { hold(address) };
        held.inspect_err(|_| {
            // SAFETY: the page was not mapped yet.
            unsafe { self.pages.unmap(at_first) };
        })
    }

    /// Empties TLBs if pages were changed that are in them.
    fn shoot_down_if(&self, is_needed: bool) -> u64 {
        if is_needed {
            self.pages.machine().shootdown();
        }
        u64::from(is_needed)
    }
}

/// The addresses of a range's pages.
fn pages_of(address: usize, len: usize) -> impl Iterator<Item = usize> {
    (address..address + len).step_by(PAGE_BYTES)
}

impl Frames for Ring0SharedFrames {
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError> {
        let failed = |installed_bytes| move |source| InstallError { installed_bytes, source };
        let at_first = self.at_first(address).map_err(failed(0))?;
        for (number, page) in data.chunks_exact(PAGE_BYTES).enumerate() {
            let offset = number * PAGE_BYTES;
            self.install_page(address + offset, at_first + offset, page, !protect).map_err(failed(offset))?;
        }
        Ok(())
    }

    fn blank(&self) -> Option<BlankFrame<'_>> {
        self.plain.blank()
    }

    unsafe fn install_blank(&self, address: usize, frame: BlankFrame<'_>, protect: bool) -> Result<(), InstallError> {
        let failed = |source| InstallError { installed_bytes: 0, source };
        let at_first = self.at_first(address).map_err(failed)?;
        let frame = self.pages.pool().frame(frame.into_number()).ok_or(io::ErrorKind::NotFound);
        self.map(address, at_first, frame.map_err(|error| failed(error.into()))?, !protect).map_err(failed)
    }

    fn discard(&self, number: u32) {
        self.plain.discard(number);
    }

    fn protect(&self, address: usize, len: usize) -> io::Result<()> {
        let taken = pages_of(address, len).filter_map(|page| self.pages.take_dirty(page));
        // No TLB has an inactive page.
        let were_mapped = taken.filter(|note| note.was_mapped).count();
        self.shoot_down_if(were_mapped > 0);
        Ok(())
    }

    fn unprotect(&self, _address: usize, _len: usize) -> io::Result<()> {
        Ok(()) // A page that may be stored to is never protected: the processor notes the store.
    }

    fn unmaps_scattered(&self) -> bool {
        true
    }

    fn unmaps_without_calls(&self) -> bool {
        vmio_ring0::is_at_ring_0()
    }

    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64 {
        let _stay = self.others.read().unwrap_or_else(PoisonError::into_inner);
        let elsewhere = |page: usize| self.bases().map(move |base| base + (page - self.first.start));
        let was_mapped = Cell::new(false);
        pages.drop_ranges(0, |address, len| {
            for page in pages_of(address, len).flat_map(|page| elsewhere(page).chain([page])) {
                was_mapped.set(self.pages.hide(page) | was_mapped.get());
            }
            true
        });
        let shootdowns = self.shoot_down_if(was_mapped.get());
        pages.drop_ranges(0, |address, len| {
            for page in pages_of(address, len) {
                // SAFETY: the caller vouches for the pages, whose contents nobody needs any more.
                elsewhere(page).for_each(|page| unsafe { _ = self.pages.unmap(page) });
                // SAFETY: as above.
                if let Some(state) = unsafe { self.pages.unmap(page) } {
                    self.pages.pool().give_back(state.frame);
                }
            }
            true
        });
        shootdowns
    }

    unsafe fn expose(&self, address: usize, len: usize, for_stores: bool) -> io::Result<()> {
        let at_first = self.at_first(address)?;
        if for_stores && self.pages.most(address) == Rights::Read {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // A page may be in memory and not mapped at this address yet; system calls see it all the same.
        pages_of(address, len)
            .zip(pages_of(at_first, len))
            .try_for_each(|(page, first)| self.note_frame(page, first))?;
        // SAFETY: the caller vouches for the pages.
        unsafe { self.plain.expose(address, len, for_stores) }
    }

    fn conceal(&self, address: usize, len: usize, for_stores: bool) {
        self.plain.conceal(address, len, for_stores);
    }

    fn withdraw(&self, address: usize, for_stores: bool) -> Option<WithdrawnFrame> {
        self.plain.withdraw(address, for_stores)
    }

    fn let_go(&self, frame: WithdrawnFrame) {
        self.plain.let_go(frame);
    }

    unsafe fn take_out_tables(&self, address: usize, len: usize) {
        // SAFETY: the caller vouches for the pages.
        unsafe { self.plain.take_out_tables(address, len) };
    }

    fn free_tables(&self) -> u64 {
        self.plain.free_tables()
    }

    fn set_capacity(&self, pages: u32) {
        self.plain.set_capacity(pages);
    }
}

impl DeactivatableFrames for Ring0SharedFrames {
    fn share(&self, len: usize, align: usize, prepare: Prepare<'_>) -> io::Result<Reservation> {
        let mut range = Reservation::zeroed(len, align)?;
        prepare(&mut range)?;
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        // The cache has no more views than that.
        let free = others.iter().position(Option::is_none).ok_or(io::ErrorKind::OutOfMemory)?;
        others[free] = Some(manage(&self.pages, &range, Owner::Others)?);
        self.bases[free].store(range.base() as usize, Ordering::Release);
        Ok(range)
    }

    fn allow_stores(&self, range: &Reservation, allow: bool) -> io::Result<()> {
        let most = if allow { Rights::ReadWrite } else { Rights::Read };
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        let managed = self.number(range).and_then(|number| others[number].as_ref());
        managed.ok_or(io::ErrorKind::NotFound)?.0.set_most(most);
        Ok(())
    }

    fn unshare(&self, range: &Reservation) {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = self.number(range) else { return };
        self.bases[number].store(0, Ordering::Release);
        let removed = others[number].take();
        drop(others);
        // Now nobody goes to its page tables.
        drop(removed);
    }

    unsafe fn deactivate(&self, addresses: &mut dyn Iterator<Item = usize>, len: usize) -> io::Result<u64> {
        let pages = addresses.flat_map(|address| pages_of(address, len));
        let hidden = pages.filter(|page| self.pages.hide(*page)).count();
        Ok(self.shoot_down_if(hidden > 0))
    }

    fn reactivate(&self, address: usize, protect: bool) -> io::Result<bool> {
        self.note_frame(address, self.at_first(address)?)?;
        let is_new = self.pages.show(address, self.pages.most(address), !protect);
        if !is_new && !protect {
            // It was mapped while stores were forbidden at this range.
            self.pages.allow_stores(address);
        }
        Ok(is_new)
    }

    fn stored(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        let numbered = pages_of(address, len).enumerate();
        numbered.filter(|(_, page)| self.pages.is_dirty(*page)).for_each(|(index, _)| found.insert(index));
        Ok(())
    }

    fn was_stored(&self, address: usize) -> io::Result<bool> {
        Ok(self.pages.is_dirty(address))
    }

    fn stored_and_protect(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()> {
        let is_mapped = |page: usize| self.pages.state(page).is_some_and(|state| state.is_dirty);
        let mut has_taken = false;
        for (index, page) in pages_of(address, len).enumerate() {
            if is_mapped(page) && self.pages.take_dirty(page).is_some() {
                found.insert(index);
                has_taken = true;
            }
        }
        self.shoot_down_if(has_taken);
        Ok(())
    }

    fn forget_stores(&self, _address: usize, _len: usize) -> io::Result<()> {
        Ok(()) // A page without a frame has no note.
    }

    fn read(&self, address: usize, buffer: &mut [u8]) -> io::Result<()> {
        for (page, target) in pages_of(address, buffer.len()).zip(buffer.chunks_exact_mut(PAGE_BYTES)) {
            let frame = self.pages.frame(page).ok_or(io::ErrorKind::NotFound)?;
            // SAFETY: the page is resident, so the frame stays. Threads may store to it meanwhile: the copy is then torn, and the processor notes the
            // store.
            unsafe { ptr::copy_nonoverlapping(self.pages.pool().address(frame), target.as_mut_ptr(), PAGE_BYTES) };
        }
        Ok(())
    }
}
