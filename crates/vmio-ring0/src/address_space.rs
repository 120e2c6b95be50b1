//! The machine's memory: each gigabyte of the process's addresses becomes guest-physical memory, at the same virtual addresses, when a thread in
//! the machine first touches it.
//!
//! The host's page tables stay in charge of it: what the program maps, protects or unmaps needs nothing here, since KVM follows the process's
//! address space. Page tables of the guest are the crate's own memory, read and written in place.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::managed::Rights;
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES, UNDER_LOCK_ALIGN};
use crate::page_tables::{PageTables, entry};
use crate::raw;

/// Addresses of the process end here (47 bits, but for the last page).
pub(crate) const USER_END: usize = 0x7fff_ffff_f000;
const GIGABYTES: usize = USER_END.div_ceil(GIB);
/// Below it are the interrupt controllers, and what KVM may place for itself.
const FIRST_ADDRESS: u64 = 4 << 30;
/// No memory of the program's is there.
const UNUSED_ADDRESS: u64 = 2 << 30;
/// AMD keeps these guest-physical addresses for HyperTransport.
const RESERVED: Range<u64> = 0xfd_0000_0000..0x100_0000_0000;
const SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;

/// The guest's page tables, and the memory that they lead to.
pub(crate) struct AddressSpace {
    /// The descriptor of the virtual machine.
    machine: i32,
    tables: PageTables,
    /// Guest-physical addresses of the process's gigabytes, 0 for those that are not in the machine.
    gigabytes: Memory,
    /// All managed addresses that ever were lie between these.
    managed_start: AtomicUsize,
    managed_end: AtomicUsize,
    lock: Lock,
    next: UnsafeCell<Next>,
}

/// The next of each that is free. Only whoever holds the lock touches it.
struct Next {
    address: u64,
    addresses_end: u64,
    slot: u32,
    /// Slots for gigabytes; one more is there.
    slots: u32,
}

// SAFETY: tables and gigabytes are atomic words; what else there is, is under the lock.
unsafe impl Sync for AddressSpace {}
// SAFETY: none of it belongs to a thread.
unsafe impl Send for AddressSpace {}

impl AddressSpace {
    /// An empty one, for a processor with this many bits of guest-physical addresses.
    pub(crate) fn new(machine: i32, address_bits: u32, slots: u32) -> Result<AddressSpace> {
        let space = AddressSpace {
            machine,
            // So that they have addresses for each other, their gigabyte is the first.
            tables: PageTables::new(FIRST_ADDRESS)?,
            gigabytes: Memory::reserve((GIGABYTES * size_of::<u64>()).next_multiple_of(PAGE_BYTES), UNDER_LOCK_ALIGN)?,
            managed_start: AtomicUsize::new(USER_END),
            managed_end: AtomicUsize::new(0),
            lock: Lock::default(),
            next: UnsafeCell::new(Next {
                address: FIRST_ADDRESS,
                addresses_end: 1 << address_bits.min(52),
                slot: 0,
                slots: slots - 1,
            }),
        };
        space.add_gigabyte_of(space.tables.base())?;
        debug_assert_eq!(space.physical(space.tables.base()), Some(space.root()));
        Ok(space)
    }

    /// The descriptor of the virtual machine.
    pub(crate) fn machine(&self) -> i32 {
        self.machine
    }

    /// Memory that is touched under the lock, and under that of the page tables, but for the tables themselves.
    pub(crate) fn own_addresses(&self) -> [Range<usize>; 2] {
        let start = self.gigabytes.base();
        [start..start + self.gigabytes.len(), self.tables.addresses_of_numbers()]
    }

    /// The value for CR3.
    pub(crate) fn root(&self) -> u64 {
        self.tables.root()
    }

    /// The page tables.
    pub(crate) fn tables(&self) -> &PageTables {
        &self.tables
    }

    /// The guest-physical address of memory that is in the machine.
    pub(crate) fn physical(&self, address: usize) -> Option<u64> {
        let gigabyte = self.gigabyte(address / GIB).load(Ordering::Acquire);
        (gigabyte != 0).then(|| gigabyte + (address % GIB) as u64)
    }

    /// Leaves the pages of a range to the program's fault handler: [`PageTables::manage`].
    pub(crate) fn manage(&self, addresses: Range<usize>, most: Rights) -> Result<()> {
        let _taken = self.lock.take();
        self.managed_start.fetch_min(addresses.start, Ordering::Relaxed);
        self.managed_end.fetch_max(addresses.end, Ordering::Relaxed);
        self.tables.manage(addresses, most)
    }

    /// Ends that: [`PageTables::release`].
    pub(crate) fn release(&self, addresses: Range<usize>) {
        // Gigabytes come only under the lock.
        let _taken = self.lock.take();
        self.tables.release(addresses, |address| self.physical(address));
    }

    /// Whether faults at an address are for the program's handler.
    pub(crate) fn is_managed(&self, address: usize) -> bool {
        address < USER_END && self.tables.responsible(address) & entry::MANAGED != 0
    }

    /// Whether no store to a managed address is ever allowed.
    pub(crate) fn is_read_only(&self, address: usize) -> bool {
        self.tables.responsible(address) & entry::READ_ONLY != 0
    }

    /// Whether there was managed memory at any time.
    pub(crate) fn has_managed(&self) -> bool {
        self.managed_end.load(Ordering::Relaxed) != 0
    }

    /// The first run of managed memory in some addresses, in whole large pages.
    pub(crate) fn managed_in(&self, addresses: Range<usize>) -> Option<Range<usize>> {
        let start = addresses.start.max(self.managed_start.load(Ordering::Relaxed)) / LARGE_PAGE_BYTES;
        let end = addresses.end.min(self.managed_end.load(Ordering::Relaxed)).div_ceil(LARGE_PAGE_BYTES);
        let is_managed = |large: &usize| self.is_managed(large * LARGE_PAGE_BYTES);
        let first = (start..end).find(is_managed)?;
        let last = (first..end).take_while(is_managed).last()?;
        Some(first * LARGE_PAGE_BYTES..(last + 1) * LARGE_PAGE_BYTES)
    }

    /// Has KVM forget what it has made of the page tables, for all virtual processors: it does so when memory is taken from a machine.
    pub(crate) fn forget_translations(&self) {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let next = unsafe { &*self.next.get() };
        // A page that nothing maps, given and taken away.
        for memory_size in [PAGE_BYTES as u64, 0] {
            let region = kvm_bindings::kvm_userspace_memory_region {
                slot: next.slots,
                flags: 0,
                guest_phys_addr: UNUSED_ADDRESS,
                memory_size,
                userspace_addr: self.gigabytes.base() as u64,
            };
            // SAFETY: KVM reads the structure. No page table leads to the memory.
            let answer = unsafe { raw::ioctl(self.machine, SET_USER_MEMORY_REGION, &raw const region as u64) };
            if let Some(error) = raw::error_of(answer) {
                raw::die("having KVM forget translations failed, errno", error as u64);
            }
        }
    }

    /// Brings all gigabytes of some addresses into the machine, those that it lacks.
    pub(crate) fn add_gigabytes_of(&self, addresses: Range<usize>) -> Result<()> {
        let gigabytes = addresses.start / GIB..=(addresses.end - 1) / GIB;
        gigabytes.map(|index| index * GIB).try_for_each(|address| self.add_gigabyte_of(address).map(drop))
    }

    /// Brings the gigabyte of an address into the machine. False if it is there already.
    pub(crate) fn add_gigabyte_of(&self, address: usize) -> Result<bool> {
        debug_assert!(address < USER_END);
        let index = address / GIB;
        let _taken = self.lock.take();
        if self.gigabyte(index).load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        // SAFETY: the lock is held.
        let next = unsafe { &mut *self.next.get() };
        if RESERVED.contains(&next.address) {
            next.address = RESERVED.end;
        }
        if next.slot == next.slots || next.address + GIB as u64 > next.addresses_end {
            return Err(Error::AddressesUsedUp);
        }
        let start = index * GIB;
        let physical = next.address;
        let len = GIB.min(USER_END - start) as u64;
        self.set_region(next, start, len)?;
        if let Err(error) = self.tables.map_gigabyte(start, physical) {
            self.set_region(next, start, 0)?;
            return Err(error);
        }
        next.slot += 1;
        next.address += GIB as u64;
        // Mapped before others find it.
        self.gigabyte(index).store(physical, Ordering::Release);
        Ok(true)
    }

    /// Gives the next slot memory of the process's, or takes it away again.
    fn set_region(&self, next: &Next, start: usize, memory_size: u64) -> Result<()> {
        let region = kvm_bindings::kvm_userspace_memory_region {
            slot: next.slot,
            flags: 0,
            guest_phys_addr: next.address,
            memory_size,
            userspace_addr: start as u64,
        };
        // SAFETY: KVM reads the structure. The memory becomes the guest's with the rights that the process has to it, no others.
        let answer = unsafe { raw::ioctl(self.machine, SET_USER_MEMORY_REGION, &raw const region as u64) };
        raw::error_of(answer).map_or(Ok(()), |error| {
            let source = std::io::Error::from_raw_os_error(error);
            Err(Error::System { operation: "giving the machine a gigabyte of the process's addresses", source })
        })
    }

    fn gigabyte(&self, index: usize) -> &AtomicU64 {
        assert!(index < GIGABYTES);
        // SAFETY: the memory has a word for each gigabyte, all of them atomic, and lives as long as the process.
        unsafe { &*(self.gigabytes.base() as *const AtomicU64).add(index) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::{Error, Level, Machine};

    #[test]
    fn a_gigabyte_for_which_no_table_is_left_may_come_later() {
        let machine = kvm_ioctls::Kvm::new().and_then(|kvm| kvm.create_vm());
        let Ok(machine) = machine else { return test_depth::skipped("there is no KVM") };
        let space = AddressSpace::new(machine.as_raw_fd(), 40, 8).unwrap();
        // Nobody has that one, whose tables are not there, either.
        let address = 3 << 39;
        let fresh = space.tables.use_up();
        for _ in 0..20 {
            assert!(matches!(space.add_gigabyte_of(address), Err(Error::PageTablesUsedUp)));
            assert_eq!(space.physical(address), None);
        }
        space.tables.give_back(fresh);
        assert!(space.add_gigabyte_of(address).unwrap());
        assert!(!space.add_gigabyte_of(address).unwrap());
        assert!(space.physical(address).is_some());
    }

    #[test]
    fn what_is_touched_under_a_lock_is_in_the_machine() {
        let started = Machine::start(Level::Ring0).or_else(|_| Machine::start(Level::Ring3));
        let Ok(machine) = started else { return test_depth::skipped("there is no guest mode") };
        let code = AddressSpace::add_gigabyte_of as *const () as usize;
        let own = std::ptr::from_ref(machine).addr();
        for range in machine.space.own_addresses().into_iter().chain([code..code + 1, own..own + size_of::<Machine>()])
        {
            for address in [range.start, range.end - 1] {
                assert!(machine.space.physical(address).is_some(), "{address:x}");
            }
        }
    }
}
