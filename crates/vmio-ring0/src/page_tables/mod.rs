//! The guest's page tables, made by need.
//!
//! A page directory maps a gigabyte. It comes with the gigabyte, or with the first frame of a managed page there. Until then the entry above it says
//! that the whole gigabyte is managed. A page table maps 2 MiB of managed memory. It comes with its first page, and goes back when it maps
//! nothing any more. Directories stay: code that looks for an entry takes no lock, so it may stand in one.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::managed::Rights;
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES, UNDER_LOCK_ALIGN};
use crate::raw;

/// As many free tables keep their memory.
const KEPT: usize = 64;

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
    /// Of a page directory, or of the table above while there is no directory: what is missing below it is for the program's fault handler. The
    /// processor does not look at this bit.
    pub(crate) const MANAGED: u64 = 1 << 9;
    /// Beside it: stores are never allowed. The processor does not look at this bit, either.
    pub(crate) const READ_ONLY: u64 = 1 << 10;
    /// Where the address is.
    pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    /// Of a table of tables.
    pub(crate) const TABLE: u64 = PRESENT | WRITABLE | USER | ACCESSED;
    /// Of 2 MiB of the program's own memory, whose state the host keeps.
    pub(crate) const LARGE_PAGE: u64 = PRESENT | WRITABLE | USER | ACCESSED | DIRTY | LARGE;
}

/// A page of a page table.
type Table = [AtomicU64; 512];

/// All page tables; the first is the root.
pub(crate) struct PageTables {
    memory: Memory,
    /// The guest-physical address of that memory.
    physical: u64,
    lock: Lock,
    spare: UnsafeCell<Spare>,
    /// The numbers of free tables without memory.
    empty: Memory,
}

/// Tables without use. Only whoever holds the lock touches it. A table in a list has in its first word where the next one is, or 0. This is an even
/// number, so that a processor that still has the table sees nothing present there.
struct Spare {
    /// The first that was never in use.
    fresh: usize,
    /// Those that are free, and how many.
    free: usize,
    kept: usize,
    /// How many are in [`PageTables::empty`].
    empty: usize,
    /// Those that are detached, which processors may still have, and how many.
    detached: usize,
    waiting: usize,
}

// SAFETY: tables are atomic words; what is spare is under the lock.
unsafe impl Sync for PageTables {}
// SAFETY: none of it belongs to a thread.
unsafe impl Send for PageTables {}

impl PageTables {
    /// An empty root, in memory that the guest finds at this address.
    pub(crate) fn new(physical: u64) -> Result<PageTables> {
        Ok(PageTables {
            memory: Memory::reserve(GIB, GIB)?,
            physical,
            lock: Lock::default(),
            spare: UnsafeCell::new(Spare { fresh: PAGE_BYTES, free: 0, kept: 0, empty: 0, detached: 0, waiting: 0 }),
            empty: Memory::reserve(GIB / PAGE_BYTES * size_of::<AtomicU32>(), UNDER_LOCK_ALIGN)?,
        })
    }

    /// The guest-physical address of the root.
    pub(crate) fn root(&self) -> u64 {
        self.physical
    }

    /// The first address of their memory.
    pub(crate) fn base(&self) -> usize {
        self.memory.base()
    }

    /// Memory that is touched under the lock, beside the tables.
    pub(crate) fn addresses_of_numbers(&self) -> Range<usize> {
        self.empty.base()..self.empty.base() + self.empty.len()
    }

    /// Maps a gigabyte by large pages, but for what is managed.
    pub(crate) fn map_gigabyte(&self, start: usize, physical: u64) -> Result<()> {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let directory = self.directory(start, unsafe { &mut *self.spare.get() })?;
        for (number, large) in (0..).zip(directory) {
            let target = physical + number * LARGE_PAGE_BYTES as u64;
            let _ = large.compare_exchange(0, target | entry::LARGE_PAGE, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Leaves the pages of a range to the program's fault handler. It has whole large pages, none of which the machine maps any more
    /// after the TLBs are emptied.
    pub(crate) fn manage(&self, addresses: Range<usize>, most: Rights) -> Result<()> {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let spare = unsafe { &mut *self.spare.get() };
        let managed = match most {
            Rights::Read => entry::MANAGED | entry::READ_ONLY,
            Rights::ReadWrite => entry::MANAGED,
        };
        for part in by_gigabyte(addresses) {
            let above = self.entry_above(part.start, spare)?;
            if part.len() == GIB && above.load(Ordering::Relaxed) == 0 {
                above.store(managed, Ordering::Release);
                continue;
            }
            let directory = self.below(above, spare)?;
            for large in part.step_by(LARGE_PAGE_BYTES) {
                let place = &directory[large / LARGE_PAGE_BYTES % 512];
                debug_assert_eq!(place.load(Ordering::Relaxed) & entry::MANAGED, 0);
                place.store(managed, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Ends that: `physical` has the guest-physical address of a large page that the machine has, which is mapped again. None of the pages is
    /// mapped, and nobody touches them meanwhile. The page tables are detached.
    pub(crate) fn release(&self, addresses: Range<usize>, physical: impl Fn(usize) -> Option<u64>) {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let spare = unsafe { &mut *self.spare.get() };
        for part in by_gigabyte(addresses) {
            let Some(above) = self.existing_entry_above(part.start) else { continue };
            if above.load(Ordering::Relaxed) & entry::PRESENT == 0 {
                // Without a directory it is managed as a whole, as a part of this range, or not at all.
                debug_assert!(part.len() == GIB || above.load(Ordering::Relaxed) == 0);
                above.store(0, Ordering::Release);
                continue;
            }
            let directory = self.table_of(above.load(Ordering::Acquire));
            for large in part.step_by(LARGE_PAGE_BYTES) {
                let target = physical(large).map_or(0, |physical| physical | entry::LARGE_PAGE);
                let held = directory[large / LARGE_PAGE_BYTES % 512].swap(target, Ordering::AcqRel);
                if held & (entry::PRESENT | entry::LARGE) == entry::PRESENT {
                    self.detach(held, spare);
                }
            }
        }
    }

    /// Changes whether stores are ever allowed to a managed range.
    pub(crate) fn set_most(&self, addresses: Range<usize>, most: Rights) {
        let _taken = self.lock.take();
        let change = |place: &AtomicU64| match most {
            Rights::Read => place.fetch_or(entry::READ_ONLY, Ordering::AcqRel),
            Rights::ReadWrite => place.fetch_and(!entry::READ_ONLY, Ordering::AcqRel),
        };
        for part in by_gigabyte(addresses) {
            let Some(above) = self.existing_entry_above(part.start) else { continue };
            let held = above.load(Ordering::Acquire);
            if held & entry::PRESENT == 0 {
                change(above);
                continue;
            }
            let directory = self.table_of(held);
            part.step_by(LARGE_PAGE_BYTES).for_each(|large| _ = change(&directory[large / LARGE_PAGE_BYTES % 512]));
        }
    }

    /// The entry that is responsible for an address: of a page directory, or of the table above, where there is no directory. 0 if there is none.
    pub(crate) fn responsible(&self, address: usize) -> u64 {
        let Some(above) = self.existing_entry_above(address) else { return 0 };
        // Read once: it may change from the one kind to the other meanwhile.
        let held = above.load(Ordering::Acquire);
        if held & entry::PRESENT == 0 {
            return held;
        }
        self.table_of(held)[address / LARGE_PAGE_BYTES % 512].load(Ordering::Acquire)
    }

    /// The page table's entry of a managed page, if its table exists. The caller keeps the table from being detached.
    pub(crate) fn page_entry(&self, address: usize) -> Option<&AtomicU64> {
        self.page_table(address).map(|table| &table[address / PAGE_BYTES % 512])
    }

    /// The entries of the managed pages at some addresses whose tables exist, which the caller keeps from being detached.
    pub(crate) fn page_entries(&self, addresses: Range<usize>) -> impl Iterator<Item = &AtomicU64> {
        let large = addresses.start / LARGE_PAGE_BYTES..addresses.end.div_ceil(LARGE_PAGE_BYTES);
        let of_large = move |large: usize| {
            let start = large * LARGE_PAGE_BYTES;
            let (from, to) = (addresses.start.max(start), addresses.end.min(start + LARGE_PAGE_BYTES));
            let numbers = (from - start) / PAGE_BYTES..(to - start).div_ceil(PAGE_BYTES);
            self.page_table(start).map(|table| &table[numbers])
        };
        large.filter_map(of_large).flatten()
    }

    /// The page table's entry of a managed page, with its table, made if need be.
    pub(crate) fn make_page_entry(&self, address: usize) -> Result<&AtomicU64> {
        if let Some(place) = self.page_entry(address) {
            return Ok(place);
        }
        let _taken = self.lock.take();
        if self.responsible(address) & entry::MANAGED == 0 {
            return Err(Error::NotManaged { address });
        }
        // SAFETY: the lock is held.
        let spare = unsafe { &mut *self.spare.get() };
        let place = &self.directory(address, spare)?[address / LARGE_PAGE_BYTES % 512];
        let kept = place.load(Ordering::Relaxed);
        let table = if kept & entry::PRESENT == 0 {
            let new = self.new_table(spare)?;
            place.store(self.physical_of(new) | entry::TABLE | kept, Ordering::Release);
            self.table(new)
        } else {
            self.table_of(kept)
        };
        Ok(&table[address / PAGE_BYTES % 512])
    }

    /// The large pages among some addresses that have a page table.
    pub(crate) fn with_page_table(&self, addresses: Range<usize>) -> impl Iterator<Item = usize> {
        let has_directory = |part: &Range<usize>| {
            let above = self.existing_entry_above(part.start);
            above.is_some_and(|above| above.load(Ordering::Acquire) & entry::PRESENT != 0)
        };
        let large = by_gigabyte(addresses).filter(has_directory).flat_map(|part| part.step_by(LARGE_PAGE_BYTES));
        large.filter(|large| self.page_table(*large).is_some())
    }

    /// Detaches the page tables of whole large pages that map nothing; returns how many. Processors may have them until TLBs are emptied.
    ///
    /// Nobody else looks for entries of these pages meanwhile.
    pub(crate) fn detach_empty(&self, addresses: Range<usize>) -> usize {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let spare = unsafe { &mut *self.spare.get() };
        let mut detached = 0;
        for large in addresses.step_by(LARGE_PAGE_BYTES) {
            let Some(table) = self.page_table(large) else { continue };
            if table.iter().any(|page| page.load(Ordering::Acquire) != 0) {
                continue;
            }
            let Some(above) = self.existing_entry_above(large) else { continue };
            let place = &self.table_of(above.load(Ordering::Acquire))[large / LARGE_PAGE_BYTES % 512];
            let held = place.fetch_and(entry::MANAGED | entry::READ_ONLY, Ordering::AcqRel);
            self.detach(held, spare);
            detached += 1;
        }
        detached
    }

    /// Calls `shootdown`, which empties all TLBs, and then frees the tables that were detached before. False, without a call, if these are less than
    /// `least`.
    pub(crate) fn free_detached(&self, least: usize, shootdown: impl FnOnce()) -> bool {
        let first = {
            let _taken = self.lock.take();
            // SAFETY: the lock is held.
            let spare = unsafe { &mut *self.spare.get() };
            if spare.waiting < least.max(1) {
                return false;
            }
            spare.waiting = 0;
            std::mem::take(&mut spare.detached)
        };
        shootdown();
        // The list is ours alone.
        let mut left = first;
        while left != 0 {
            let table = left;
            left = self.table(table)[0].load(Ordering::Relaxed) as usize;
            self.free(table);
        }
        true
    }

    /// Makes a table free that nobody has.
    fn free(&self, table: usize) {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let spare = unsafe { &mut *self.spare.get() };
        if spare.kept < KEPT || !self.empty(table) {
            self.table(table)[0].store(spare.free as u64, Ordering::Relaxed);
            spare.free = table;
            spare.kept += 1;
            return;
        }
        self.number(spare.empty).store(((table - self.memory.base()) / PAGE_BYTES) as u32, Ordering::Relaxed);
        spare.empty += 1;
    }

    /// Gives the host the memory of a table, which has zeros from then on.
    fn empty(&self, table: usize) -> bool {
        let arguments = [table as u64, PAGE_BYTES as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
        // SAFETY: the page is a table that nobody has.
        let given = unsafe { raw::call(libc::SYS_madvise as u64, arguments) };
        raw::error_of(given).is_none()
    }

    /// A place for the number of a table.
    fn number(&self, index: usize) -> &AtomicU32 {
        assert!(index < GIB / PAGE_BYTES);
        // SAFETY: the memory has a word for each table, all of them atomic, and lives as long as this.
        unsafe { &*(self.empty.base() as *const AtomicU32).add(index) }
    }

    fn detach(&self, held: u64, spare: &mut Spare) {
        let table = self.memory.base() + ((held & entry::ADDRESS) - self.physical) as usize;
        self.table(table)[0].store(spare.detached as u64, Ordering::Relaxed);
        spare.detached = table;
        spare.waiting += 1;
    }

    fn page_table(&self, address: usize) -> Option<&Table> {
        let held = self.responsible(address);
        let is_table = held & (entry::MANAGED | entry::PRESENT) == entry::MANAGED | entry::PRESENT;
        is_table.then(|| self.table_of(held))
    }

    /// The entry above an address's page directory, if its table exists.
    fn existing_entry_above(&self, address: usize) -> Option<&AtomicU64> {
        let held = self.table(self.memory.base())[address >> 39 & 511].load(Ordering::Acquire);
        (held != 0).then(|| &self.table_of(held)[address >> 30 & 511])
    }

    /// The same, made if need be. By whoever holds the lock.
    fn entry_above(&self, address: usize, spare: &mut Spare) -> Result<&AtomicU64> {
        let table = self.below(&self.table(self.memory.base())[address >> 39 & 511], spare)?;
        Ok(&table[address >> 30 & 511])
    }

    /// The page directory of an address's gigabyte, made if need be. By whoever holds the lock.
    fn directory(&self, address: usize, spare: &mut Spare) -> Result<&Table> {
        self.below(self.entry_above(address, spare)?, spare)
    }

    /// The table that an entry leads to, made if need be. Each entry of a new table says the same as the entry above it did.
    fn below(&self, place: &AtomicU64, spare: &mut Spare) -> Result<&Table> {
        let held = place.load(Ordering::Acquire);
        if held & entry::PRESENT != 0 {
            return Ok(self.table_of(held));
        }
        let new = self.new_table(spare)?;
        let table = self.table(new);
        table.iter().for_each(|below| below.store(held, Ordering::Relaxed));
        place.store(self.physical_of(new) | entry::TABLE, Ordering::Release);
        Ok(table)
    }

    /// A table of zeros.
    fn new_table(&self, spare: &mut Spare) -> Result<usize> {
        if spare.free != 0 {
            let table = spare.free;
            spare.free = self.table(table)[0].swap(0, Ordering::Relaxed) as usize;
            spare.kept -= 1;
            return Ok(table);
        }
        if spare.empty != 0 {
            spare.empty -= 1;
            let number = self.number(spare.empty).load(Ordering::Relaxed) as usize;
            return Ok(self.memory.base() + number * PAGE_BYTES);
        }
        if spare.fresh == self.memory.len() {
            return Err(Error::PageTablesUsedUp);
        }
        spare.fresh += PAGE_BYTES;
        Ok(self.memory.base() + spare.fresh - PAGE_BYTES)
    }

    fn table(&self, at: usize) -> &Table {
        debug_assert!(at.wrapping_sub(self.memory.base()) < self.memory.len() && at.is_multiple_of(PAGE_BYTES));
        // SAFETY: a page of the memory of page tables, which holds atomic words alone and lives as long as this.
        unsafe { &*(at as *const Table) }
    }

    fn table_of(&self, held: u64) -> &Table {
        self.table(self.memory.base() + ((held & entry::ADDRESS) - self.physical) as usize)
    }

    fn physical_of(&self, table: usize) -> u64 {
        self.physical + (table - self.memory.base()) as u64
    }
}

/// The parts of a range that lie in one gigabyte each.
fn by_gigabyte(addresses: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let parts = (addresses.start / GIB..addresses.end.div_ceil(GIB)).map(|index| index * GIB..(index + 1) * GIB);
    parts.map(move |part| part.start.max(addresses.start)..part.end.min(addresses.end))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
