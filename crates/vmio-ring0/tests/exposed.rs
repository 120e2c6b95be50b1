//! Managed pages that system calls see: their rights outside the machine, and the frames of pages that go meanwhile.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vmio_ring0::{Error, FramePool, Machine, ManagedRange, Pages, Rights};

const PAGE_BYTES: usize = 4096;
const RANGE_BYTES: usize = 2 << 20;

fn no_fault(_address: usize, _is_store: bool) -> bool {
    false
}

/// A range over a pool of that many frames, whose first page is mapped.
fn range(machine: &'static Machine, frames: u32) -> ManagedRange {
    let pages = Pages::new(machine, FramePool::new(machine, frames, frames).unwrap());
    // SAFETY: a new mapping without rights, of which the part that is managed stays ours.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), 2 * RANGE_BYTES, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = (start as usize).next_multiple_of(RANGE_BYTES);
    // SAFETY: nobody else knows of the addresses.
    let range = unsafe { ManagedRange::new(pages, start..start + RANGE_BYTES, Rights::ReadWrite, no_fault).unwrap() };
    let frame = range.pages().pool().take().unwrap();
    // SAFETY: the frame is the page's alone.
    assert!(unsafe { range.pages().map(start, frame, Rights::ReadWrite) }.unwrap());
    range
}

fn expose(pages: &Pages, address: usize, rights: Rights) -> Result<(), Error> {
    // SAFETY: tests conceal a page before they unmap it, or withdraw it.
    unsafe { pages.expose(address, rights) }
}

/// The rights of the mapping at an address, as /proc/self/maps has them.
fn rights_at(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().find_map(|line| {
        let (addresses, rest) = line.split_once(' ').unwrap();
        let (start, end) = addresses.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address).then(|| rest[..4].to_owned())
    });
    found.unwrap_or_else(|| "hole".to_owned())
}

#[test]
fn a_page_outside_has_the_most_rights_that_it_is_exposed_with() {
    let Some(machine) = support::machine() else { return };
    let range = range(machine, 1);
    let (pages, page) = (range.pages(), range.addresses().start);
    let mut seen = vec![rights_at(page)];
    let mut then = |change: &dyn Fn()| {
        change();
        seen.push(rights_at(page));
    };
    then(&|| expose(pages, page, Rights::Read).unwrap());
    then(&|| expose(pages, page, Rights::ReadWrite).unwrap());
    then(&|| expose(pages, page, Rights::Read).unwrap());
    then(&|| pages.conceal(page, Rights::ReadWrite));
    then(&|| pages.conceal(page, Rights::Read));
    then(&|| pages.conceal(page, Rights::Read));
    assert_eq!(seen, ["---p", "r--s", "rw-s", "rw-s", "r--s", "r--s", "---p"]);
}

#[test]
fn a_page_that_is_exposed_for_loads_takes_no_store_at_any_instant() {
    let Some(machine) = support::machine() else { return };
    let range = range(machine, 1);
    let (pages, page) = (range.pages(), range.addresses().start);
    let (ends, stores) = (AtomicBool::new(false), AtomicU32::new(0));
    let zero = File::open("/dev/zero").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                // SAFETY: the kernel checks the rights.
                let got = unsafe { libc::read(zero.as_raw_fd(), page as *mut libc::c_void, 1) };
                stores.fetch_add(u32::from(got == 1), Ordering::Relaxed);
            }
        });
        for _ in 0..test_depth::pick(20_000, 200_000) {
            expose(pages, page, Rights::Read).unwrap();
            pages.conceal(page, Rights::Read);
        }
        ends.store(true, Ordering::Relaxed);
    });
    let stores = stores.load(Ordering::Relaxed);
    println!("{stores} stores");
    assert_eq!(stores, 0);
}

/// The address space that the process has, in bytes.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_page_that_cannot_be_exposed_is_as_before() {
    let Some(machine) = support::machine() else { return };
    let range = range(machine, 1);
    let (pages, page) = (range.pages(), range.addresses().start);
    // Older kernels count what the mapping takes the place of, and refuse nothing here.
    let tries = |rights| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let present = address_space();
        // SAFETY: each call takes a structure of ours.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &raw mut limit), 0);
            let tight = libc::rlimit { rlim_cur: present, ..limit };
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const tight), 0);
            let exposed = expose(pages, page, rights).is_ok();
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
            exposed
        }
    };
    let then = |is_exposed, new, before| assert_eq!(rights_at(page), if is_exposed { new } else { before });
    let first = tries(Rights::Read);
    then(first, "r--s", "---p");
    expose(pages, page, Rights::Read).unwrap();
    let second = tries(Rights::ReadWrite);
    println!("the kernel has exposed: {first}, {second}");
    then(second, "rw-s", "r--s");
    assert!(tries(Rights::Read), "it has nothing to map");
    pages.conceal(page, Rights::Read);
    pages.conceal(page, Rights::Read);
    then(second, "rw-s", if first { "r--s" } else { "---p" });
    if first {
        pages.conceal(page, Rights::Read);
    }
    if second {
        pages.conceal(page, Rights::ReadWrite);
    }
    assert_eq!(rights_at(page), "---p");
}

#[test]
fn a_call_keeps_the_frame_of_a_page_that_goes() {
    let Some(machine) = support::machine() else { return };
    let range = range(machine, 1);
    let (pages, page) = (range.pages(), range.addresses().start);
    expose(pages, page, Rights::ReadWrite).unwrap();
    expose(pages, page, Rights::Read).unwrap();
    let frame = pages.withdraw(page, Rights::ReadWrite).unwrap();
    assert_eq!(rights_at(page), "r--s", "the other one is still there");
    assert_eq!(pages.withdraw(page, Rights::Read), Some(frame));
    assert_eq!(rights_at(page), "---p");
    // SAFETY: nobody has references to the page.
    let gone = unsafe { pages.unmap(page) }.unwrap();
    machine.shootdown();
    pages.pool().give_back(gone.frame);
    assert_eq!(pages.pool().take(), None);
    pages.let_go(frame);
    assert_eq!(pages.pool().take(), None, "one of two");
    pages.let_go(frame);
    assert_eq!(pages.pool().take(), Some(frame));
}

#[test]
fn a_range_that_goes_hides_its_pages_and_keeps_the_frames_that_calls_use() {
    let Some(machine) = support::machine() else { return };
    let range = range(machine, 2);
    let (pages, page) = (range.pages().clone(), range.addresses().start);
    let second = pages.pool().take().unwrap();
    // SAFETY: the frame is the page's alone.
    assert!(unsafe { pages.map(page + PAGE_BYTES, second, Rights::ReadWrite) }.unwrap());
    expose(&pages, page, Rights::ReadWrite).unwrap();
    drop(range);
    assert_eq!(rights_at(page), "---p");
    assert_eq!((pages.pool().take(), pages.pool().take()), (Some(second), None));
}
