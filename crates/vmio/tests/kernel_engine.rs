//! The engine of the kernel module, where there is one: what it promises beside what the other suites ask of every engine.
//! `cargo xtask vm-tests --kernel 6.12 --module` loads it in a guest, and runs these tests there.
#![allow(clippy::single_range_in_vec_init)]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::backing::{FileBacking, MemoryBacking};
use vmio::journal::{Journal, JournalOptions};
use vmio::{Access, Advice, Cache, Engine, Error, Mapping, MappingOptions, PageVerifier, UnsupportedBy};

use crate::support::child::{Ended, fork};
use crate::support::kernel_module::{has_module, on_disk};
use crate::support::{
    PAGE, Random, at, cache_of, capacity_of, check_budget, check_empty, load, numbered_file, read, store, watchdog,
};

fn open(cache: &Cache, path: &Path) -> Mapping {
    Mapping::open(cache, FileBacking::open(path, Access::ReadWrite).unwrap(), MappingOptions::new()).unwrap()
}

#[test]
fn without_the_module_the_cache_says_what_to_do() {
    if Path::new("/dev/vmio").exists() {
        return test_depth::skipped("the module is there");
    }
    let error = Cache::builder().engine(Engine::Kernel).capacity(capacity_of(256)).build().unwrap_err();
    assert!(matches!(&error, Error::NoKernelModule { reason } if reason.contains("/dev/vmio")), "{error}");
    let probe = vmio::probe::probe();
    assert!(!probe.kernel_module.is_yes() && probe.kernel_module_interface.is_none());
}

/// It lacks what the default engine has: only who names it gets it.
#[test]
fn a_cache_that_names_no_engine_does_not_use_the_module() {
    if !has_module() {
        return;
    }
    let probe = vmio::probe::probe();
    assert!(probe.kernel_module.is_yes() && probe.kernel_module_interface.is_some());
    assert_ne!(probe.auto_engine, Engine::Kernel);
    for builder in [Cache::builder(), Cache::builder().engine(Engine::Auto)] {
        let cache = builder.capacity(capacity_of(256)).build().unwrap();
        assert_ne!(cache.engine(), Engine::Kernel);
        let map = Mapping::open(&cache, MemoryBacking::new(PAGE).unwrap(), MappingOptions::new().verifier(AnyPage));
        assert_eq!(load(&map.unwrap(), 0), 0);
    }
}

/// Accepts all pages, and seals them, as far as anybody can tell.
struct AnyPage;

impl PageVerifier for AnyPage {
    fn verify(&self, _offset: u64, _page: &[u8]) -> bool {
        true
    }

    fn seal(&self, _offset: u64, _page: &mut [u8]) {}
}

#[test]
fn what_the_module_cannot_do_is_refused() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 4);
    let cache = cache_of(256).build().unwrap();
    assert_eq!(cache.engine(), Engine::Kernel);
    let is_refused = |result: vmio::Result<Mapping>, word: &str| match result {
        Err(Error::Unsupported { by: UnsupportedBy::KernelEngine, what, .. }) if what.contains(word) => {}
        other => panic!("{word}: {other:?}"),
    };
    let file = || FileBacking::open(&path, Access::ReadWrite).unwrap();
    let options = MappingOptions::new;
    is_refused(Mapping::open(&cache, file(), options().verifier(AnyPage)), "verifier that seals");
    let verified = Mapping::open(&cache, file(), options().verifier(AnyPage).access(Access::ReadOnly)).unwrap();
    assert!(matches!(verified.view(), Err(Error::Unsupported { by: UnsupportedBy::KernelEngine, .. })));
    verified.close().unwrap();
    is_refused(Mapping::open(&cache, file(), options().floor(1 << 20)), "floor");
    is_refused(Mapping::open(&cache, file(), options().ceiling(1 << 20)), "ceiling");
    let journal = Journal::create_file(folder.path().join("journal"), 1 << 20, JournalOptions::new()).unwrap();
    is_refused(Mapping::open(&cache, file(), options().atomic(&journal)), "atomic");
    is_refused(Mapping::open(&cache, MemoryBacking::new(PAGE).unwrap(), options()), "no file");
    let map = open(&cache, &path);
    assert_eq!(load(&map, at(3)), 4);
    map.close().unwrap();
    check_empty(&cache);
}

/// Eight times what fits is read and stored to by several threads: at no time more is in memory, and nothing is lost.
#[test]
fn the_budget_is_kept_at_every_instant() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("the_budget_is_kept_at_every_instant");
    const PAGES: u64 = 2048;
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = cache_of(256).build().unwrap();
    let backing = FileBacking::create(file.path(), PAGES * PAGE).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    let stored: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (cache, map) = (&cache, &map);
                scope.spawn(move || {
                    crate::support::load_and_store_as(thread, map, PAGES, 6000, || check_budget(cache, &[]))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    check_budget(&cache, &[&map]);
    assert!(cache.stats().resident_pages > 128, "{:?}", cache.stats());
    // The threads look before they store. Their words stay as they are.
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    (0..PAGES).step_by(100).for_each(|page| store(&map, at(page) + 16, 1));
    map.close().unwrap();
    check_empty(&cache);
    check_counts(&cache.stats());
    let bytes = std::fs::read(file.path()).unwrap();
    for (thread, stored) in stored.iter().enumerate() {
        for (page, value) in (0..).zip(stored) {
            let word = at(page) as usize + 8 * thread;
            assert_eq!(bytes[word..][..8], value.to_le_bytes(), "page {page} of thread {thread}");
        }
    }
}

/// What was done for a cache whose pages were read and stored to many times over: each number within what the others allow.
fn check_counts(stats: &vmio::Stats) {
    let missed = stats.load_misses + stats.store_misses;
    assert!(stats.load_misses > 0 && stats.store_misses > 0 && missed > 2048, "{stats:?}");
    let pages_read = stats.read_bytes / PAGE;
    assert_eq!(pages_read, missed + stats.read_ahead_pages, "{stats:?}");
    assert!(stats.reads > 0 && stats.reads <= pages_read && stats.fresh_fills == 0, "{stats:?}");
    // All that came in has gone, but what somebody had a reference to when the file was closed.
    assert!(stats.evicted_clean <= pages_read && stats.evicted_clean > pages_read - 256, "{stats:?}");
    let written = stats.written_bytes / PAGE;
    assert!(stats.writes > 0 && stats.writes <= written && stats.write_protect_faults > 0, "{stats:?}");
    assert_eq!((stats.read_errors, stats.write_errors), (0, 0));
    assert!(stats.shootdowns > 0 && stats.shootdowns < pages_read + written, "{stats:?}");
}

/// What is given up is on the device, and in memory no longer; what is pinned stays.
#[test]
fn pages_are_given_up_at_once_unless_they_are_pinned() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 100);
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &path);
    (0..100).for_each(|page| store(&map, at(page), 1000 + page));
    let pin = map.pin(at(10)..at(20), Access::ReadOnly).unwrap();
    assert_eq!(cache.stats().pinned_pages, 10);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    (0..100).for_each(|page| {
        assert_eq!(map.is_resident(at(page)), (10..20).contains(&page), "page {page}");
        assert_eq!(on_disk(&path, page), 1000 + page);
    });
    assert_eq!(map.usage().resident_pages, 10);
    drop(pin);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert_eq!((map.usage().resident_pages, cache.stats().resident_pages), (0, 0));
    (0..100).for_each(|page| assert_eq!(load(&map, at(page)), 1000 + page));
    map.close().unwrap();
    check_empty(&cache);
}

/// What lies in a pipe without having been copied is held by the kernel: who is told that it has gone would write past it.
#[test]
fn pages_that_a_pipe_holds_are_said_to_stay() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 100);
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &path);
    let view = map.view().unwrap();
    (0..100).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    let pin = map.pin(at(40)..at(42), Access::ReadOnly).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the address lies in the view.
    let address = unsafe { view.as_mut_ptr().add(at(7) as usize) };
    let held = libc::iovec { iov_base: address.cast(), iov_len: 2 * PAGE as usize };
    // SAFETY: the vector lives, and what it names lies in the view.
    assert_eq!(unsafe { libc::vmsplice(writer.as_raw_fd(), &held, 1, 0) }, 2 * PAGE as isize);
    let refuses = |advice| {
        let Err(Error::System { source, .. }) = map.advise(0..map.len(), advice) else {
            panic!("{advice:?} is not refused")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::ResourceBusy);
        assert!(source.to_string().starts_with("2 page(s)"), "{advice:?}: {source}");
        assert!(map.is_resident(at(7)) && map.is_resident(at(41)) && !map.is_resident(at(9)), "{advice:?}");
    };
    [Advice::DontNeed, Advice::Invalidate, Advice::Free].into_iter().for_each(refuses);
    // What is stored to stays dirty as long as somebody holds it; beside a pin that has the same.
    store(&map, at(8), 9);
    let for_stores = map.pin(at(60)..at(63), Access::ReadWrite).unwrap();
    store(&map, at(61), 62);
    refuses(Advice::DontNeed);
    drop(for_stores);
    let mut taken = vec![0; 2 * PAGE as usize];
    reader.read_exact(&mut taken).unwrap();
    assert_eq!(u64::from_ne_bytes(taken[..8].try_into().unwrap()), 8);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert!(!map.is_resident(at(7)) && map.is_resident(at(41)));
    drop((pin, view));
    map.close().unwrap();
    check_empty(&cache);
}

/// A pinned page stays in memory however many others come, and what a device writes to it past the page tables reaches the file.
#[test]
fn pinned_pages_stay_and_take_what_a_device_writes() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("pinned_pages_stay_and_take_what_a_device_writes");
    let folder = tempfile::tempdir().unwrap();
    let source = numbered_file(folder.path(), 64);
    let path = folder.path().join("target");
    let cache = cache_of(256).build().unwrap();
    let map = Mapping::open(&cache, FileBacking::create(&path, 2048 * PAGE).unwrap(), MappingOptions::new()).unwrap();
    let mut pin = map.pin(at(100)..at(164), Access::ReadWrite).unwrap();
    let device = File::options().read(true).custom_flags(libc::O_DIRECT).open(&source).unwrap();
    for round in 0..3 {
        for page in (0..2048).filter(|page| !(100..164).contains(page)) {
            assert_eq!(load(&map, at(page)), 0);
        }
        assert_eq!(map.residency(at(100)..at(164)).resident_pages(), 64, "round {round}");
        let start = pin.as_mut_ptr().unwrap();
        // SAFETY: the pin holds these bytes, to which nobody refers.
        let got = unsafe { libc::pread(device.as_raw_fd(), start.cast(), 64 * PAGE as usize, 0) };
        assert_eq!(got, 64 * PAGE as isize);
        map.sync().unwrap();
        (0..64).for_each(|page| assert_eq!(on_disk(&path, 100 + page), page + 1));
        (100..164).for_each(|page| store(&map, at(page), 7));
        pin = map.pin(at(100)..at(164), Access::ReadWrite).unwrap();
    }
    // Half of the cache, and no more.
    let refused = map.pin(at(200)..at(300), Access::ReadOnly);
    assert!(matches!(refused, Err(Error::TooManyPins { wanted_pages: 100, limit_pages: 128 })));
    let error = cache.resize(capacity_of(256) - 1).unwrap_err();
    assert!(matches!(error, Error::BadOption { .. }), "{error}");
    drop(pin);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn pins_keep_the_cache_from_shrinking() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = cache_of(1024).build().unwrap();
    let map = open(&cache, &numbered_file(folder.path(), 1000));
    let pin = map.pin(0..at(300), Access::ReadOnly).unwrap();
    let error = cache.resize(capacity_of(400)).unwrap_err();
    assert!(matches!(error, Error::NotShrunk { .. }) && error.to_string().contains("pins"), "{error}");
    assert_eq!(cache.stats().capacity_pages, 1024);
    drop(pin);
    cache.resize(capacity_of(400)).unwrap();
    (0..1000).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    check_budget(&cache, &[&map]);
}

/// System calls take pointers into the mapping, whether its pages are in memory or not.
#[test]
fn system_calls_take_mapped_pointers() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = numbered_file(folder.path(), 64);
    let path = folder.path().join("target");
    let cache = cache_of(256).build().unwrap();
    let map = Mapping::open(&cache, FileBacking::create(&path, 64 * PAGE).unwrap(), MappingOptions::new()).unwrap();
    let file = File::open(&source).unwrap();
    // SAFETY: the bytes lie in the mapping, and nobody refers to them.
    let got = unsafe { libc::pread(file.as_raw_fd(), map.as_mut_ptr().cast(), 64 * PAGE as usize, 0) };
    assert_eq!(got, 64 * PAGE as isize);
    (0..64).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    map.sync().unwrap();
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    let copy = File::options().write(true).create_new(true).open(folder.path().join("copy")).unwrap();
    // SAFETY: as above.
    let put = unsafe { libc::pwrite(copy.as_raw_fd(), map.as_ptr().cast(), 64 * PAGE as usize, 0) };
    assert_eq!(put, 64 * PAGE as isize);
    assert!(std::fs::read(folder.path().join("copy")).unwrap() == std::fs::read(&source).unwrap());
}

/// What a system call has transferred: whole pages, or nothing that it would say and EFAULT.
fn pages_of(result: isize) -> u64 {
    let error = std::io::Error::last_os_error();
    assert!(result > 0 || error.raw_os_error() == Some(libc::EFAULT), "{result}: {error}");
    let bytes = result.max(0) as u64;
    assert!(bytes.is_multiple_of(PAGE));
    bytes / PAGE
}

/// Each wants four times what fits at once, of which it holds all that there is: it ends, and nothing is lost by it.
#[test]
fn transfers_larger_than_the_cache_end() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("transfers_larger_than_the_cache_end");
    const PAGES: u64 = 1024;
    let folder = tempfile::tempdir().unwrap();
    let source = numbered_file(folder.path(), PAGES);
    let path = folder.path().join("target");
    let cache = cache_of(256).build().unwrap();
    let map = Mapping::open(&cache, FileBacking::create(&path, PAGES * PAGE).unwrap(), MappingOptions::new()).unwrap();
    let device = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&source).unwrap();
    // SAFETY: the bytes lie in the mapping, and nobody refers to them.
    let got = unsafe { libc::pread(device.as_raw_fd(), map.as_mut_ptr().cast(), (PAGES * PAGE) as usize, 0) };
    let got = pages_of(got);
    // What it has read before it ended so is there, or not.
    (0..PAGES).for_each(|page| {
        let found = load(&map, at(page));
        assert!(found == page + 1 || (page >= got && found == 0), "page {page} of {got}: {found}");
    });
    // By the library it comes to its end, for it asks for a page at a time.
    let bytes: Vec<u8> = (0..PAGES).flat_map(|page| [(page + 5).to_le_bytes(); PAGE as usize / 8]).flatten().collect();
    map.write_at(0, &bytes).unwrap();
    assert!(read(&map, 0..PAGES * PAGE).unwrap() == bytes);
    check_budget(&cache, &[&map]);
    // SAFETY: as above.
    let put = unsafe { libc::pwrite(device.as_raw_fd(), map.as_ptr().cast(), (PAGES * PAGE) as usize, 0) };
    (0..pages_of(put)).for_each(|page| assert_eq!(on_disk(&source, page), page + 5));
    map.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    check_empty(&cache);
}

#[test]
fn fresh_pages_are_not_read_and_freed_ones_not_written() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &path);
    map.advise(at(8)..at(16), Advice::Fresh).unwrap();
    (0..64).for_each(|page| assert_eq!(load(&map, at(page)), if (8..16).contains(&page) { 0 } else { page + 1 }));
    (32..48).for_each(|page| store(&map, at(page), 99));
    map.advise(at(32)..at(40), Advice::Free).unwrap();
    assert_eq!(map.residency(at(32)..at(48)).resident_pages(), 8);
    map.sync().unwrap();
    (0..64).for_each(|page| assert_eq!(on_disk(&path, page), if (40..48).contains(&page) { 99 } else { page + 1 }));
}

/// At two addresses, eight times what fits: each sees what is stored at the other, and so does a system call. A child has neither.
#[test]
fn a_view_is_the_same_file_at_other_addresses() {
    if !has_module() {
        return;
    }
    const PAGES: u64 = 2048;
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), PAGES);
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &path);
    let view = map.view().unwrap();
    let word = |page: u64| {
        // SAFETY: aligned, in the view, and only accessed as atomic.
        unsafe { AtomicU64::from_ptr(view.as_mut_ptr().add(at(page) as usize).cast()) }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for page in (0..PAGES).rev() {
                assert_eq!(word(page).load(Ordering::SeqCst) % 10_000, page + 1);
                word(page).fetch_add(10_000, Ordering::SeqCst);
            }
        });
        for page in 0..PAGES {
            assert_eq!(load(&map, at(page)) % 10_000, page + 1);
            check_budget(&cache, &[]);
        }
    });
    (0..PAGES).for_each(|page| assert_eq!(load(&map, at(page)), page + 10_001));
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    let pin = view.pin(at(5)..at(6), Access::ReadOnly).unwrap();
    assert!(map.is_resident(at(5)) && !map.is_resident(at(6)));
    drop(pin);
    let source = File::open(&path).unwrap();
    // SAFETY: the bytes lie in the view, and nobody refers to them.
    let got = unsafe { libc::pread(source.as_raw_fd(), view.as_mut_ptr().cast(), PAGE as usize, PAGE as i64) };
    assert_eq!((got, load(&map, 0)), (PAGE as isize, 10_002));
    assert_eq!(fork(|| word(0).load(Ordering::SeqCst) as i32), Ended::Signal(libc::SIGSEGV));
    assert_eq!(fork(|| i32::from(!matches!(map.view(), Err(Error::Forked)))), Ended::Exit(0));
    word(1).store(77, Ordering::SeqCst);
    drop(view);
    map.close().unwrap();
    assert_eq!((on_disk(&path, 0), on_disk(&path, 1)), (10_002, 77));
    check_empty(&cache);
}

/// What is on the device counts then, whatever was stored or said before.
#[test]
fn invalidated_pages_are_what_the_device_has() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &path);
    map.advise(at(8)..at(16), Advice::Fresh).unwrap();
    (0..64).for_each(|page| store(&map, at(page), 99));
    map.advise(at(4)..at(32), Advice::Invalidate).unwrap();
    (0..64).for_each(|page| assert_eq!(load(&map, at(page)), if (4..32).contains(&page) { page + 1 } else { 99 }));
    map.sync().unwrap();
    (0..64).for_each(|page| assert_eq!(on_disk(&path, page), if (4..32).contains(&page) { page + 1 } else { 99 }));
    map.close().unwrap();
    let options = MappingOptions::new().access(Access::ReadOnly);
    let map = Mapping::open(&cache, FileBacking::open(&path, Access::ReadWrite).unwrap(), options).unwrap();
    assert_eq!(load(&map, at(5)), 6);
    map.advise(0..map.len(), Advice::Invalidate).unwrap();
    assert_eq!(map.usage().resident_pages, 0);
}

#[test]
fn what_is_dear_stays() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &numbered_file(folder.path(), 2048));
    map.advise(0..at(64), Advice::Priority(0)).unwrap();
    for _ in 0..2 {
        (0..2048).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
        assert_eq!(map.residency(0..at(64)).resident_pages(), 64);
    }
    map.advise(0..at(64), Advice::Priority(255)).unwrap();
    (64..2048).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert_eq!(map.residency(0..at(64)).resident_pages(), 0);
}

/// Bytes that somebody else has cut off are an error of the sync, and the file is not made longer again.
#[test]
fn a_file_that_was_cut_off_is_not_made_longer() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    let map = open(&cache_of(256).build().unwrap(), &path);
    (0..64).for_each(|page| store(&map, at(page), 5));
    File::options().write(true).open(&path).unwrap().set_len(at(16)).unwrap();
    assert!(matches!(map.sync(), Err(Error::Write { offset, failed_pages: 48, .. }) if offset == at(16)));
    assert_eq!(path.metadata().unwrap().len(), at(16));
    (0..16).for_each(|page| assert_eq!(on_disk(&path, page), 5));
    assert!(map.set_len(at(16)).is_ok() && map.sync().is_ok());
}

/// A device of 128 pages, over a file, of which those from the 64th on can be made to fail.
struct FailingDevice {
    name: &'static str,
    beneath: String,
    _file: tempfile::NamedTempFile,
}

impl FailingDevice {
    fn create(name: &'static str) -> Option<Self> {
        let file = numbered_file_of(128);
        let output = command("losetup").args(["--find", "--show"]).arg(file.path()).output().unwrap();
        if !output.status.success() {
            test_depth::skipped("no loop device can be made");
            return None;
        }
        let beneath = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let device = FailingDevice { name, beneath, _file: file };
        if dmsetup(&["create", name, "--table", &device.works()]) {
            return Some(device);
        }
        test_depth::skipped("dmsetup makes no device");
        None
    }

    fn works(&self) -> String {
        format!("0 1024 linear {} 0", self.beneath)
    }

    fn fails(&self) -> String {
        format!("0 512 linear {} 0\n512 512 error", self.beneath)
    }

    fn set(&self, table: &str) {
        assert!(dmsetup(&["suspend", self.name]) && dmsetup(&["load", self.name, "--table", table]));
        assert!(dmsetup(&["resume", self.name]));
    }

    /// Where it is; udev, which would name it, need not run.
    fn path(&self) -> std::path::PathBuf {
        let name = |entry: &std::fs::DirEntry| std::fs::read_to_string(entry.path().join("dm/name")).ok();
        let mut devices = std::fs::read_dir("/sys/block").unwrap().flatten();
        let found = devices.find(|entry| name(entry).is_some_and(|name| name.trim() == self.name)).unwrap();
        Path::new("/dev").join(found.file_name())
    }
}

impl Drop for FailingDevice {
    fn drop(&mut self) {
        dmsetup(&["remove", self.name]);
        let _ = command("losetup").arg("--detach").arg(&self.beneath).status();
    }
}

fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin");
    command
}

fn dmsetup(arguments: &[&str]) -> bool {
    command("dmsetup").arg("--noudevsync").args(arguments).status().is_ok_and(|status| status.success())
}

fn numbered_file_of(pages: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(pages * PAGE).unwrap();
    (0..pages).for_each(|page| file.as_file().write_all_at(&(page + 1).to_le_bytes(), at(page)).unwrap());
    file.as_file().sync_all().unwrap();
    file
}

/// A page that cannot be read is an error that names it; what cannot be written stays, and fails every sync until it can.
#[test]
fn no_error_of_a_device_is_lost() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("no_error_of_a_device_is_lost");
    let Some(device) = FailingDevice::create("vmio-test") else { return };
    let cache = cache_of(256).build().unwrap();
    let map = open(&cache, &device.path());
    assert_eq!(map.len(), 128 * PAGE);
    store(&map, at(70), 1);
    store(&map, at(3), 1);
    device.set(&device.fails());
    let is_read_error = |result: vmio::Result<()>, page: u64| {
        assert!(matches!(result, Err(Error::Read { offset, .. }) if offset == at(page)), "{result:?}");
    };
    is_read_error(read(&map, at(60)..at(80)).map(drop), 64);
    is_read_error(map.write_at(at(80) + 7, b"x"), 80);
    is_read_error(map.ensure(at(60)..at(70)), 64);
    is_read_error(map.pin(at(90)..at(91), Access::ReadOnly).map(drop), 90);
    is_read_error(futures::executor::block_on(map.fetch([at(100)..at(101)])), 100);
    for _ in 0..2 {
        let error = map.sync().unwrap_err();
        assert!(matches!(error, Error::Write { offset, failed_pages: 1, .. } if offset == at(70)), "{error}");
        assert_eq!(load(&map, at(70)), 1);
    }
    assert_eq!((cache.stats().dirty_pages, cache.stats().write_errors), (1, 2));
    device.set(&device.works());
    map.sync().unwrap();
    assert_eq!((on_disk(&device.path(), 70), on_disk(&device.path(), 3)), (1, 1));
    assert_eq!(read(&map, at(60)..at(80)).unwrap().len(), 20 * PAGE as usize);
    map.close().unwrap();
    check_empty(&cache);
}

/// Pages that are fetched in the background are in memory when the future says so; a mapping that goes does not wait for guesses.
#[test]
fn pages_are_fetched_in_the_background() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("pages_are_fetched_in_the_background");
    let folder = tempfile::tempdir().unwrap();
    // All of it fits, so that nothing goes again.
    let cache = cache_of(4096).build().unwrap();
    let map = open(&cache, &numbered_file(folder.path(), 2000));
    let mut random = Random(3);
    for _ in 0..20 {
        let ranges: Vec<_> = (0..20).map(|_| random.below(2000)).map(|page| at(page)..at(page) + 1).collect();
        futures::executor::block_on(map.fetch(ranges.clone())).unwrap();
        for range in ranges {
            assert!(map.is_resident(range.start));
            assert_eq!(load(&map, range.start), range.start / PAGE + 1);
        }
    }
    map.prefetch([0..map.len()]).unwrap();
    map.close().unwrap();
    check_empty(&cache);
}
