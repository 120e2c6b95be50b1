//! The machine's memory: each gigabyte of the process's addresses becomes guest-physical memory, at the same virtual addresses, when a thread in
//! the machine first touches it.
//!
//! The host's page tables stay in charge of it: what the program maps, protects or unmaps needs nothing here, since KVM follows the process's
//! address space. Page tables of the guest are the crate's own memory, read and written in place.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES};
use crate::raw;

/// Addresses of the process end here (47 bits, but for the last page).
pub(crate) const USER_END: usize = 0x7fff_ffff_f000;
const GIGABYTES: usize = USER_END.div_ceil(GIB);
/// Below it are the interrupt controllers, and what KVM may place for itself.
const FIRST_ADDRESS: u64 = 4 << 30;
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
    /// Where the address is.
    pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    /// Of a table of tables.
    pub(crate) const TABLE: u64 = PRESENT | WRITABLE | USER | ACCESSED;
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
    lock: Lock,
    next: UnsafeCell<Next>,
}

/// The next of each that is free. Only whoever holds the lock touches it.
struct Next {
    table: usize,
    address: u64,
    addresses_end: u64,
    slot: u32,
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
            lock: Lock::default(),
            // The root is the first table.
            next: UnsafeCell::new(Next {
                table: PAGE_BYTES,
                address: FIRST_ADDRESS,
                addresses_end: 1 << address_bits.min(52),
                slot: 0,
                slots,
            }),
        };
        // So that page tables have addresses for each other.
        space.add_gigabyte_of(space.tables.base())?;
        Ok(space)
    }

    /// The value for CR3.
    pub(crate) fn root(&self) -> u64 {
        self.address_of_table(self.tables.base())
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
            use entry::{ACCESSED, DIRTY, LARGE, PRESENT, USER, WRITABLE};
            let target = physical + number * LARGE_PAGE_BYTES as u64;
            let _ = large.compare_exchange(
                0,
                target | PRESENT | WRITABLE | USER | ACCESSED | DIRTY | LARGE,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
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
