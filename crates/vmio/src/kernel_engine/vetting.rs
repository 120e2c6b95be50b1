//! Pages that are looked at before anybody sees them: for verifiers, and for poison in place of what cannot be had.
//!
//! The module shows no page of such a file that was not admitted. A load or store of one is a SIGBUS, in whose handler the page is
//! brought in, verified and admitted; calls do the same before they touch anything.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::backing::Access;
use crate::cache::page_buffers::PageBuffers;
use crate::cache::read_failures::{ReadFailure, ReadFailures};
use crate::error::{Error, Result};
use crate::kernel_engine::Module;
use crate::kernel_engine::region::KernelRegion;
use crate::mapping::mapped_file::bytes_of;
use crate::mapping::options::{MappingOptions, OnReadError, PageVerifier};
use crate::sys::abort::AbortOnUnwind;
use crate::sys::address_table::AddressTable;
use crate::sys::signal::{FaultAccess, FaultSource, Resolution, SignalsBlocked, install_sigbus_handler};
use crate::sys::{PAGE_BYTES, cpu};

/// How often a page is brought in that is evicted before it is seen.
const ROUNDS_MAX: u32 = 16;

/// Whose faults are handled here.
static REGIONS: AddressTable<KernelRegion> = AddressTable::new();

/// How the pages of a file are looked at.
pub(super) struct Vetting {
    verifier: Option<Arc<dyn PageVerifier>>,
    poison: Option<[u8; 8]>,
    pub(super) failures: ReadFailures,
    buffers: Arc<PageBuffers>,
}

impl Vetting {
    /// What these options ask for; `None` if the module may show pages as they come.
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
        Ok(Some(Vetting { verifier, poison, failures: ReadFailures::default(), buffers }))
    }

    /// Makes pages resident, and visible to loads. None of them holds poison then.
    pub(super) fn populate(&self, region: &KernelRegion, pages: &Range<u64>) -> Result<()> {
        // As long as nothing has failed, what can be seen is no poison.
        if self.failures.count() == 0 && region.map.populate(&bytes_of(pages)).is_ok() && self.failures.count() == 0 {
            return Ok(());
        }
        pages.clone().try_for_each(|page| self.show_or_fail(region, page, false))
    }

    /// Copies bytes out, none of them poison.
    pub(super) fn load(&self, region: &KernelRegion, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.failures.count() == 0 && region.map.load(offset, buffer).is_ok() && self.failures.count() == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let bytes = (PAGE_BYTES - at as usize % PAGE_BYTES).min(buffer.len() - done);
            let failures = self.failures.count();
            self.show_or_fail(region, at / PAGE_BYTES as u64, false)?;
            // If it has been evicted since, and read again in vain, it may be poison that was copied.
            if region.map.load(at, &mut buffer[done..done + bytes]).is_ok() && self.failures.count() == failures {
                done += bytes;
            }
        }
        Ok(())
    }

    /// Copies bytes in.
    pub(super) fn store(&self, region: &KernelRegion, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Err(stopped) = region.map.store(offset + done as u64, &data[done..]) {
            done += stopped.done;
            self.show_or_fail(region, (offset + done as u64) / PAGE_BYTES as u64, true)?;
        }
        Ok(())
    }

    /// Has pages come into memory that hold no poison, and keeps them there until the descriptor is closed.
    pub(super) fn pin(
        &self,
        region: &KernelRegion,
        pages: &Range<u64>,
        for_stores: bool,
    ) -> Result<io::Result<OwnedFd>> {
        let addresses = region.map.addresses(&bytes_of(pages));
        for _ in 0..ROUNDS_MAX {
            let failures = self.failures.count();
            if failures > 0 {
                self.populate(region, pages)?;
            }
            match region.attachment.pin(&addresses, for_stores) {
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    pages.clone().try_for_each(|page| self.show_or_fail(region, page, for_stores))?;
                }
                Ok(_) if self.failures.count() != failures => {}
                pinned => return Ok(pinned),
            }
        }
        Ok(Err(io::Error::from_raw_os_error(libc::EFAULT)))
    }

    fn show_or_fail(&self, region: &KernelRegion, page: u64, for_stores: bool) -> Result<()> {
        self.show(region, page, for_stores).map_err(|failure| failure.into_error(region.backing.describe(), page))
    }

    /// Has loads, or stores, see a page, and notes why they cannot.
    fn show(&self, region: &KernelRegion, page: u64, for_stores: bool) -> Result<(), ReadFailure> {
        self.try_to_show(region, page, for_stores).inspect_err(|failure| {
            let _signals = SignalsBlocked::new();
            self.failures.note(page, *failure);
        })
    }

    fn try_to_show(&self, region: &KernelRegion, page: u64, for_stores: bool) -> Result<(), ReadFailure> {
        let bytes = bytes_of(&(page..page + 1));
        for _ in 0..ROUNDS_MAX {
            self.admit(region, page)?;
            let shown = if for_stores { region.map.populate_for_stores(&bytes) } else { region.map.populate(&bytes) };
            if shown.is_ok() {
                return Ok(());
            }
        }
        Err(ReadFailure::Os(libc::EFAULT))
    }

    /// Has a page come into memory, and says that it may be seen.
    fn admit(&self, region: &KernelRegion, page: u64) -> Result<(), ReadFailure> {
        let bytes = bytes_of(&(page..page + 1));
        let mut buffer = self.buffers.acquire(cpu::current());
        let contents = &mut buffer.bytes()[..PAGE_BYTES];
        let arrival = region.attachment.inspect(bytes.start, contents).map_err(|error| ReadFailure::from(&error))?;
        let Some(arrival) = arrival else { return Ok(()) };
        let _verifier_may_panic = AbortOnUnwind::new();
        if self.verifier.as_ref().is_some_and(|verifier| !verifier.verify(bytes.start, contents)) {
            // Who wants it next has it read again. If that fails he finds what was found here.
            let _ = region.attachment.evict(&bytes);
            return Err(ReadFailure::Corrupt);
        }
        region.attachment.admit(bytes.start, arrival).map_err(|error| ReadFailure::from(&error))
    }

    fn handle(&self, region: &KernelRegion, page: u64, access: FaultAccess) -> Resolution {
        if self.show(region, page, access == FaultAccess::Store).is_ok() {
            return Resolution::Resolved;
        }
        // What may be a store would find poison again and again.
        let poison = self.poison.filter(|_| access == FaultAccess::Load);
        let poisoned = poison.map(|pattern| region.attachment.poison(page * PAGE_BYTES as u64, pattern));
        if poisoned.is_some_and(|poisoned| poisoned.is_ok()) { Resolution::Resolved } else { Resolution::Declined }
    }
}

impl KernelRegion {
    /// Has the faults of pages that were not admitted find their region.
    pub(super) fn expect_faults(&self) -> Result<()> {
        if self.vetting.is_none() {
            return Ok(());
        }
        install_sigbus_handler(FaultSource::Module, handle_fault).map_err(Error::system("handling SIGBUS"))?;
        REGIONS.insert(self.map.all_addresses(), self).map_err(Error::system("reserving the table of mappings"))
    }
}

impl Drop for KernelRegion {
    fn drop(&mut self) {
        if self.vetting.is_some() {
            REGIONS.remove(self.map.all_addresses());
        }
    }
}

/// Async-signal-safe, as verifiers are.
fn handle_fault(address: usize, access: FaultAccess) -> Resolution {
    let Some(region) = REGIONS.find(address) else { return Resolution::Declined };
    let Some(vetting) = &region.vetting else { return Resolution::Declined };
    let page = ((address - region.map.base() as usize) / PAGE_BYTES) as u64;
    let is_refused = access == FaultAccess::Store && region.access == Access::ReadOnly;
    if page * PAGE_BYTES as u64 >= region.len() || is_refused {
        return Resolution::Declined;
    }
    vetting.handle(region, page, access)
}
