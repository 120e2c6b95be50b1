//! A page of the medium with slots of growing files: one of them says how long a file is to which this process appends durably.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::ProtFlags;

use super::holder::Holder;
use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// A mapped page of the medium. Forked children do not have it.
pub(super) struct MediumSlot {
    page: Reservation,
    /// Its first byte on the medium.
    first: u64,
}

impl MediumSlot {
    /// Maps the page that a word of the medium is in.
    pub(super) fn map(holder: &Holder, at: u64) -> io::Result<MediumSlot> {
        let first = at / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (medium, flags) = (holder.medium.as_fd(), holder.map_flags());
        let mut page = Reservation::of_file_at_multiple(medium, first, PAGE_BYTES, PAGE_BYTES, access, flags)?;
        page.leave_out_on_fork()?;
        Ok(MediumSlot { page, first })
    }

    /// Whether a word of the medium is in the page.
    pub(super) fn has(&self, at: u64) -> bool {
        (self.first..self.first + PAGE_BYTES as u64).contains(&at)
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
