//! What the integration tests share: small caches, plain loads and stores, a device with faults, child processes.

pub mod child;
pub mod denial;
pub mod device;
mod engine;
pub mod exercise;
pub mod kernel_module;
pub mod memory_group;
mod random;
pub mod reader_thread;
#[cfg(target_arch = "x86_64")]
pub mod ring0;
pub mod simulated_disk;
#[cfg(target_arch = "x86_64")]
pub mod single_step;
pub mod views;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use vmio::backing::FileBacking;
use vmio::probe::{KernelFeature, Probe, probe, probe_without};
use vmio::{Access, Cache, CacheBuilder, Engine, FrameHint, LockMemory, Mapping, MappingOptions};

pub use engine::engine;
pub use random::Random;

/// The page size in bytes.
pub const PAGE: u64 = vmio::PAGE_BYTES as u64;
/// Pages of a span.
pub const SPAN: u64 = 512;
/// Memory of a cache that is not for pages.
const OVERHEAD_BYTES: u64 = 5 << 20;

/// Options for a cache of the kind that this run of the suite is about.
pub fn builder() -> CacheBuilder {
    // Where there is swap memory is locked by default, and huge pages are not moved: the tests are to find the same everywhere.
    let builder = Cache::builder().engine(engine()).frames(frames()).lock_memory(LockMemory::Never);
    declined().into_iter().fold(builder, CacheBuilder::without)
}

/// Whether the engine under test leaves faults to the kernel, be it to Linux mmap or to the module; prints what cannot be
/// tested then.
pub fn is_managed(what: &str) -> bool {
    let managed = matches!(engine(), Engine::Managed | Engine::Kernel);
    if managed && !what.is_empty() {
        test_depth::skipped(format_args!("the engine {:?} does not promise {what}", engine()));
    }
    managed
}

/// Whether the suite runs with an engine that has page tables of its own; prints that a test is skipped, which is about something that only the kernel's have.
pub fn has_own_page_tables(what: &str) -> bool {
    let own = engine() == Engine::Ring0;
    if own {
        test_depth::skipped(format_args!("the engine's page tables are its own: no {what}"));
    }
    own
}

/// The features of the kernel that the suite is run without: VMIO_TEST_WITHOUT, such as `batched-unmap,wp-async`.
pub fn declined() -> Vec<KernelFeature> {
    let names = std::env::var("VMIO_TEST_WITHOUT").unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.parse().unwrap()).collect()
}

/// Whether files are read through io_uring here.
pub fn has_io_uring() -> bool {
    let there = probe().kernel.iter().any(|(feature, probe)| *feature == KernelFeature::IoUring && probe.is_yes());
    there && !declined().contains(&KernelFeature::IoUring)
}

/// The kind of frames that the suite is run with: `anonymous`, `memfd` or `shared`, as VMIO_TEST_FRAMES
/// says.
pub fn frames() -> FrameHint {
    match std::env::var("VMIO_TEST_FRAMES").as_deref() {
        Ok("memfd") => FrameHint::Mixed,
        Ok("shared") => FrameHint::SharedAddresses,
        Ok("anonymous") | Err(_) => FrameHint::ReadMostly,
        Ok(other) => panic!("VMIO_TEST_FRAMES={other}: write anonymous, memfd or shared"),
    }
}

/// Options for a cache of exactly that many pages: what workers take beside depends on how many there are.
pub fn cache_of(pages: u64) -> CacheBuilder {
    builder().workers(2).capacity(capacity_of(pages))
}

/// The capacity of a cache of this many pages, in bytes.
pub fn capacity_of(pages: u64) -> u64 {
    OVERHEAD_BYTES + pages * PAGE
}

/// A cache of 640 pages.
pub fn tiny_cache() -> Cache {
    cache_of(640).build().unwrap()
}

/// The smallest cache that can be built: 256 pages.
pub fn minimal_cache() -> Cache {
    cache_of(256).build().unwrap()
}

/// A cache that never evicts or writes back of its own accord what the tests put into it.
pub fn roomy_cache() -> Cache {
    cache_of(16 * 1024).dirty_ratio(1.0).build().unwrap()
}

/// The start of a page.
pub fn at(page: u64) -> u64 {
    page * PAGE
}

/// A plain load of the aligned word at a byte offset.
pub fn load(map: &Mapping, offset: u64) -> u64 {
    word(map, offset).load(Ordering::SeqCst)
}

/// A plain store to the aligned word at a byte offset.
pub fn store(map: &Mapping, offset: u64, value: u64) {
    word(map, offset).store(value, Ordering::SeqCst);
}

/// The aligned word at a byte offset of a mapping's pages.
fn word(map: &Mapping, offset: u64) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= map.len().next_multiple_of(PAGE));
    // SAFETY: aligned, within the pages of a mapping that lives as long as the reference, and only accessed as atomic.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(offset as usize).cast()) }
}

/// Plain loads of a range of bytes.
pub fn load_bytes(map: &Mapping, range: Range<u64>) -> Vec<u8> {
    assert!(range.end <= map.len());
    let mut bytes = vec![0; (range.end - range.start) as usize];
    // SAFETY: the range lies in the mapping, and no test that uses this lets another thread store to it.
    unsafe {
        std::ptr::copy_nonoverlapping(map.as_ptr().add(range.start as usize), bytes.as_mut_ptr(), bytes.len());
    }
    bytes
}

/// Plain stores to a range of bytes, up to the end of the last page.
pub fn store_bytes(map: &Mapping, offset: u64, bytes: &[u8]) {
    assert!(offset + bytes.len() as u64 <= map.len().next_multiple_of(PAGE));
    for (byte, at) in bytes.iter().zip(offset as usize..) {
        // SAFETY: within the pages of the mapping; accessed as atomic.
        unsafe { AtomicU8::from_ptr(map.as_mut_ptr().add(at)) }.store(*byte, Ordering::Relaxed);
    }
}

/// Whether the suite runs with frames whose stores the kernel notes: it does not say when they came, so a sync may write
/// stores that came after it began, and there is no fault to count.
pub fn kernel_notes_stores() -> bool {
    frames() != FrameHint::ReadMostly && kernel_can_note_stores()
}

/// Whether the kernel has what that takes; prints that a test is skipped if not.
pub fn kernel_can_note_stores() -> bool {
    let needed = [KernelFeature::WpAsync, KernelFeature::PagemapScan, KernelFeature::ShmemWp];
    let missing = |(feature, probe): &(KernelFeature, Probe)| needed.contains(feature) && !probe.is_yes();
    let missing = probe_without(&declined()).kernel.into_iter().find(missing);
    missing.inspect(|(feature, _)| test_depth::skipped(format_args!("needs {feature}"))).is_none()
}

/// What a read gives, or the error that it returns.
pub fn read(map: &Mapping, range: Range<u64>) -> vmio::Result<Vec<u8>> {
    let mut bytes = vec![0xA5; (range.end - range.start) as usize];
    map.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

/// What every cache must satisfy at any time.
pub fn check_budget(cache: &Cache, mappings: &[&Mapping]) {
    if engine() == Engine::Managed {
        return; // It keeps the budget by and by.
    }
    let stats = cache.stats();
    assert!(stats.free_pages <= stats.capacity_pages, "{stats:?}");
    assert!(stats.resident_pages <= stats.capacity_pages, "{stats:?}");
    // One mapping after the other: a page that goes from the first while another comes to the last, as read-ahead has it, counts twice.
    let resident = || mappings.iter().map(|map| map.residency(0..map.len()).resident_pages()).sum::<u64>();
    let counts: Vec<u64> =
        (0..20).map_while(|_| Some(resident()).filter(|resident| *resident > stats.capacity_pages)).collect();
    assert!(counts.len() < 20, "{counts:?} pages resident: {stats:?}");
}

/// A cache without mappings holds nothing: no page of the budget is lost, none is counted twice.
pub fn check_empty(cache: &Cache) {
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0), "{stats:?}");
    assert_eq!(stats.free_pages, stats.capacity_pages, "{stats:?}");
}

/// Ends the process with a message if the test hangs, in place of blocking the whole suite for ever.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

/// Loads and stores at random as one of several threads, each of which has a word in every page; checks what it loads and calls
/// `each` after every access. Returns how often each page was stored to.
pub fn load_and_store_as(thread: u64, map: &Mapping, pages: u64, accesses: usize, each: impl Fn()) -> Vec<u64> {
    let mut stored = vec![0_u64; pages as usize];
    let mut random = Random(thread);
    for _ in 0..accesses {
        let page = random.below(pages);
        assert_eq!(load(map, at(page) + 8 * thread), stored[page as usize], "page {page}");
        if random.below(3) == 0 {
            stored[page as usize] += 1;
            store(map, at(page) + 8 * thread, stored[page as usize]);
        }
        each();
    }
    stored
}

/// Watches until dropped.
pub fn watchdog(test: &'static str) -> Watchdog {
    let (alive, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(300)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{test} hangs");
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}

/// Memory that the process has locked.
pub fn locked_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether the test runs as root; prints why it is skipped if not.
pub fn is_root(what: &str) -> bool {
    let root = effective_root();
    if !root {
        test_depth::skipped(format_args!("{what} needs root"));
    }
    root
}

fn effective_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// A file whose pages start with their number and one. Nothing of it waits in the page cache to be written: until it was, a
/// direct read would have to wait.
pub fn numbered_file(folder: &Path, pages: u64) -> PathBuf {
    let path = folder.join("numbered");
    let mut bytes = vec![0; (pages * PAGE) as usize];
    for page in 0..pages {
        bytes[at(page) as usize..][..8].copy_from_slice(&(page + 1).to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::open(&path).unwrap().sync_data().unwrap();
    path
}

/// A mapping of a file for loads and stores.
pub fn map_file(cache: &Cache, path: &Path) -> Mapping {
    Mapping::open(cache, FileBacking::open(path, Access::ReadWrite).unwrap(), MappingOptions::new()).unwrap()
}
