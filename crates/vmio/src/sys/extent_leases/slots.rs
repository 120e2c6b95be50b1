//! Memory that the server reads: how long the files are that this process appends to.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
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
    /// Makes the memory and sends it to the server.
    pub(super) fn new(server: &UnixStream) -> io::Result<Slots> {
        let file = File::from(memfd_create("vmio-lengths", MemfdFlags::CLOEXEC)?);
        file.set_len(PAGE_BYTES as u64)?;
        let mut memory = Reservation::of_file(file.as_fd(), PAGE_BYTES)?;
        memory.leave_out_on_fork()?;
        let descriptors = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(server, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
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

    /// The length in a slot. Whoever sees it sees the bytes before that end.
    pub(super) fn length(&self, slot: u32) -> &AtomicU64 {
        self.lengths.get(slot as usize)
    }
}
