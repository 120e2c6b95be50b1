//! Files on persistent memory, in the folder that VMIO_TEST_DAX names (tests/vm has one): with a cache, and mapped directly.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::backing::{Backing, DaxBacking, FileBacking};
use vmio::{Access, Advice, Cache, Engine, Error, Mapping, MappingOptions, OnReadError};

use crate::support::exercise::{exercise, random_bytes};
use crate::support::{PAGE, at, builder, engine, read, tiny_cache, watchdog};

const HUGE_PAGE: u64 = 2 << 20;

/// Tests take turns: some fill the file system.
static TURN: Mutex<()> = Mutex::new(());

/// Does something in an empty folder on persistent memory, if there is some.
fn in_folder(test: impl FnOnce(&Path)) {
    let Some(folder) = std::env::var_os("VMIO_TEST_DAX").map(PathBuf::from) else {
        return test_depth::skipped("VMIO_TEST_DAX names no folder on persistent memory");
    };
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let scratch = tempfile::tempdir_in(folder).unwrap();
    test(scratch.path());
}

/// The same where a cache takes faults of its own; for other engines the kernel reads files.
fn with_cache(test: impl FnOnce(&Path)) {
    if matches!(engine(), Engine::Managed | Engine::Kernel) {
        return test_depth::skipped("the engine does not map persistent memory by copies");
    }
    in_folder(test);
}

/// A file of zeros without holes.
fn allocated(path: &Path, len: u64) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    allocate(&file, len);
    file
}

fn allocate(file: &File, len: u64) {
    // SAFETY: the call takes no pointers.
    let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as i64) };
    assert_eq!(failed, 0);
}

fn open_direct(path: &Path) -> vmio::Result<Mapping> {
    Mapping::open_direct(DaxBacking::open(path, Access::ReadWrite)?, MappingOptions::new())
}

/// Page faults of this thread while it does something.
fn faults_of(action: impl FnOnce()) -> i64 {
    let count = || {
        // SAFETY: fills a struct of integers of ours.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage.ru_minflt + usage.ru_majflt
        }
    };
    let before = count();
    action();
    count() - before
}

/// Stores a number to every page.
fn store_to_pages(map: &Mapping, value: u64) {
    for page in 0..map.len() / PAGE {
        // SAFETY: the word lies in the mapping, and all accesses to it are atomic.
        unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(at(page) as usize).cast()) }
            .store(value + page, Ordering::Relaxed);
    }
}

#[test]
fn bytes_last() {
    with_cache(|folder| {
        let path = folder.join("file");
        for len in [900 * PAGE, 500 * PAGE + 123] {
            // With holes.
            let file = File::create(&path).unwrap();
            file.set_len(len).unwrap();
            exercise(|| DaxBacking::open(&path, Access::ReadWrite), len);
            std::fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn bytes_last_without_a_cache() {
    in_folder(|folder| {
        let path = folder.join("file");
        File::create(&path).unwrap().set_len(3 * PAGE + 100).unwrap();
        let map = open_direct(&path).unwrap();
        let mut expected = vec![0; 3 * PAGE as usize + 100];
        for (offset, len) in [(0, 1), (63, 2), (4000, 5000), (8192, 4096), (12380, 8), (70, 3000)] {
            let bytes = random_bytes(len);
            map.write_at(offset, &bytes).unwrap();
            expected[offset as usize..][..len as usize].copy_from_slice(&bytes);
        }
        store_to_pages(&map, 1 << 40);
        for page in 0..3 {
            expected[page * 4096..][..8].copy_from_slice(&((1 << 40) + page as u64).to_le_bytes());
        }
        map.flush(8200..8300).unwrap();
        assert!(read(&map, 0..map.len()).unwrap() == expected);
        assert!(std::fs::read(&path).unwrap() == expected, "it is the file that everybody sees");
        // Stored behind the end: no part of the file, however it grows.
        // SAFETY: the byte lies in the last page.
        unsafe { *map.as_mut_ptr().add(expected.len() + 5) = 9 };
        map.set_len(5 * PAGE).unwrap();
        expected.resize(5 * PAGE as usize, 0);
        assert!(read(&map, 0..map.len()).unwrap() == expected);
        assert!(matches!(map.set_len(1 << 40), Err(Error::BeyondReservation { .. })));
        map.sync().unwrap();
        map.sync_begin().unwrap().wait().unwrap();
        assert_eq!(open_direct(&path).unwrap().as_ptr(), map.as_ptr(), "opened twice it is one mapping");
        map.close().unwrap();
        let map =
            Mapping::open_direct(DaxBacking::open(&path, Access::ReadOnly).unwrap(), MappingOptions::new()).unwrap();
        assert!(read(&map, 0..map.len()).unwrap() == expected);
        assert!(matches!(map.write_at(0, b"x"), Err(Error::ReadOnly { .. })));
        assert!(matches!(map.pin(0..1, Access::ReadWrite), Err(Error::ReadOnly { .. })));
    });
}

#[test]
fn what_is_pinned_or_others_have_added_is_not_cut_off() {
    in_folder(|folder| {
        let path = folder.join("file");
        let file = allocated(&path, PAGE + 100);
        let map = Mapping::open_direct(
            DaxBacking::open(&path, Access::ReadWrite).unwrap(),
            MappingOptions::new().reserve(16 * PAGE),
        )
        .unwrap();
        // Another process, which has more than we know of.
        allocate(&file, 8 * PAGE);
        file.write_all_at(b"theirs", PAGE + 200).unwrap();
        map.set_len(3 * PAGE).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8 * PAGE);
        assert_eq!(read(&map, PAGE + 200..PAGE + 206).unwrap(), b"theirs");
        let pin = map.pin(2 * PAGE..3 * PAGE, Access::ReadWrite).unwrap();
        assert!(matches!(map.set_len(PAGE), Err(Error::Resize { .. })), "a page is pinned");
        map.set_len(2 * PAGE + 1).unwrap();
        drop(pin);
        map.set_len(PAGE).unwrap();
        assert_eq!(file.metadata().unwrap().len(), PAGE);
    });
}

/// The kernel tells of a failed flush once, whichever call it is of: what it takes for written since then may be lost.
#[test]
fn a_flush_that_fails_with_a_change_of_length_fails_every_later_sync() {
    in_folder(|folder| {
        let path = folder.join("file");
        allocated(&path, 2 * PAGE);
        let map = open_direct(&path).unwrap();
        store_to_pages(&map, 1);
        let resized = std::thread::scope(|scope| {
            let resizing = scope.spawn(|| {
                crate::support::denial::deny(&[libc::SYS_fsync]);
                map.set_len(PAGE)
            });
            resizing.join().unwrap()
        });
        assert!(matches!(resized, Err(Error::Flush { .. })), "{resized:?}");
        assert_eq!((map.len(), path.metadata().unwrap().len()), (PAGE, PAGE), "the length is another");
        assert!(matches!(map.sync(), Err(Error::Flush { .. })));
        assert!(matches!(map.set_len(2 * PAGE), Err(Error::Flush { .. })));
        assert!(matches!(map.close(), Err(Error::Flush { .. })));
    });
}

/// What mapping directly is for: a fault for 2 MiB, and none after a flush; a sync has the kernel look for stores anew.
#[test]
fn huge_pages_are_kept() {
    in_folder(|folder| {
        const BYTES: u64 = 64 << 20;
        let file = allocated(&folder.join("file"), BYTES);
        let map = open_direct(&folder.join("file")).unwrap();
        let first = faults_of(|| store_to_pages(&map, 1));
        let flushed = faults_of(|| map.flush(0..BYTES).unwrap());
        let again = faults_of(|| store_to_pages(&map, 2));
        map.sync().unwrap();
        let synced = faults_of(|| store_to_pages(&map, 3));
        println!("faults for {BYTES} bytes: first {first}, flush {flushed}, again {again}, after a sync {synced}");
        let huge = (BYTES / HUGE_PAGE) as i64;
        assert_eq!((first, flushed, again, synced), (huge, 0, 0, huge));
        let last = BYTES / PAGE - 1;
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at(last)).unwrap();
        assert_eq!(u64::from_le_bytes(word), 3 + last);
        map.close().unwrap();

        // The copies of a backing fault as seldom.
        let backing = DaxBacking::open(folder.join("file"), Access::ReadWrite).unwrap();
        let mut buffer = vec![1; 128 << 10];
        let part = buffer.len() as u64;
        let copied =
            faults_of(|| (0..BYTES / part).for_each(|at| assert!(backing.read_at(at * part, &mut buffer).is_ok())));
        assert_eq!(copied, huge);
    });
}

/// Directly what is flushed is the lines of the range, then a fence; what a backing copies in passes the caches, and needs the fence alone.
#[test]
#[cfg(target_arch = "x86_64")]
fn lines_are_written_back_once_and_waited_for_together() {
    use crate::support::single_step::{Flushes, flushes_of};
    in_folder(|folder| {
        const BYTES: u64 = 1 << 20;
        const LINE: u64 = 64;
        let file = allocated(&folder.join("file"), BYTES);
        let map = open_direct(&folder.join("file")).unwrap();
        store_to_pages(&map, 1);
        let whole = flushes_of(|| map.flush(0..BYTES).unwrap());
        println!("a flush of {BYTES} bytes: {whole:?}");
        assert_eq!(whole, Flushes { lines: BYTES / LINE, fences: 1 });
        let part = flushes_of(|| map.flush(8200..8300).unwrap());
        assert_eq!(part, Flushes { lines: 2, fences: 1 });
        map.close().unwrap();

        let backing = DaxBacking::open(folder.join("file"), Access::ReadWrite).unwrap();
        let page = [7; PAGE as usize];
        let (written, flushed) =
            (flushes_of(|| backing.write_at(at(3), &page).unwrap()), flushes_of(|| backing.flush().unwrap()));
        assert_eq!((written, flushed), (Flushes { lines: 0, fences: 1 }, Flushes { lines: 0, fences: 0 }));
        let mut found = [0; PAGE as usize];
        file.read_exact_at(&mut found, at(3)).unwrap();
        assert!(found == page);
    });
}

/// With a cache each page is copied in and out, and the kernel is asked for none of them but where huge pages begin.
#[test]
fn copies_are_counted() {
    with_cache(|folder| {
        const BYTES: u64 = 64 << 20;
        let path = folder.join("file");
        allocated(&path, BYTES);
        let cache = builder().capacity(16 << 20).build().unwrap();
        let backing = DaxBacking::open(&path, Access::ReadWrite).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        map.advise(0..BYTES, Advice::Random).unwrap();
        store_to_pages(&map, 1);
        map.sync().unwrap();
        let stats = cache.stats();
        let (misses, reads, writes) = (stats.load_misses + stats.store_misses, stats.reads, stats.writes);
        println!(
            "a store to each page of {BYTES} bytes: {misses} misses, {reads} copies in of {} bytes in all, {writes} copies \
             out of {} bytes in all",
            stats.read_bytes, stats.written_bytes
        );
        assert_eq!((misses, reads, stats.read_bytes, stats.written_bytes), (BYTES / PAGE, BYTES / PAGE, BYTES, BYTES));
        assert!((1..=BYTES / PAGE).contains(&writes));
        map.close().unwrap();
    });
}

#[test]
fn a_file_is_mapped_with_a_cache_or_without() {
    with_cache(|folder| {
        let path = folder.join("file");
        allocated(&path, 4 * PAGE);
        let cache = tiny_cache();
        let cached =
            || Mapping::open(&cache, DaxBacking::open(&path, Access::ReadWrite).unwrap(), MappingOptions::new());
        let map = open_direct(&path).unwrap();
        assert!(matches!(cached(), Err(Error::AlreadyMapped { .. })));
        map.close().unwrap();
        let map = cached().unwrap();
        assert!(matches!(open_direct(&path), Err(Error::AlreadyMapped { .. })));
        let same = FileBacking::open(&path, Access::ReadWrite).unwrap();
        let same = Mapping::open(&cache, same, MappingOptions::new()).unwrap();
        assert_eq!(same.as_ptr(), map.as_ptr());
    });
}

/// By the SIGBUS of a copy, and before one in the trap path.
#[test]
fn what_others_have_cut_off_is_an_error() {
    with_cache(|folder| {
        let path = folder.join("file");
        let file = allocated(&path, 8 * PAGE);
        let direct = open_direct(&path).unwrap();
        file.set_len(4 * PAGE).unwrap();
        let mut page = [1; PAGE as usize];
        assert!(matches!(direct.read_at(at(3), &mut [0; 5000]), Err(Error::Read { offset, .. }) if offset == at(4)));
        assert!(matches!(direct.write_at(at(5), &page), Err(Error::Write { offset, .. }) if offset == at(5)));
        assert!(matches!(direct.ensure(at(5)..at(6)), Err(Error::Read { .. })));
        direct.close().unwrap();

        allocate(&file, 8 * PAGE);
        let backing = DaxBacking::open(&path, Access::ReadWrite).unwrap();
        let poison = OnReadError::Poison(*b"poisoned");
        let map = Mapping::open(&tiny_cache(), backing, MappingOptions::new().on_read_error(poison));
        let map = match map {
            Err(Error::BadOption { .. }) => return test_depth::skipped("the suite's frames have no poison"),
            map => map.unwrap(),
        };
        file.set_len(4 * PAGE).unwrap();
        assert!(matches!(map.read_at(at(6), &mut page), Err(Error::Read { .. })));
        // SAFETY: the word lies in the mapping, and all accesses to it are atomic.
        let word = unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(at(5) as usize).cast()) };
        assert_eq!(word.load(Ordering::Relaxed).to_le_bytes(), *b"poisoned");
        assert_eq!(read(&map, at(2)..at(4)).unwrap(), vec![0; 2 * PAGE as usize]);
    });
}

#[test]
fn a_store_without_room_fails_every_sync_until_there_is_some() {
    with_cache(|folder| {
        let path = folder.join("file");
        File::create(&path).unwrap().set_len(64 * PAGE).unwrap();
        let map = Mapping::open(
            &builder().capacity(8 << 20).build().unwrap(),
            DaxBacking::open(&path, Access::ReadWrite).unwrap(),
            MappingOptions::new(),
        )
        .unwrap();
        let filler = folder.join("filler");
        fill_up(&File::create(&filler).unwrap());
        let bytes = random_bytes(64 * PAGE);
        map.write_at(0, &bytes).unwrap();
        for _ in 0..2 {
            assert!(matches!(map.sync(), Err(Error::Write { .. })));
        }
        std::fs::remove_file(filler).unwrap();
        map.sync().unwrap();
        map.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
    });
}

/// The file is mapped piece by piece, and this process has no lock when it copies.
#[test]
fn a_file_grows_beyond_what_was_mapped_at_its_opening() {
    in_folder(|folder| {
        const GIB: u64 = 1 << 30;
        let path = folder.join("file");
        allocated(&path, 2 * PAGE);
        let backing = DaxBacking::open(&path, Access::ReadWrite).unwrap();
        let is_over = AtomicU64::new(0);
        // Each range crosses an end of what was mapped, where growth doubles it, or lies behind it.
        let places =
            [(GIB - 100, 200), (2 * GIB - 4096, 8192), (4 * GIB - 1, 2), (7 * GIB, 4096), (8 * GIB - 5000, 9000)];
        let bytes = random_bytes(9000);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut found = [1; PAGE as usize];
                while is_over.load(Ordering::Acquire) == 0 {
                    let len = backing.len();
                    assert_eq!(backing.read_at(at(len / PAGE - 1), &mut found).unwrap(), PAGE as usize);
                }
            });
            for (offset, len) in places {
                backing.set_len((offset + len).next_multiple_of(PAGE)).unwrap();
                backing.write_at(offset, &bytes[..len as usize]).unwrap();
                assert!(!reading.is_finished(), "a reader has failed");
            }
            is_over.store(1, Ordering::Release);
        });
        let file = File::open(&path).unwrap();
        let again = DaxBacking::open(&path, Access::ReadOnly).unwrap();
        for (offset, len) in places {
            let (mut read, mut copied, mut anew) =
                (vec![0; len as usize], vec![0; len as usize], vec![0; len as usize]);
            file.read_exact_at(&mut read, offset).unwrap();
            assert_eq!(backing.read_at(offset, &mut copied).unwrap(), len as usize);
            assert_eq!(again.read_at(offset, &mut anew).unwrap(), len as usize);
            assert!(read == bytes[..len as usize] && copied == read && anew == read, "at {offset}");
        }
        // Shorter and longer again: no byte comes back.
        backing.set_len(PAGE).unwrap();
        backing.set_len(3 * GIB).unwrap();
        let mut found = [1; 200];
        assert_eq!(backing.read_at(GIB - 100, &mut found).unwrap(), 200);
        assert_eq!(found, [0; 200]);
    });
}

#[test]
fn growth_for_which_nothing_can_be_mapped_changes_nothing() {
    in_folder(|folder| {
        let path = folder.join("file");
        allocated(&path, 2 * PAGE);
        let backing = DaxBacking::open(&path, Access::ReadWrite).unwrap();
        std::thread::scope(|scope| {
            let denied = scope.spawn(|| {
                crate::support::denial::deny(&[libc::SYS_mmap]);
                let within = backing.set_len(1 << 30);
                (within, backing.set_len((1 << 30) + PAGE))
            });
            let (within, beyond) = denied.join().unwrap();
            within.unwrap();
            assert_eq!(beyond.unwrap_err().raw_os_error(), Some(libc::EPERM));
        });
        assert_eq!((backing.len(), path.metadata().unwrap().len()), (1 << 30, 1 << 30));
        // Some of the address space for it there is.
        let pieces = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(path.to_str().unwrap()).count();
        assert!(backing.set_len(u64::MAX).is_err());
        assert_eq!(pieces(), 1);
        backing.write_at((1 << 30) - PAGE, &[7; PAGE as usize]).unwrap();
        backing.set_len((1 << 30) + PAGE).unwrap();
        backing.write_at(1 << 30, &[8; PAGE as usize]).unwrap();
    });
}

/// Takes all the room that the file system has.
fn fill_up(file: &File) {
    let mut part = 256 << 20;
    let mut len = 0;
    while part >= 4096 {
        // SAFETY: the call takes no pointers.
        match unsafe { libc::fallocate(file.as_raw_fd(), 0, len, part) } {
            0 => len += part,
            _ => part /= 2,
        }
    }
}

#[test]
fn what_is_no_persistent_memory_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = DaxBacking::open(file.path(), Access::ReadWrite).err().unwrap();
    assert!(matches!(error, Error::NotDax { .. }) && error.to_string().contains("dax=always"), "{error}");
    assert!(matches!(DaxBacking::open("/dev/null", Access::ReadOnly), Err(Error::Open { .. })));
}

/// Not each engine maps persistent memory itself.
#[test]
fn each_engine_maps_the_backing_that_its_cache_opens() {
    in_folder(|folder| {
        let path = folder.join("file");
        let len = 2 << 20;
        allocated(&path, len);
        let cache = builder().capacity(8 << 20).build().unwrap();
        let backing = cache.open_backing(&path, Access::ReadWrite).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        store_to_pages(&map, 7);
        map.close().unwrap();
        let mut page = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut page, len - PAGE).unwrap();
        assert_eq!(u64::from_le_bytes(page), 7 + len / PAGE - 1);
    });
}

/// The kernel reads and writes such files. It must not be asked for their page cache: cachestat(2) takes what it finds there for something else, and
/// the kernel kills the thread.
#[test]
fn the_managed_engine_serves_files_that_have_no_page_cache() {
    let _watchdog = watchdog("the_managed_engine_serves_files_that_have_no_page_cache");
    in_folder(|folder| {
        let path = folder.join("file");
        let len = 16 << 20;
        allocated(&path, len);
        let cache = Cache::builder().engine(Engine::Managed).capacity(8 << 20).build().unwrap();
        let map =
            Mapping::open(&cache, FileBacking::open(&path, Access::ReadWrite).unwrap(), MappingOptions::new()).unwrap();
        for round in 1..4 {
            store_to_pages(&map, round);
            map.advise(0..len, Advice::Random).unwrap();
            map.sync().unwrap();
        }
        map.close().unwrap();
        let mut page = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut page, len - PAGE).unwrap();
        assert_eq!(u64::from_le_bytes(page), 3 + len / PAGE - 1);
    });
}
