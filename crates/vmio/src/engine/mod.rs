//! The delivery of misses, and the mapping and unmapping of pages.
//!
//! There are two interfaces, so that each can be replaced alone: a [`FaultEngine`] delivers the faults of a range, and [`Frames`]
//! put pages there and take them away. Neither knows caches, policies or backings.

mod anonymous_frames;
mod blank_frame;
mod choice;
mod memfd_frames;
mod reader;
mod reader_thread_engine;
mod refusals;
#[cfg(target_arch = "x86_64")]
mod ring0_engine;
#[cfg(target_arch = "x86_64")]
mod ring0_frames;
#[cfg(target_arch = "x86_64")]
mod ring0_shared_frames;
mod sigbus_engine;

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

pub(crate) use anonymous_frames::AnonymousFrames;
pub(crate) use blank_frame::BlankFrame;
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
    /// Attaches a range: from now on the cache handles the faults on its missing pages, and those of stores to protected pages. The
    /// first store to a page installed as protected is such a fault.
    fn attach(&self, range: &Reservation) -> io::Result<()>;

    /// Makes a range of `len` bytes at a multiple of `align`, over frames that can be deactivated. A touch of a missing or inactive
    /// page in it is a fault. The kernel notes the first store to a protected page.
    fn deactivatable(
        &self,
        len: usize,
        align: usize,
        prepare: Prepare<'_>,
    ) -> io::Result<(Reservation, Box<dyn DeactivatableFrames>)>;

    /// Its name.
    fn engine(&self) -> Engine;

    /// Whether a thread handles its own faults.
    fn handles_faults_in_their_threads(&self) -> bool {
        true
    }

    /// Ends the use of a range that the cache has already forgotten and will unmap. Returns when the engine no longer uses the
    /// range.
    fn detach(&self, _range: &Reservation) {}

    /// Ends the refusals that the engine has left in a range in place of absent pages.
    ///
    /// # Safety
    /// The range is attached, and none of its pages is in memory or can come there.
    unsafe fn accept(&self, _address: usize, _len: usize) {}
}

/// Prepares a range for the frames of a mapping, before a page comes into it.
pub(crate) type Prepare<'a> = &'a dyn Fn(&mut Reservation) -> io::Result<()>;

/// The calls by which an engine asks the cache to handle faults.
#[derive(Clone, Copy)]
pub(crate) struct FaultCalls {
    /// Resolves a fault.
    pub(crate) resolve: FaultHandler,
    /// For engines that handle faults in other threads: runs `change` while the page at an address is absent and nobody can bring
    /// it in. False if the page is in memory.
    pub(crate) while_absent: fn(address: usize, change: &mut dyn FnMut()) -> bool,
    /// For engines whose pages the kernel does not have: holds pages for a system call.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no engine there needs it"))]
    pub(crate) for_system_calls: HoldCalls,
}

/// The calls by which pages stay resident and exposed ([`Frames::expose`]) for a system call.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no engine there needs it"))]
pub(crate) struct HoldCalls {
    /// Makes, before the first hold, what holds need: they allocate nothing.
    pub(crate) prepare: fn() -> io::Result<()>,
    /// Holds whole pages, for stores if so, and for ever if the call may wait. The error is an errno; then nothing is held.
    pub(crate) hold: fn(addresses: Range<usize>, for_stores: bool, may_wait: bool) -> Result<(), i32>,
    /// Ends one `hold` of the same pages.
    pub(crate) release: fn(addresses: Range<usize>, for_stores: bool),
    /// How many bytes around an address one system call may hold.
    pub(crate) bytes_max: fn(address: usize) -> usize,
}

/// The memory of a page that is gone, by its number, which a system call may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no engine there needs it"))]
pub(crate) struct WithdrawnFrame(pub(crate) u32);

/// The memory behind the pages. The kernel allocates it on install and frees it on unmap, so that vmio only counts frames
/// ([`vmio_core::budget`]). An engine with frames of its own would keep its free lists behind this trait.
pub(crate) trait Frames: Send + Sync {
    /// Installs whole pages at an absent range, write-protected or not.
    ///
    /// # Safety
    /// The range lies in an attached reservation, and the caller owns its pages (their words say Loading).
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError>;

    /// A frame to fill before its page is there, which saves a copy. `None` where the kernel makes frames, or there is none.
    fn blank(&self) -> Option<BlankFrame<'_>> {
        None
    }

    /// Installs an absent page with such a frame, which has the page's bytes, write-protected or not. On an error the frame is free.
    ///
    /// # Safety
    /// As for [`Self::install`]. The frame is one of these.
    unsafe fn install_blank(
        &self,
        address: usize,
        mut frame: BlankFrame<'_>,
        protect: bool,
    ) -> Result<(), InstallError> {
        // SAFETY: the caller vouches for the page.
        unsafe { self.install(address, frame.bytes(), protect) }
    }

    /// Makes a frame free that was blank and goes to no page.
    fn discard(&self, _number: u32) {}

    /// Whether [`Self::install_span`] works.
    fn installs_spans(&self) -> bool {
        false
    }

    /// Moves a whole span's memory to an absent span, write-protected: as one huge page, if `source` is one. Afterwards `source`
    /// has no memory. On an error the span is absent.
    ///
    /// Between the move and the protection a store would go unnoticed. It is therefore only for read-only ranges.
    ///
    /// # Safety
    /// As for [`Self::install`]. The caller also owns the pages of the whole span, and `source`.
    unsafe fn install_span(&self, _address: usize, _source: &Reservation) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Moves a whole span's memory away, if it is one huge page. Afterwards the span is absent. On an error any page of it may have
    /// moved.
    ///
    /// # Safety
    /// As for [`Self::unmap`]. The caller also owns `target`, which is attached and has no memory.
    unsafe fn take_span(&self, _address: usize, _target: &Reservation) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes stores to the range fault. One TLB shootdown.
    fn protect(&self, address: usize, len: usize) -> io::Result<()>;

    /// Allows stores to the range. One TLB shootdown.
    fn unprotect(&self, address: usize, len: usize) -> io::Result<()>;

    /// Whether [`Self::unmap`] takes one TLB shootdown for hundreds of scattered pages, instead of one for each run of neighbours.
    fn unmaps_scattered(&self) -> bool;

    /// Whether the calling thread can unmap pages without a system call. If it misses, it then evicts by itself in time.
    fn unmaps_without_calls(&self) -> bool {
        false
    }

    /// Drops the listed pages, marks in the list those that it could not drop, and returns the number of TLB shootdowns.
    ///
    /// # Safety
    /// The pages lie in attached reservations, and the caller owns them (their words say Evicting).
    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64;

    /// Has system calls see resident pages, as pins promise, until as many calls of [`Self::conceal`]. For engines whose pages the
    /// kernel does not have at the same addresses; elsewhere there is nothing to do.
    ///
    /// # Safety
    /// The range is attached, and its pages stay resident until they are concealed; with `for_stores` they stay dirty and writable.
    unsafe fn expose(&self, _address: usize, _len: usize, _for_stores: bool) -> io::Result<()> {
        Ok(())
    }

    /// Ends one [`Self::expose`] of the same range.
    fn conceal(&self, _address: usize, _len: usize, _for_stores: bool) {}

    /// Ends one [`Self::expose`] of a page, while a system call may still use its memory: no other page gets that until [`Self::let_go`]. `None` where
    /// the kernel sees to that itself.
    fn withdraw(&self, _address: usize, _for_stores: bool) -> Option<WithdrawnFrame> {
        None
    }

    /// Ends the use of a page's memory by a system call. Async-signal-safe.
    fn let_go(&self, _frame: WithdrawnFrame) {}

    /// Takes the page tables of spans out of use, until [`Self::free_tables`]. For engines with page tables of their own.
    ///
    /// # Safety
    /// The range lies in an attached reservation. None of its pages is in memory, or can come there before this returns.
    unsafe fn take_out_tables(&self, _address: usize, _len: usize) {}

    /// Has the memory of tables that were taken out used again; returns the number of TLB shootdowns.
    fn free_tables(&self) -> u64 {
        0
    }

    /// Adapts to a new capacity. Frames beyond it that are free give their memory back.
    fn set_capacity(&self, _pages: u32) {}

    /// The file descriptors of its calls to the kernel.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// Frames that keep their contents while they are inactive (unmapped), and whose stores the kernel notes. [`Frames::protect`] makes
/// the kernel forget its notes of a range, also for pages that are not mapped there yet. [`Frames::unmap`] takes addresses in the
/// first range, and frees the memory of active and inactive pages at all addresses.
pub(crate) trait DeactivatableFrames: Frames {
    /// Makes another attached range of that length over the same frames: a store to one shows at the other. Each range has its own
    /// mapped pages and its own notes of the kernel. The methods below act on the addresses that they are given.
    fn share(&self, len: usize, align: usize, prepare: Prepare<'_>) -> io::Result<Reservation>;

    /// Allows or forbids stores at such a range. A forbidden store is a SIGSEGV.
    fn allow_stores(&self, range: &Reservation, allow: bool) -> io::Result<()> {
        if allow { range.make_writable() } else { range.make_read_only() }
    }

    /// Ends the use of such a range, before it is unmapped. No thread touches it any more, and nobody needs its notes.
    fn unshare(&self, _range: &Reservation) {}

    /// Unmaps as many bytes at each of some addresses, and keeps their frames: the next touch of a page faults. Returns how many TLB shootdowns that
    /// took. After an error, some of the pages are unmapped.
    ///
    /// # Safety
    /// All lies in attached reservations.
    unsafe fn deactivate(&self, addresses: &mut dyn Iterator<Item = usize>, len: usize) -> io::Result<u64>;

    /// Maps a page again. False, without a change, if it is mapped already.
    fn reactivate(&self, address: usize, protect: bool) -> io::Result<bool>;

    /// Adds the stored pages of a span's range to `found`. A page is stored if it had a store since its protected install or
    /// reactivation, or since [`Frames::protect`]. The kernel keeps this note after a deactivation.
    ///
    /// Every page installed or reactivated as writable counts as stored. So does a page that was neither installed nor reactivated,
    /// unless it is protected, or the span has no page tables there.
    fn stored(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()>;

    /// The same for one page, by a single system call.
    fn was_stored(&self, address: usize) -> io::Result<bool>;

    /// As [`Self::stored`], but only of mapped pages, and protects them again in the same step. One TLB shootdown.
    fn stored_and_protect(&self, address: usize, len: usize, found: &mut StoredPages) -> io::Result<()>;

    /// Forgets the notes of stores in a range without resident pages: leftover notes would keep the page tables in memory.
    fn forget_stores(&self, address: usize, len: usize) -> io::Result<()>;

    /// Copies resident pages, mapped or not, from their addresses in the first range.
    fn read(&self, address: usize, buffer: &mut [u8]) -> io::Result<()>;
}

/// An install that failed on the way.
#[derive(Debug)]
pub(crate) struct InstallError {
    /// The number of installed bytes.
    pub(crate) installed_bytes: usize,
    /// The error of the rest.
    pub(crate) source: io::Error,
}
