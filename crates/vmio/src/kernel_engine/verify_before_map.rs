//! Verify before map: pages are verified before the program can access them. For verifiers, and for poison in place of pages
//! that cannot be read.
//!
//! The module maps no page of such a file before it is told that the page was verified. A load or store of one is a SIGBUS, in
//! whose handler the page is brought in, verified and mapped; calls do the same before they touch anything.

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

/// How often a page is brought in that is evicted before it is mapped, and a copy begun anew that comes no further.
const ROUNDS_MAX: u32 = 16;
/// How often a load or store asks for memory, of which all is held: each time the module waits for a second.
const PATIENCE: u32 = 10;

/// Whose faults are handled here.
static REGIONS: AddressTable<KernelRegion> = AddressTable::new();

/// How the pages of a file are verified.
pub(super) struct VerifyBeforeMap {
    verifier: Option<Arc<dyn PageVerifier>>,
    poison: Option<[u8; 8]>,
    pub(super) failures: ReadFailures,
    /// Handlers that have noted a failure, and are about to put poison there.
    poisoning: AtomicUsize,
    buffers: Arc<PageBuffers>,
}

/// Why a page cannot be mapped.
#[derive(Clone, Copy)]
enum Refusal {
    /// It is not available from the file; noted as a failure.
    Unreadable(ReadFailure),
    /// There is no memory for it, or it goes as soon as it comes.
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
    /// What these options ask for; `None` if the module may map pages as they come.
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

    /// Makes pages resident, and maps them for loads. None of them holds poison then.
    pub(super) fn populate(&self, region: &KernelRegion, pages: &Range<u64>) -> Result<()> {
        self.await_poison();
        match self.poison {
            // A load brings a page in as well, and says by what it finds whether it could not.
            Some(pattern) => {
                let is_poison = |page: &u64| region.map.first_word(*page) == u64::from_ne_bytes(pattern);
                pages.clone().filter(is_poison).try_for_each(|page| self.map_or_fail(region, page, false))
            }
            None if region.map.populate(&bytes_of(pages)).is_ok() => Ok(()),
            None => pages.clone().try_for_each(|page| self.map_or_fail(region, page, false)),
        }
    }

    /// Copies bytes out, none of them poison.
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
            // If it has been evicted since, and read again in vain, it may be poison that was copied.
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

    /// Whether a copy that has stopped at an offset is worth another try, once the byte on the other side is there, which may lie
    /// in a mapping of ours, too.
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

    /// Brings in pages that hold no poison, and keeps them in memory until the descriptor is closed.
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

    /// Returns once each failure that was noted before has had its poison, if any: so what is mapped from then on holds none, unless
    /// another failure is noted.
    fn await_poison(&self) {
        while self.poisoning.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }

    fn map_or_fail(&self, region: &KernelRegion, page: u64, for_stores: bool) -> Result<()> {
        self.map_verified(region, page, for_stores, false).map_err(|refusal| refusal.into_error(region, page))
    }

    /// Verifies a page and maps it for loads or for stores; notes a failure. A caller that `poisons` the page then is counted in
    /// `poisoning`.
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

    /// Brings a page in, verifies it, and tells the module that it may be mapped; false if it was evicted meanwhile.
    fn verify(&self, region: &KernelRegion, page: u64) -> Result<bool, ReadFailure> {
        let bytes = bytes_of(&(page..page + 1));
        let mut buffer = self.buffers.acquire(cpu::current());
        let contents = &mut buffer.bytes()[..PAGE_BYTES];
        let arrival = region.attachment.inspect(bytes.start, contents).map_err(|error| ReadFailure::from(&error))?;
        let Some(arrival) = arrival else { return Ok(true) };
        let _verifier_may_panic = AbortOnUnwind::new();
        if self.verifier.as_ref().is_some_and(|verifier| !verifier.verify(bytes.start, contents)) {
            // The next access reads it again, and if that fails reports what was found here.
            let _ = region.attachment.evict(&bytes);
            return Err(ReadFailure::Corrupt);
        }
        region.attachment.allow_mapping(bytes.start, arrival).map_err(|error| ReadFailure::from(&error))
    }

    /// Handles a load or store that has missed a page.
    fn handle(&self, region: &KernelRegion, page: u64, access: FaultAccess) -> Resolution {
        let is_store = access == FaultAccess::Store;
        // What may be a store would find poison again and again.
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
    /// Lets the faults of pages that were not verified find their region.
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

/// Async-signal-safe, as verifiers are.
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
