//! Memory and threads that a forked child does not have: what the child has at the same addresses, and under the same names, is its own,
//! and neither a call nor a drop of what it has inherited touches it.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use vmio::backing::{Backing, BatchReader, FileBacking, MemoryBacking};
use vmio::journal::{Journal, JournalOptions};
use vmio::{Access, Mapping, MappingOptions, SharedMap};

use crate::support::child::{Ended, fork, isolated};
use crate::support::{PAGE, roomy_cache};

/// Memory of the child's own at an address that must be free.
fn claim(address: usize, bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses to map over what is there.
    let mapped = unsafe { libc::mmap(address as *mut _, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_eq!(mapped as usize, address, "the child has something there");
    mapped.cast()
}

fn is_mapped(address: usize) -> bool {
    // SAFETY: asks whether there is memory; that of others is written nowhere.
    unsafe { libc::msync(address as *mut _, PAGE as usize, libc::MS_ASYNC) == 0 }
}

fn ring_memory() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter(|line| line.contains("io_uring")).map(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        (address(start), address(end))
    });
    ranges.collect()
}

#[test]
fn a_batch_reader_leaves_what_lies_where_its_rings_were() {
    isolated("fork_memory::a_batch_reader_leaves_what_lies_where_its_rings_were", || {
        #[repr(align(4096))]
        #[derive(Clone)]
        struct Page([u8; PAGE as usize]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = FileBacking::create(file.path(), 1 << 20).unwrap();
        let reader = BatchReader::new();
        let mut pages = vec![Page([0; PAGE as usize]); 4];
        let places = pages.iter_mut().enumerate().map(|(place, page)| (place as u64 * PAGE, &mut page.0[..]));
        reader.read(&backing, places, |_, read| assert_eq!(read.unwrap(), PAGE as usize));
        let rings = ring_memory();
        if rings.is_empty() {
            return test_depth::skipped("no io_uring");
        }
        let ended = fork(move || {
            for (start, end) in &rings {
                claim(*start, end - start);
            }
            drop(reader);
            i32::from(!rings.iter().all(|(start, _)| is_mapped(*start)))
        });
        assert_eq!(ended, Ended::Exit(0), "the child's own memory is gone");
    })
    .succeeds();
}

#[test]
fn safe_copies_do_not_reach_what_lies_where_the_mapping_was() {
    isolated("fork_memory::safe_copies_do_not_reach_what_lies_where_the_mapping_was", || {
        let cache = roomy_cache();
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = FileBacking::create(file.path(), 1 << 20).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        map.store_at(0, &[1]).unwrap();
        let ended = fork(move || {
            let own = claim(map.as_ptr() as usize, PAGE as usize);
            let (stored, loaded) = (map.store_at(0, &[3]), map.load_at(0, &mut [0]));
            // SAFETY: it was mapped above.
            let byte = unsafe { AtomicU8::from_ptr(own) }.load(Ordering::SeqCst);
            i32::from(byte != 0) + 2 * i32::from(stored.is_ok()) + 4 * i32::from(loaded.is_ok())
        });
        assert_eq!(
            ended,
            Ended::Exit(0),
            "1: stored to the child's memory; 2: a store, 4: a load was said to have worked"
        );
    })
    .succeeds();
}

#[test]
fn a_shared_map_does_not_reach_what_lies_where_it_was() {
    isolated("fork_memory::a_shared_map_does_not_reach_what_lies_where_it_was", || {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE).unwrap();
        let before: Vec<usize> = mapped_starts();
        let map = SharedMap::open(file.as_fd(), PAGE, Access::ReadWrite).unwrap();
        let start = mapped_starts().into_iter().find(|start| !before.contains(start)).unwrap();
        map.write_at(0, &[1]).unwrap();
        let ended = fork(move || {
            let own = claim(start, PAGE as usize);
            let (stored, loaded) = (map.write_at(0, &[3]), map.read_at(0, &mut [0]));
            drop(map);
            // SAFETY: it was mapped above.
            let byte = if is_mapped(start) { unsafe { AtomicU8::from_ptr(own) }.load(Ordering::SeqCst) } else { 9 };
            i32::from(byte != 0) + 2 * i32::from(stored.is_ok()) + 4 * i32::from(loaded.is_ok())
        });
        assert_eq!(
            ended,
            Ended::Exit(0),
            "1: the child's memory has changed; 2: a store, 4: a load was said to have worked"
        );
    })
    .succeeds();
}

/// Where files of which the name is gone are mapped.
fn mapped_starts() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let deleted = maps.lines().filter(|line| line.ends_with("(deleted)"));
    deleted.map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()).collect()
}

/// The child's threads get the stacks, and with them the ids, of threads of its parent's.
#[test]
fn a_dropped_journal_leaves_the_childs_threads_alone() {
    isolated("fork_memory::a_dropped_journal_leaves_the_childs_threads_alone", || {
        let journal = Journal::create(MemoryBacking::new(1 << 20).unwrap(), JournalOptions::new()).unwrap();
        let ended = fork(move || {
            let sleep = || thread::sleep(Duration::from_millis(200));
            let threads: Vec<_> = (0..16).map(|_| thread::spawn(sleep)).collect();
            drop(journal);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            0
        });
        assert_eq!(ended, Ended::Exit(0), "a thread of the child's was joined or detached");
    })
    .succeeds();
}

/// A bus error of the child's where its parent had a mapping, whose handle it has dropped, is a bus error like any other.
#[test]
fn a_bus_error_where_a_dropped_mapping_was_is_the_childs_own() {
    isolated("fork_memory::a_bus_error_where_a_dropped_mapping_was_is_the_childs_own", || {
        let cache = roomy_cache();
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = FileBacking::create(file.path(), 1 << 20).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        map.store_at(0, &[1]).unwrap();
        let ended = fork(move || {
            let start = map.as_ptr() as usize;
            drop(map);
            drop(cache);
            // What was freed is used for something else.
            let others: Vec<Vec<u8>> = (0..20_000).map(|bytes| vec![0xff; bytes % 5000]).collect();
            let empty = tempfile::tempfile().unwrap();
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: maps an empty file where nothing is: the load behind its end is a SIGBUS, which is what is tested.
            unsafe {
                let own = libc::mmap(start as *mut _, PAGE as usize, libc::PROT_READ, flags, empty.as_raw_fd(), 0);
                assert_eq!(own as usize, start);
                own.cast::<u8>().read_volatile();
            }
            drop(others);
            1
        });
        assert_eq!(ended, Ended::Signal(libc::SIGBUS));
    })
    .succeeds();
}

/// A record that the child appended to the log would lie where its parent appends next.
#[test]
fn a_child_writes_nothing_to_the_log_of_its_parent() {
    isolated("fork_memory::a_child_writes_nothing_to_the_log_of_its_parent", || {
        let disk = std::sync::Arc::new(MemoryBacking::new(PAGE).unwrap());
        let journal = Journal::create(MemoryBacking::new(1 << 20).unwrap(), JournalOptions::new()).unwrap();
        let file = journal.join(disk).unwrap();
        file.write_at(0, &[1; PAGE as usize]).unwrap();
        let ended = fork(|| {
            let (mut page, other) = ([0; PAGE as usize], [2; PAGE as usize]);
            let done = [file.write_at(0, &other), file.read_at(0, &mut page).map(drop), file.set_len(2 * PAGE)];
            i32::from(done.iter().any(Result::is_ok))
        });
        assert_eq!(ended, Ended::Exit(0), "a call of the child's was said to have worked");
        journal.commit(|_| Ok(())).unwrap();
        let mut page = [0; PAGE as usize];
        file.read_at(0, &mut page).unwrap();
        assert_eq!(page, [1; PAGE as usize]);
    })
    .succeeds();
}

/// The lock of a file is that of its descriptors: a child that lives on must not keep it.
#[test]
fn a_child_that_has_dropped_a_mapping_holds_no_descriptor_of_its_file() {
    isolated("fork_memory::a_child_that_has_dropped_a_mapping_holds_no_descriptor_of_its_file", || {
        let cache = roomy_cache();
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = FileBacking::create(file.path(), 1 << 20).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        // Closed, but for the mapping's own descriptors, and with its name.
        let path = file.into_temp_path();
        let descriptors = || {
            let links =
                std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
            links.filter(|link| link.starts_with(&path)).count()
        };
        assert!(descriptors() > 0, "the parent has it open");
        let ended = fork(|| {
            drop((map, cache));
            descriptors() as i32
        });
        assert_eq!(ended, Ended::Exit(0), "so many are open in the child");
    })
    .succeeds();
}
