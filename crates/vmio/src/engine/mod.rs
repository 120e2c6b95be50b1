//! How a miss reaches us, and how a page is mapped for the program or unmapped.
//!
//! Two interfaces, so that each can be replaced alone: a [`FaultEngine`] delivers faults of a range, [`Frames`] put
//! pages there and take them away. Neither knows of caches, policies or backings.

mod anonymous_frames;
mod choice;
mod memfd_frames;
mod reader;
mod reader_thread_engine;
mod refusals;
#[cfg(target_arch = "x86_64")]
mod ring0_engine;
#[cfg(target_arch = "x86_64")]
mod ring0_frames;
mod sigbus_engine;

use std::io;
use std::os::fd::BorrowedFd;

pub(crate) use anonymous_frames::AnonymousFrames;
pub(crate) use memfd_frames::MemfdFrames;
pub(crate) use reader_thread_engine::ReaderThreadEngine;
#[cfg(target_arch = "x86_64")]
pub(crate) use ring0_engine::Ring0Engine;
#[cfg(target_arch = "x86_64")]
pub(crate) use ring0_frames::Ring0Frames;
pub(crate) use sigbus_engine::SigbusEngine;

use crate::options::Engine;
use crate::sys::pagemap::StoredPages;
use crate::sys::reservation::Reservation;
use crate::sys::signal::FaultHandler;
use crate::sys::unmap::UnmapList;

/// Delivers the faults of ranges of address space.
pub(crate) trait FaultEngine: Send + Sync {
    /// From now on a missing page in the range, or a store to a protected one, is a fault that the cache handles.
    /// The first store to a page that is installed protected is a fault as well.
    fn attach(&self, range: &Reservation) -> io::Result<()>;

    /// A range of `len` bytes at a multiple of `align`, over frames that can be deactivated. A missing or inactive page in it is a
    /// fault; of the first store to a protected page the kernel takes a note.
    fn deactivatable(&self, len: usize, align: usize) -> io::Result<(Reservation, Box<dyn DeactivatableFrames>)>;

    /// Its name.
    fn engine(&self) -> Engine;

    /// Whether a fault is handled by the thread that has it.
    fn handles_faults_in_their_threads(&self) -> bool {
        true
    }

    /// A range is about to go away, and the cache knows of it no longer: returns when the engine has done with it, too.
    fn detach(&self, _range: &Reservation) {}

    /// Ends whatever answers the engine has left in a range in place of its absent pages.
    ///
    /// # Safety
    /// The range is attached, and none of its pages is in memory or can come there.
    unsafe fn accept(&self, _address: usize, _len: usize) {}
}

/// What an engine asks of the cache whose faults it delivers.
#[derive(Clone, Copy)]
pub(crate) struct FaultCalls {
    /// Resolves a fault.
    pub(crate) resolve: FaultHandler,
    /// For engines that handle faults outside their threads: runs something while the page at an address is absent and nobody can bring it in; false if it is in memory.
    pub(crate) while_absent: fn(address: usize, change: &mut dyn FnMut()) -> bool,
}

/// The memory behind the pages. This one owns no frames in advance: the kernel allocates on install and frees on
/// unmap, so only counts are kept ([`crate::budget`]); an engine that owns frames keeps its free lists behind this.
pub(crate) trait Frames: Send + Sync {
    /// Makes whole pages visible at an absent range, write-protected or not.
    ///
    /// # Safety
    /// The range lies in an attached reservation, and the caller owns its pages (their words say Loading).
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError>;

    /// Whether [`Self::install_span`] works.
    fn installs_spans(&self) -> bool {
        false
    }

    /// Moves a whole span's memory to an absent span, write-protected: as one huge page, if `source` is one. Afterwards
    /// `source` is without memory. On an error the span is absent.
    ///
    /// Between the move and the protection a store goes through unnoticed: for ranges that nobody may store to.
    ///
    /// # Safety
    /// As for [`Self::install`]; and the pages of the whole span are the caller's, as `source` is.
    unsafe fn install_span(&self, _address: usize, _source: &Reservation) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Moves a whole span's memory away from it, if it is one huge page. Afterwards the span is absent. On an error any
    /// page of it may have moved.
    ///
    /// # Safety
    /// As for [`Self::unmap`]; and `target`, which is without memory and attached, is the caller's.
    unsafe fn take_span(&self, _address: usize, _target: &Reservation) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes stores to the range fault. One TLB shootdown.
    fn protect(&self, address: usize, len: usize) -> io::Result<()>;

    /// Lets the range be stored to. One TLB shootdown.
    fn unprotect(&self, address: usize, len: usize) -> io::Result<()>;

    /// Whether [`Self::unmap`] takes one TLB shootdown for hundreds of pages wherever they lie, and not one for each
    /// run of neighbours.
    fn unmaps_scattered(&self) -> bool;

    /// Drops the listed pages, but those that the list then says have failed; returns the number of TLB shootdowns.
    ///
    /// # Safety
    /// The pages lie in attached reservations, and the caller owns them (their words say Evicting).
    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64;

    /// By which it asks the kernel for all that.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// Frames that keep their contents while they are inactive (unmapped), and whose stores the kernel notes.
/// [`Frames::protect`] makes it forget its notes of a range, also of pages that are not mapped there yet.
/// [`Frames::unmap`] gives the memory of pages back, active or inactive, at all addresses,
/// given those in the first range.
pub(crate) trait DeactivatableFrames: Frames {
    /// Another range of that length over the same frames, attached as the first one is: what is stored to one is
    /// seen at the other. What is mapped, and what the kernel has noted, is each range's own: the methods below are about
    /// the addresses that they are given.
    fn share(&self, len: usize, align: usize) -> io::Result<Reservation>;

    /// Unmaps a range and keeps its frames: the next touch of a page faults. One TLB shootdown.
    ///
    /// # Safety
    /// The range lies in an attached reservation.
    unsafe fn deactivate(&self, address: usize, len: usize) -> io::Result<()>;

    /// Maps a page again; false, with nothing changed, if it is mapped already.
    fn reactivate(&self, address: usize, protect: bool) -> io::Result<bool>;

    /// Adds the pages of a span's range that were stored to since they were installed or reactivated protected, or
    /// [`Frames::protect`]ed, mapped or not; still known after they were deactivated. True of every page that was installed
    /// or reactivated writable; and of one that never was, unless it was protected or the span has no page tables there.
    fn stored(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()>;

    /// The same for one page, found by a call of the kernel alone.
    fn was_stored(&self, address: usize) -> io::Result<bool>;

    /// As [`Self::stored`], of mapped pages, which are protected again in the same step. One TLB shootdown.
    fn stored_and_protect(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()>;

    /// Forgets which pages of a range were stored to, where none is resident: what is left of the notes would hold on to
    /// the page tables.
    fn forget_stores(&self, address: usize, len: usize) -> io::Result<()>;

    /// Copies resident pages, mapped or not, by their addresses in the first range.
    fn read(&self, address: usize, buffer: &mut [u8]) -> io::Result<()>;
}

/// An install that failed part of the way.
#[derive(Debug)]
pub(crate) struct InstallError {
    /// How many bytes went in.
    pub(crate) installed_bytes: usize,
    /// Why the rest did not.
    pub(crate) source: io::Error,
}
