//! A managed range whose pages come with their first touch, and a holder of them.

use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmio_ring0::{FramePool, Holder, Machine, ManagedRange, Pages, Rights};

use super::{PAGE_BYTES, support};

pub const RANGE_BYTES: usize = 4 << 20;

/// Of the tests' process.
static KEEPER: OnceLock<Keeper> = OnceLock::new();

pub struct Keeper {
    range: ManagedRange,
    /// Pages of calls under way, and the most of them so far.
    held: AtomicUsize,
    held_most: AtomicUsize,
}

impl Keeper {
    /// The machine, and the range of the process.
    pub fn start() -> Option<(&'static Machine, &'static Keeper)> {
        let machine = support::machine()?;
        // SAFETY: a new mapping without rights, of which the part that is managed stays ours.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), 2 * RANGE_BYTES, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start = (start as usize).next_multiple_of(2 << 20);
        let frames = (RANGE_BYTES / PAGE_BYTES) as u32;
        let pages = Pages::new(machine, FramePool::new(machine, frames, frames).unwrap());
        let keeper = KEEPER.get_or_init(|| Keeper {
            // SAFETY: nobody else knows of the addresses.
            range: unsafe { ManagedRange::new(pages, start..start + RANGE_BYTES, Rights::ReadWrite, on_fault) }
                .unwrap(),
            held: AtomicUsize::new(0),
            held_most: AtomicUsize::new(0),
        });
        machine.hold_for_calls(keeper);
        machine.enter_on_touch().unwrap();
        Some((machine, keeper))
    }

    /// The range, which was there already.
    pub fn of_process() -> &'static Keeper {
        KEEPER.get().unwrap()
    }

    pub fn pages(&self) -> &Pages {
        self.range.pages()
    }

    /// The address of a page.
    pub fn page(&self, number: usize) -> usize {
        let address = self.range.addresses().start + number * PAGE_BYTES;
        assert!(self.range.addresses().contains(&address));
        address
    }

    /// How many pages calls hold, and held at most.
    pub fn held(&self) -> (usize, usize) {
        (self.held.load(Ordering::SeqCst), self.held_most.load(Ordering::SeqCst))
    }

    fn bring_in(&self, page: usize) -> bool {
        if self.pages().frame(page).is_some() {
            return true;
        }
        let Some(frame) = self.pages().pool().take() else { return false };
        // SAFETY: the frame is ours, and the page's alone.
        unsafe {
            ptr::write_bytes(self.pages().pool().address(frame), 0, PAGE_BYTES);
            self.pages().map(page, frame, Rights::ReadWrite).unwrap()
        }
    }
}

fn on_fault(address: usize, _: bool) -> bool {
    let page = address & !(PAGE_BYTES - 1);
    KEEPER.get().is_some_and(|keeper| {
        keeper.bring_in(page);
        keeper.pages().state(page).is_some() || keeper.pages().show(page, Rights::ReadWrite, false)
    })
}

impl Holder for Keeper {
    fn hold(&self, addresses: Range<usize>, for_stores: bool, _: bool) -> Result<(), i32> {
        let rights = if for_stores { Rights::ReadWrite } else { Rights::Read };
        for page in addresses.clone().step_by(PAGE_BYTES) {
            assert!(self.bring_in(page));
            // SAFETY: pages keep their frames for good.
            unsafe { self.pages().expose(page, rights) }.unwrap();
        }
        let pages = addresses.len() / PAGE_BYTES;
        let held = self.held.fetch_add(pages, Ordering::SeqCst) + pages;
        self.held_most.fetch_max(held, Ordering::SeqCst);
        Ok(())
    }

    fn release(&self, addresses: Range<usize>, for_stores: bool) {
        let rights = if for_stores { Rights::ReadWrite } else { Rights::Read };
        addresses.clone().step_by(PAGE_BYTES).for_each(|page| self.pages().conceal(page, rights));
        self.held.fetch_sub(addresses.len() / PAGE_BYTES, Ordering::SeqCst);
    }

    fn bytes_max(&self, _: usize) -> usize {
        16 * PAGE_BYTES
    }
}
