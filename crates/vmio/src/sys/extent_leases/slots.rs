//! Memory that the server reads: how long the files are that this process appends to.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vmio_pmfs_protocol::{SLOT_BYTES, SLOTS};

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;

/// The slots of a holder.
pub(super) struct Slots {
    lengths: SparseArray<AtomicU64>,
    are_taken: [AtomicBool; SLOTS],
}

const _: () = assert!(SLOTS * SLOT_BYTES == PAGE_BYTES && SLOT_BYTES == size_of::<AtomicU64>());

impl Slots {
    /// Maps the memory that the server has sent.
    pub(super) fn new(memory: &File) -> io::Result<Slots> {
        if memory.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut memory = Reservation::of_file(memory.as_fd(), PAGE_BYTES)?;
        memory.leave_out_on_fork()?;
        Ok(Slots { lengths: SparseArray::over(memory), are_taken: [const { AtomicBool::new(false) }; SLOTS] })
    }

    /// Takes a slot that nobody uses.
    pub(super) fn take(&self) -> Option<u32> {
        self.are_taken.iter().position(|is_taken| !is_taken.swap(true, Ordering::AcqRel)).map(|slot| slot as u32)
    }

    /// Gives a slot back that the server looks at no more.
    pub(super) fn give_back(&self, slot: u32) {
        self.are_taken[slot as usize].store(false, Ordering::Release);
    }

    /// The word in a slot that says a length. A thread that sees it sees the bytes before that end, too.
    pub(super) fn length(&self, slot: u32) -> &AtomicU64 {
        self.lengths.get(slot as usize)
    }
}
