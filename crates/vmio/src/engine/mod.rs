//! How a miss reaches us, and how a page is made visible to the program or hidden from it.
//!
//! Two interfaces, so that each can be replaced alone: a [`FaultEngine`] delivers faults of a range, [`Frames`] put
//! pages there and take them away. Neither knows of caches, policies or backings.

mod anonymous_frames;
mod sigbus_engine;

use std::io;

pub(crate) use anonymous_frames::AnonymousFrames;
pub(crate) use sigbus_engine::SigbusEngine;

use crate::sys::reservation::Reservation;
use crate::sys::unmap::UnmapList;

/// Delivers the faults of ranges of address space.
pub(crate) trait FaultEngine: Send + Sync {
    /// From now on a missing page in the range, or a store to a protected one, is a fault that the cache handles.
    fn attach(&self, range: &Reservation) -> io::Result<()>;
}

/// The memory behind the pages. This one owns no frames in advance: the kernel allocates on install and frees on
/// unmap, so only counts are kept ([`crate::budget`]); an engine that owns frames keeps its free lists behind this.
pub(crate) trait Frames: Send + Sync {
    /// Makes whole pages visible at an absent range, write-protected or not.
    ///
    /// # Safety
    /// The range lies in an attached reservation, and the caller owns its pages (their words say Loading).
    unsafe fn install(&self, address: usize, data: &[u8], protect: bool) -> Result<(), InstallError>;

    /// Makes stores to the range fault. One TLB shootdown.
    fn protect(&self, address: usize, len: usize) -> io::Result<()>;

    /// Lets the range be stored to. One TLB shootdown.
    fn unprotect(&self, address: usize, len: usize) -> io::Result<()>;

    /// Drops the listed pages, but those that the list then says have failed; returns the number of TLB shootdowns.
    ///
    /// # Safety
    /// The pages lie in attached reservations, and the caller owns them (their words say Evicting).
    unsafe fn unmap(&self, pages: &mut UnmapList) -> u64;
}

/// An install that failed part of the way.
#[derive(Debug)]
pub(crate) struct InstallError {
    /// How many bytes went in.
    pub(crate) installed_bytes: usize,
    /// Why the rest did not.
    pub(crate) source: io::Error,
}
