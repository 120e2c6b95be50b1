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
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES};
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

/// Bits of an entry.
pub(crate) mod entry {
    /// It maps something.
    pub(crate) const PRESENT: u64 = 1;
    /// Stores are allowed.
    pub(crate) const WRITABLE: u64 = 1 << 1;
    /// Ring 3 may use it.
    pub(crate) const USER: u64 = 1 << 2;
    /// The processor has used it.
    pub(crate) const ACCESSED: u64 = 1 << 5;
    /// The processor has stored through it.
    pub(crate) const DIRTY: u64 = 1 << 6;
    /// Of a page directory: it maps 2 MiB by itself.
    pub(crate) const LARGE: u64 = 1 << 7;
    /// Of a page directory: what is missing below it is for the program's fault handler. The processor does not look at this bit.
    pub(crate) const MANAGED: u64 = 1 << 9;
    /// Of a managed large page: stores are never allowed. The processor does not look at this bit, either.
    pub(crate) const READ_ONLY: u64 = 1 << 10;
    /// Where the address is.
    pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    /// Of a table of tables.
    pub(crate) const TABLE: u64 = PRESENT | WRITABLE | USER | ACCESSED;
    /// Of 2 MiB of the program's own memory, whose state the host keeps.
    pub(crate) const LARGE_PAGE: u64 = PRESENT | WRITABLE | USER | ACCESSED | DIRTY | LARGE;
}

/// A page of a page table.
pub(crate) type Table = [AtomicU64; 512];

/// The guest's page tables, and the memory that they lead to.
pub(crate) struct AddressSpace {
    /// The descriptor of the virtual machine.
    machine: i32,
    /// Page tables; the first is the root.
    tables: Memory,
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
    table: usize,
    /// A table that is free again, and in its first word the next such; 0 for none.
    free_table: usize,
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
            tables: Memory::reserve(GIB, GIB)?,
            gigabytes: Memory::reserve((GIGABYTES * size_of::<u64>()).next_multiple_of(PAGE_BYTES), PAGE_BYTES)?,
            managed_start: AtomicUsize::new(USER_END),
            managed_end: AtomicUsize::new(0),
            lock: Lock::default(),
            // The root is the first table.
            next: UnsafeCell::new(Next {
                table: PAGE_BYTES,
                free_table: 0,
                address: FIRST_ADDRESS,
                addresses_end: 1 << address_bits.min(52),
                slot: 0,
                slots: slots - 1,
            }),
        };
        // So that page tables have addresses for each other.
        space.add_gigabyte_of(space.tables.base())?;
        Ok(space)
    }

    /// The descriptor of the virtual machine.
    pub(crate) fn machine(&self) -> i32 {
        self.machine
    }

    /// The value for CR3.
    pub(crate) fn root(&self) -> u64 {
        self.address_of_table(self.tables.base())
    }

    /// The guest-physical address of memory that is in the machine.
    pub(crate) fn physical(&self, address: usize) -> Option<u64> {
        let gigabyte = self.gigabyte(address / GIB).load(Ordering::Acquire);
        (gigabyte != 0).then(|| gigabyte + (address % GIB) as u64)
    }

    /// Leaves the pages of a range to the program's fault handler. It has whole large pages, none of which the machine maps any more
    /// after the TLBs are emptied.
    pub(crate) fn manage(&self, addresses: Range<usize>, most: Rights) -> Result<()> {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let next = unsafe { &mut *self.next.get() };
        let managed = match most {
            Rights::Read => entry::MANAGED | entry::READ_ONLY,
            Rights::ReadWrite => entry::MANAGED,
        };
        self.managed_start.fetch_min(addresses.start, Ordering::Relaxed);
        self.managed_end.fetch_max(addresses.end, Ordering::Relaxed);
        for address in addresses.step_by(LARGE_PAGE_BYTES) {
            let place = &self.directory(address, next)?[address / LARGE_PAGE_BYTES % 512];
            debug_assert_eq!(place.load(Ordering::Relaxed) & entry::MANAGED, 0);
            place.store(managed, Ordering::Release);
        }
        Ok(())
    }

    /// Ends that. None of the pages is mapped, and nobody touches them meanwhile.
    pub(crate) fn release(&self, addresses: Range<usize>) {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let next = unsafe { &mut *self.next.get() };
        for address in addresses.step_by(LARGE_PAGE_BYTES) {
            let Some(place) = self.directory_entry(address) else { continue };
            let target = self.physical(address).map_or(0, |physical| physical | entry::LARGE_PAGE);
            let held = place.swap(target, Ordering::AcqRel);
            if held & entry::PRESENT != 0 {
                let table = self.table_at(held & entry::ADDRESS);
                self.table(table)[0].store(next.free_table as u64, Ordering::Relaxed);
                next.free_table = table;
            }
        }
    }

    /// Whether faults at an address are for the program's handler.
    pub(crate) fn is_managed(&self, address: usize) -> bool {
        address < USER_END
            && self.directory_entry(address).is_some_and(|place| place.load(Ordering::Acquire) & entry::MANAGED != 0)
    }

    /// Whether no store to a managed address is ever allowed.
    pub(crate) fn is_read_only(&self, address: usize) -> bool {
        self.directory_entry(address).is_some_and(|place| place.load(Ordering::Acquire) & entry::READ_ONLY != 0)
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

    /// The page table's entry of a managed page, if its table exists.
    pub(crate) fn page_entry(&self, address: usize) -> Option<&AtomicU64> {
        let held = self.directory_entry(address)?.load(Ordering::Acquire);
        let is_table = held & (entry::MANAGED | entry::PRESENT) == entry::MANAGED | entry::PRESENT;
        is_table.then(|| &self.table(self.table_at(held & entry::ADDRESS))[address / PAGE_BYTES % 512])
    }

    /// The same with its table, made if need be.
    pub(crate) fn make_page_entry(&self, address: usize) -> Result<&AtomicU64> {
        if let Some(place) = self.page_entry(address) {
            return Ok(place);
        }
        let _taken = self.lock.take();
        let place = self.directory_entry(address).filter(|place| place.load(Ordering::Relaxed) & entry::MANAGED != 0);
        let place = place.ok_or(Error::NotManaged { address })?;
        if place.load(Ordering::Relaxed) & entry::PRESENT == 0 {
            // SAFETY: the lock is held.
            let next = unsafe { &mut *self.next.get() };
            let new = self.new_table(next)?;
            let kept = place.load(Ordering::Relaxed);
            place.store(self.address_of_table(new) | entry::TABLE | kept, Ordering::Release);
        }
        self.page_entry(address).ok_or(Error::NotManaged { address })
    }

    /// The entry of a page directory that is responsible for an address, if the directory exists.
    fn directory_entry(&self, address: usize) -> Option<&AtomicU64> {
        let mut table = self.table(self.tables.base());
        for shift in [39, 30] {
            let held = table[address >> shift & 511].load(Ordering::Acquire);
            if held == 0 {
                return None;
            }
            table = self.table(self.table_at(held & entry::ADDRESS));
        }
        Some(&table[address / LARGE_PAGE_BYTES % 512])
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
        let region = kvm_bindings::kvm_userspace_memory_region {
            slot: next.slot,
            flags: 0,
            guest_phys_addr: next.address,
            memory_size: GIB.min(USER_END - start) as u64,
            userspace_addr: start as u64,
        };
        // SAFETY: KVM reads the structure. The memory becomes the guest's with the rights that the process has to it, no others.
        let answer = unsafe { raw::ioctl(self.machine, SET_USER_MEMORY_REGION, &raw const region as u64) };
        if let Some(error) = raw::error_of(answer) {
            let source = std::io::Error::from_raw_os_error(error);
            return Err(Error::System {
                operation: "giving the machine a gigabyte of the process's addresses",
                source,
            });
        }
        let physical = next.address;
        next.slot += 1;
        next.address += GIB as u64;
        self.gigabyte(index).store(physical, Ordering::Release);
        let directory = self.directory(start, next)?;
        for (number, large) in (0..).zip(directory) {
            let target = physical + number * LARGE_PAGE_BYTES as u64;
            // Managed parts stay as they are.
            let _ = large.compare_exchange(0, target | entry::LARGE_PAGE, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// The page directory of an address's gigabyte, made if need be. By whoever holds the lock.
    fn directory(&self, address: usize, next: &mut Next) -> Result<&Table> {
        let pointers = self.below(self.table(self.tables.base()), address >> 39 & 511, next)?;
        self.below(pointers, address >> 30 & 511, next)
    }

    /// The table that an entry leads to, made if need be.
    fn below<'a>(&'a self, table: &'a Table, index: usize, next: &mut Next) -> Result<&'a Table> {
        let place = &table[index];
        let held = place.load(Ordering::Acquire);
        if held != 0 {
            return Ok(self.table(self.table_at(held & entry::ADDRESS)));
        }
        let new = self.new_table(next)?;
        place.store(self.address_of_table(new) | entry::TABLE, Ordering::Release);
        Ok(self.table(new))
    }

    /// A table of zeros.
    fn new_table(&self, next: &mut Next) -> Result<usize> {
        if next.free_table != 0 {
            let table = next.free_table;
            next.free_table = self.table(table)[0].swap(0, Ordering::Relaxed) as usize;
            return Ok(table);
        }
        if next.table == self.tables.len() {
            return Err(Error::PageTablesUsedUp);
        }
        next.table += PAGE_BYTES;
        Ok(self.tables.base() + next.table - PAGE_BYTES)
    }

    fn table(&self, at: usize) -> &Table {
        debug_assert!(at.wrapping_sub(self.tables.base()) < self.tables.len() && at.is_multiple_of(PAGE_BYTES));
        // SAFETY: a page of the memory of page tables, which holds atomic words alone and lives as long as the process.
        unsafe { &*(at as *const Table) }
    }

    fn table_at(&self, physical: u64) -> usize {
        self.tables.base() + (physical - self.root()) as usize
    }

    fn address_of_table(&self, at: usize) -> u64 {
        let base = self.gigabyte(self.tables.base() / GIB).load(Ordering::Relaxed);
        base + (at - self.tables.base()) as u64
    }

    fn gigabyte(&self, index: usize) -> &AtomicU64 {
        assert!(index < GIGABYTES);
        // SAFETY: the memory has a word for each gigabyte, all of them atomic, and lives as long as the process.
        unsafe { &*(self.gigabytes.base() as *const AtomicU64).add(index) }
    }
}
