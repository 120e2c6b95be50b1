//! A page of the medium with slots of growing files: one of them says how long a file is to which this process appends durably.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{MremapFlags, ProtFlags, mremap_fixed};

use super::holder::Holder;
use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// A mapped page of the medium. Forked children do not have it.
pub(super) struct MediumSlot {
    page: Reservation,
    /// Its first byte on the medium.
    first: u64,
    /// Its addresses show memory of this process's own.
    is_gone: AtomicBool,
}

impl MediumSlot {
    /// Maps the page that a word of the medium is in.
    pub(super) fn map(holder: &Holder, at: u64) -> io::Result<MediumSlot> {
        let first = at / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (medium, flags) = (holder.medium.as_fd(), holder.map_flags());
        let mut page = Reservation::of_file_at_multiple(medium, first, PAGE_BYTES, PAGE_BYTES, access, flags)?;
        page.leave_out_on_fork()?;
        Ok(MediumSlot { page, first, is_gone: AtomicBool::new(false) })
    }

    /// Takes the page of the medium away from a thread that may still change a word. It finds a closed one there, for as long as this lives. The server may
    /// give the slot to others.
    pub(super) fn take_away(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
        if self.replace().is_err() {
            std::process::abort();
        }
    }

    fn replace(&self) -> io::Result<()> {
        let closed = Reservation::zeroed(PAGE_BYTES, PAGE_BYTES)?;
        // SAFETY: the page is ours and new, and nobody else has it.
        unsafe { closed.base().write_bytes(u8::MAX, PAGE_BYTES) };
        let (from, to) = (closed.base().cast(), self.page.base().cast());
        // SAFETY: both pages are ours. The addresses of the first one are free afterwards; those of the second one stay mapped as long as this, and all
        // use them as atomic words.
        unsafe { mremap_fixed(from, PAGE_BYTES, PAGE_BYTES, MremapFlags::MAYMOVE, to)? };
        std::mem::forget(closed);
        Ok(())
    }

    /// Whether a word of the medium is in the page.
    pub(super) fn has(&self, at: u64) -> bool {
        (self.first..self.first + PAGE_BYTES as u64).contains(&at) && !self.is_gone.load(Ordering::SeqCst)
    }

    /// The seed of the word of a slot: the checksum behind it. The server has written it before it has granted the slot.
    pub(super) fn seed(&self, at: u64) -> u32 {
        u64::from_le(self.word(at + size_of::<u64>() as u64).load(Ordering::Acquire)) as u32
    }

    /// A word of the medium, which the server reads and changes, too.
    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        assert!(
            self.has(at) && at.is_multiple_of(size_of::<u64>() as u64),
            "a word at {at} of a page at {}",
            self.first
        );
        let word = self.page.base().wrapping_add((at - self.first) as usize);
        // SAFETY: the word is aligned, and in the page, which is mapped for stores as long as this. All change it by atomic operations while this process
        // may store to it.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pread;
    use rustix::mm::MapFlags;
    use vmio_pmfs_protocol::{LengthWord, sealed};

    use super::*;

    #[test]
    fn a_late_length_does_not_reach_a_page_that_was_taken_away() {
        let medium = memfd_create("medium", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&medium, 2 * PAGE_BYTES as u64).unwrap();
        let (first, access) = (PAGE_BYTES as u64, ProtFlags::READ | ProtFlags::WRITE);
        let page =
            Reservation::of_file_at_multiple(medium.as_fd(), first, PAGE_BYTES, PAGE_BYTES, access, MapFlags::SHARED);
        let slot = MediumSlot { page: page.unwrap(), first, is_gone: AtomicBool::new(false) };
        let (at, seed) = (first + 64, 7);
        let word = slot.word(at);
        word.store(sealed(100, seed), Ordering::SeqCst);
        slot.take_away();
        assert!(!slot.has(at));
        // As an append that is late does it.
        assert!(LengthWord { word, seed }.is_closed());
        let (from, to) = (sealed(100, seed), sealed(200, seed));
        assert!(word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_err());
        let mut bytes = [0; 8];
        pread(&medium, &mut bytes, at).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), sealed(100, seed));
    }
}
