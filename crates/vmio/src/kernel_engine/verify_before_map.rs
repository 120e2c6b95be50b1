//! Verify before map: vmio verifies pages before the program can access them. It serves page verifiers, and poison in place of
//! unreadable pages.
//!
//! The module maps a page of such a file only after vmio has reported it as verified. Before that, a load or store of the page is a
//! SIGBUS, whose handler brings the page in, verifies and maps it. Calls do the same before they touch a page.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backing::Access;
use crate::cache::page_buffers::PageBuffers;
use crate::cache::read_failures::{ReadFailure, ReadFailures};
use crate::error::{Error, Result};
use crate::kernel_engine::Module;
use crate::kernel_engine::region::KernelRegion;
use crate::mapped_file::bytes_of;
use crate::options::{MappingOptions, OnReadError, PageVerifier};
use crate::sys::abort::AbortOnUnwind;
use crate::sys::address_table::AddressTable;
use crate::sys::own_memory::Stopped;
use crate::sys::signal::{FaultAccess, FaultSource, Resolution, SignalsBlocked, install_sigbus_handler};
use crate::sys::{PAGE_BYTES, cpu};

/// The limit of attempts for a page that is evicted again before its mapping, and for a copy without progress.
const ROUNDS_MAX: u32 = 16;
/// The limit of attempts of a load or store to get memory while all of it is held. Each time the module waits for a second.
const PATIENCE: u32 = 10;

/// The regions whose faults this module handles.
static REGIONS: AddressTable<KernelRegion> = AddressTable::new();

/// The verification of a file's pages.
pub(super) struct VerifyBeforeMap {
    verifier: Option<Arc<dyn PageVerifier>>,
    poison: Option<[u8; 8]>,
    pub(super) failures: ReadFailures,
    /// The number of handlers that have noted a failure, and are about to put poison in place.
    poisoning: AtomicUsize,
    buffers: Arc<PageBuffers>,
}

/// The reason that a page cannot be mapped.
#[derive(Clone, Copy)]
enum Refusal {
    /// The file's page is not available. The failure has been noted.
    Unreadable(ReadFailure),
    /// There is no memory for the page, or its eviction comes at once.
    Exhausted(i32),
}

impl Refusal {
    fn into_error(self, region: &KernelRegion, page: u64) -> Error {
        match self {
            Refusal::Unreadable(failure) => failure.into_error(region.backing.describe(), page),
            Refusal::Exhausted(code) => {
                Error::system("bringing a page into the kernel module's memory")(io::Error::from_raw_os_error(code))
            }
        }
    }
}

impl VerifyBeforeMap {
    /// The verification that these options ask for; `None` if the module may map pages as they come.
    pub(super) fn of(options: &MappingOptions, module: &Module) -> Result<Option<Self>> {
        let poison = match options.on_read_error {
            OnReadError::Sigbus => None,
            OnReadError::Poison(pattern) => Some(pattern),
        };
        let verifier = options.verifier.clone();
        if verifier.is_none() && poison.is_none() {
            return Ok(None);
        }
        let buffers = module.page_buffers().map_err(Error::system("reserving memory for pages that are verified"))?;
        let (failures, poisoning) = (ReadFailures::default(), AtomicUsize::new(0));
        Ok(Some(VerifyBeforeMap { verifier, poison, failures, poisoning, buffers }))
    }

    /// Makes pages resident, and maps them for loads. Afterwards none of them holds poison.
    pub(super) fn populate(&self, region: &KernelRegion, pages: &Range<u64>) -> Result<()> {
        self.await_poison();
        match self.poison {
            // A load also brings in the page, and finds poison if that fails.
            Some(pattern) => {
                let is_poison = |page: &u64| region.map.first_word(*page) == u64::from_ne_bytes(pattern);
                pages.clone().filter(is_poison).try_for_each(|page| self.map_or_fail(region, page, false))
            }
            None if region.map.populate(&bytes_of(pages)).is_ok() => Ok(()),
            None => pages.clone().try_for_each(|page| self.map_or_fail(region, page, false)),
        }
    }

    /// Copies bytes out. None of them is poison.
    pub(super) fn load(&self, region: &KernelRegion, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.failures.count() == 0 && region.map.load(offset, buffer).is_ok() && self.failures.count() == 0 {
            return Ok(());
        }
        let (mut done, mut rounds) = (0, 0);
        while done < buffer.len() {
            let at = offset + done as u64;
            let bytes = (PAGE_BYTES - at as usize % PAGE_BYTES).min(buffer.len() - done);
            self.await_poison();
            let failures = self.failures.count();
            self.map_or_fail(region, at / PAGE_BYTES as u64, false)?;
            // With a new failure, the copy may have met poison: an eviction and a failed read may have followed the mapping.
            match region.map.load(at, &mut buffer[done..done + bytes]) {
                Ok(()) if self.failures.count() == failures => (done, rounds) = (done + bytes, 0),
                Ok(()) => {}
                Err(stopped) => self.begin_anew(region, at, stopped, &mut rounds, &buffer[done])?,
            }
        }
        Ok(())
    }

    /// Copies bytes in.
    pub(super) fn store(&self, region: &KernelRegion, offset: u64, data: &[u8]) -> Result<()> {
        let (mut done, mut rounds) = (0, 0);
        while let Err(stopped) = region.map.store(offset + done as u64, &data[done..]) {
            if stopped.done > 0 {
                (done, rounds) = (done + stopped.done, 0);
            }
            let at = offset + done as u64;
            self.begin_anew(region, at, stopped, &mut rounds, &data[done])?;
            self.map_or_fail(region, at / PAGE_BYTES as u64, true)?;
        }
        Ok(())
    }

    /// Fails unless a copy that has stopped at an offset is worth another try. It first touches the byte on the other side, which
    /// may lie in a mapping of vmio too.
    fn begin_anew(
        &self,
        region: &KernelRegion,
        at: u64,
        stopped: Stopped,
        rounds: &mut u32,
        other_side: &u8,
    ) -> Result<()> {
        *rounds += 1;
        if stopped.why.raw_os_error() != Some(libc::EFAULT) || *rounds > ROUNDS_MAX {
            return Err(Error::Read { backing: region.backing.describe(), offset: at, source: stopped.why });
        }
        std::hint::black_box(*other_side);
        Ok(())
    }

    /// Brings in pages without poison, and keeps them in memory until the descriptor is closed.
    pub(super) fn pin(
        &self,
        region: &KernelRegion,
        pages: &Range<u64>,
        for_stores: bool,
    ) -> Result<io::Result<OwnedFd>> {
        let addresses = region.map.addresses(&bytes_of(pages));
        for _ in 0..ROUNDS_MAX {
            match region.attachment.pin(&addresses, for_stores) {
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    pages.clone().try_for_each(|page| self.map_or_fail(region, page, for_stores))?;
                }
                pinned => return Ok(pinned),
            }
        }
        Ok(Err(io::Error::from_raw_os_error(libc::EFAULT)))
    }

    /// Returns once all failures noted so far have their poison, if any. Pages mapped afterwards hold none, unless another failure
    /// is noted.
    fn await_poison(&self) {
        while self.poisoning.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }

    fn map_or_fail(&self, region: &KernelRegion, page: u64, for_stores: bool) -> Result<()> {
        self.map_verified(region, page, for_stores, false).map_err(|refusal| refusal.into_error(region, page))
    }

    /// Verifies a page and maps it for loads or for stores, or notes a failure. For a caller that then `poisons` the page, it
    /// increments `poisoning`.
    fn map_verified(&self, region: &KernelRegion, page: u64, for_stores: bool, poisons: bool) -> Result<(), Refusal> {
        let bytes = bytes_of(&(page..page + 1));
        for _ in 0..ROUNDS_MAX {
            match self.verify(region, page) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(ReadFailure::Os(code @ (libc::ENOMEM | libc::EINTR))) => return Err(Refusal::Exhausted(code)),
                Err(failure) => {
                    let _signals = SignalsBlocked::new();
                    if poisons {
                        self.poisoning.fetch_add(1, Ordering::AcqRel);
                    }
                    self.failures.note(page, failure);
                    return Err(Refusal::Unreadable(failure));
                }
            }
            let mapped = if for_stores { region.map.populate_for_stores(&bytes) } else { region.map.populate(&bytes) };
            if mapped.is_ok() {
                return Ok(());
            }
        }
        Err(Refusal::Exhausted(libc::EBUSY))
    }

    /// Brings a page in, verifies it, and allows the module to map it. False after an eviction meanwhile.
    fn verify(&self, region: &KernelRegion, page: u64) -> Result<bool, ReadFailure> {
        let bytes = bytes_of(&(page..page + 1));
        let mut buffer = self.buffers.acquire(cpu::current());
        let contents = &mut buffer.bytes()[..PAGE_BYTES];
        let arrival = region.attachment.inspect(bytes.start, contents).map_err(|error| ReadFailure::from(&error))?;
        let Some(arrival) = arrival else { return Ok(true) };
        let _verifier_may_panic = AbortOnUnwind::new();
        if self.verifier.as_ref().is_some_and(|verifier| !verifier.verify(bytes.start, contents)) {
            // The next access reads the page again, or verifies the same contents if this eviction fails.
            let _ = region.attachment.evict(&bytes);
            return Err(ReadFailure::Corrupt);
        }
        region.attachment.allow_mapping(bytes.start, arrival).map_err(|error| ReadFailure::from(&error))
    }

    /// Handles a load or store that has missed a page.
    fn handle(&self, region: &KernelRegion, page: u64, access: FaultAccess) -> Resolution {
        let is_store = access == FaultAccess::Store;
        // An access that may be a store would find poison again and again.
        let poison = self.poison.filter(|_| access == FaultAccess::Load);
        for _ in 0..PATIENCE {
            match (self.map_verified(region, page, is_store, poison.is_some()), poison) {
                (Ok(()), _) => return Resolution::Resolved,
                (Err(Refusal::Exhausted(libc::ENOMEM)), _) => {}
                (Err(Refusal::Unreadable(_)), Some(pattern)) => {
                    let poisoned = region.attachment.poison(page * PAGE_BYTES as u64, pattern);
                    self.poisoning.fetch_sub(1, Ordering::AcqRel);
                    return if poisoned.is_ok() { Resolution::Resolved } else { Resolution::Declined };
                }
                _ => break,
            }
        }
        Resolution::Declined
    }
}

impl KernelRegion {
    /// Lets faults on unverified pages find their region.
    pub(super) fn expect_faults(&self) -> Result<()> {
        if self.verification.is_none() {
            return Ok(());
        }
        install_sigbus_handler(FaultSource::Module, handle_fault).map_err(Error::system("handling SIGBUS"))?;
        REGIONS.insert(self.map.all_addresses(), self).map_err(Error::system("reserving the table of mappings"))
    }
}

impl Drop for KernelRegion {
    fn drop(&mut self) {
        if self.verification.is_some() {
            REGIONS.remove(self.map.all_addresses(), self);
        }
    }
}

/// Handles a fault. It is async-signal-safe, as verifiers are.
fn handle_fault(address: usize, access: FaultAccess) -> Resolution {
    let Some(region) = REGIONS.find(address) else { return Resolution::Declined };
    let Some(verification) = &region.verification else { return Resolution::Declined };
    let page = ((address - region.map.base() as usize) / PAGE_BYTES) as u64;
    let is_refused = access == FaultAccess::Store && region.access == Access::ReadOnly;
    if page * PAGE_BYTES as u64 >= region.len() || is_refused || !region.generation.is_current() {
        return Resolution::Declined;
    }
    verification.handle(region, page, access)
}
