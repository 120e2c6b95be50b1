//! A forked child cannot touch its parent's mappings: its calls fail, its loads and stores are a segmentation fault,
//! its drops neither sync nor unmap anything; and it may build a cache of its own.
#![allow(clippy::single_range_in_vec_init)]

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, mpsc};

use futures::FutureExt;
use futures::executor::block_on;
use vmio::backing::{Backing, FileBacking, FileUser};
use vmio::journal::{Journal, JournalOptions};
use vmio::{Access, Advice, Cache, Error, Mapping, MappingOptions};

use crate::support::child::{Ended, fork, install_handler, isolated};
use crate::support::{PAGE, at, is_managed, load, read, roomy_cache, store};

const PAGES: u64 = 64;

fn create(cache: &Cache, path: &Path) -> Mapping {
    Mapping::open(cache, FileBacking::create(path, PAGES * PAGE).unwrap(), MappingOptions::new()).unwrap()
}

/// A cache, a mapping of a file with an unsynced store in page 1, and the file.
fn parent() -> (Cache, Mapping, tempfile::NamedTempFile) {
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    let map = create(&cache, file.path());
    store(&map, at(1), 11);
    (cache, map, file)
}

fn on_disk(file: &tempfile::NamedTempFile, page: u64) -> u64 {
    let bytes = std::fs::read(file.path()).unwrap();
    u64::from_le_bytes(bytes[at(page) as usize..][..8].try_into().unwrap())
}

fn is_forked<T>(result: vmio::Result<T>) {
    match result {
        Err(Error::Forked) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it worked"),
    }
}

#[test]
fn every_call_of_a_child_is_refused() {
    isolated("fork::every_call_of_a_child_is_refused", || {
        let (cache, map, file) = parent();
        // With threads that fetch, and something on its way, or there already.
        block_on(map.fetch([at(40)..at(50), at(51)..at(52)])).unwrap();
        let mut fetch = Some(map.fetch([at(2)..at(30), at(31)..at(32)]));
        let mut single = Some(map.fetch([at(35)..at(36)]));
        let ended = fork(|| {
            is_forked(read(&map, 0..8));
            is_forked(map.ensure(at(1)..at(2)));
            is_forked(map.prefetch([at(1)..at(2), at(3)..at(4)]));
            is_forked(block_on(map.fetch([at(1)..at(2), at(3)..at(4)])));
            is_forked(block_on(fetch.take().unwrap()));
            is_forked(map.fetch([at(36)..at(37)]).now_or_never().unwrap());
            is_forked(block_on(single.take().unwrap()));
            is_forked(map.write_at(0, b"x"));
            is_forked(map.sync());
            is_forked(map.flush(0..8));
            is_forked(map.sync_begin());
            is_forked(map.set_len(PAGE));
            is_forked(map.pin(0..8, Access::ReadOnly));
            is_forked(map.advise(0..PAGE, Advice::DontNeed));
            is_forked(map.advise(0..PAGE, Advice::Free));
            let other = tempfile::NamedTempFile::new().unwrap();
            let backing = FileBacking::create(other.path(), PAGE).unwrap();
            is_forked(Mapping::open(&cache, backing, MappingOptions::new()));
            is_forked(map.clone().close());
            is_forked(map.close());
            0
        });
        assert_eq!(ended, Ended::Exit(0));
        block_on(fetch.unwrap()).unwrap();
        block_on(single.unwrap()).unwrap();
        drop(file);
    })
    .succeeds();
}

#[test]
fn a_load_or_store_of_a_child_is_a_segmentation_fault_and_not_zeros() {
    isolated("fork::a_load_or_store_of_a_child_is_a_segmentation_fault_and_not_zeros", || {
        let (_cache, map, _file) = parent();
        install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
        let resident = fork(|| load(&map, at(1)) as i32);
        let absent = fork(|| load(&map, at(2)) as i32);
        let stored = fork(|| {
            store(&map, at(1), 99);
            0
        });
        assert_eq!([resident, absent, stored], [Ended::Signal(libc::SIGSEGV); 3]);
        assert_eq!(load(&map, at(1)), 11);
    })
    .succeeds();
}

#[test]
fn a_child_that_drops_its_handles_does_not_sync() {
    if is_managed("that a file does not change before a sync") {
        return;
    }
    isolated("fork::a_child_that_drops_its_handles_does_not_sync", || {
        let (cache, map, file) = parent();
        let pin = map.pin(at(3)..at(5), Access::ReadWrite).unwrap();
        let handles = (cache, map, pin);
        let ended = fork(|| {
            // SAFETY: the child's copy of the handles; the parent's, which is read here, is not used by the child again.
            drop(unsafe { std::ptr::read(&handles) });
            0
        });
        assert_eq!(ended, Ended::Exit(0));
        assert_eq!(on_disk(&file, 1), 0, "the child synced");
        let (cache, map, pin) = handles;
        // The parent goes on as if nothing had been.
        assert_eq!(load(&map, at(1)), 11);
        assert_eq!(cache.stats().pinned_pages, 2 + 2);
        store(&map, at(1) + 8, 12);
        map.sync().unwrap();
        assert_eq!(on_disk(&file, 1), 11);
        drop(pin);
        assert_eq!(load(&map, at(40)), 0);
        map.close().unwrap();
    })
    .succeeds();
}

#[test]
fn the_parent_misses_stores_and_syncs_while_children_come_and_go() {
    isolated("fork::the_parent_misses_stores_and_syncs_while_children_come_and_go", || {
        let (_cache, map, file) = parent();
        for round in 1..=20 {
            let ended = fork(|| i32::from(map.sync().is_ok()));
            assert_eq!(ended, Ended::Exit(0));
            (0..PAGES).for_each(|page| store(&map, at(page), round));
            map.sync().unwrap();
            assert_eq!(on_disk(&file, PAGES - 1), round);
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            assert!((0..PAGES).all(|page| load(&map, at(page)) == round));
        }
    })
    .succeeds();
}

#[test]
fn a_child_builds_a_cache_of_its_own() {
    isolated("fork::a_child_builds_a_cache_of_its_own", || {
        let (_cache, map, file) = parent();
        let own = tempfile::NamedTempFile::new().unwrap();
        let ended = fork(|| {
            let cache = roomy_cache();
            let map = create(&cache, own.path());
            (0..PAGES).for_each(|page| store(&map, at(page), page + 1));
            map.sync().unwrap();
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            let right = (0..PAGES).all(|page| load(&map, at(page)) == page + 1);
            map.close().unwrap();
            i32::from(!right)
        });
        assert_eq!(ended, Ended::Exit(0));
        assert_eq!(on_disk(&own, 9), 10);
        assert_eq!(load(&map, at(1)), 11);
        // The kernel shows stores to readers of the file at once.
        assert!(is_managed("") || on_disk(&file, 1) == 0);
    })
    .succeeds();
}

/// A child that has what its parent has open, until what comes with it is dropped.
fn waiting_child() -> (libc::pid_t, std::io::PipeWriter) {
    let (mut wait, told) = std::io::pipe().unwrap();
    // SAFETY: the child only waits for the pipe's other end to be closed, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(told);
        let _ = wait.read(&mut [0]);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    (child, told)
}

/// A child that has not yet executed another program holds copies of the parent's descriptors: they must not keep the
/// file locked once the parent has closed its mapping.
#[test]
fn a_closed_file_can_be_opened_again_while_a_child_lives() {
    isolated("fork::a_closed_file_can_be_opened_again_while_a_child_lives", || {
        let (cache, map, file) = parent();
        let (child, told) = waiting_child();
        map.close().unwrap();
        let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
        let again = Mapping::open(&cache, backing, MappingOptions::new());
        drop(told);
        // SAFETY: waits for the child of above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!(load(&again.unwrap(), at(1)), 11);
    })
    .succeeds();
}

#[test]
fn a_child_that_drops_its_handles_leaves_the_file_locked() {
    if is_managed("a file of one process alone") {
        return;
    }
    isolated("fork::a_child_that_drops_its_handles_leaves_the_file_locked", || {
        let (cache, map, file) = parent();
        let handles = (cache, map);
        let ended = fork(|| {
            // SAFETY: the child's copy of the handles; the parent's, which is read here, is not used by the child again.
            drop(unsafe { std::ptr::read(&handles) });
            let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
            match Mapping::open(&roomy_cache(), backing, MappingOptions::new()) {
                Err(Error::InUse { .. }) => 0,
                Err(error) => panic!("{error}"),
                Ok(_) => 1,
            }
        });
        assert_eq!(ended, Ended::Exit(0));
        assert_eq!(load(&handles.1, at(1)), 11);
    })
    .succeeds();
}

/// The parent's range is not part of the child, so the kernel may give its addresses to the child's own mapping.
#[test]
fn a_child_that_drops_inherited_handles_keeps_its_own_mappings() {
    isolated("fork::a_child_that_drops_inherited_handles_keeps_its_own_mappings", || {
        let (cache, map, _file) = parent();
        let own = tempfile::NamedTempFile::new().unwrap();
        let ended = fork(|| {
            let own_cache = roomy_cache();
            let own_maps: Vec<Mapping> =
                (0..8).map(|number| create(&own_cache, &own.path().with_extension(number.to_string()))).collect();
            own_maps.iter().for_each(|own_map| store(own_map, at(1), 77));
            let overlaps = own_maps.iter().any(|own_map| own_map.as_ptr() == map.as_ptr());
            println!("the child's mapping has the parent's address: {overlaps}");
            drop((map, cache));
            let right = own_maps.iter().all(|own_map| load(own_map, at(1)) == 77 && load(own_map, at(2)) == 0);
            for (number, own_map) in own_maps.into_iter().enumerate() {
                own_map.close().unwrap();
                std::fs::remove_file(own.path().with_extension(number.to_string())).unwrap();
            }
            i32::from(!right)
        });
        assert_eq!(ended, Ended::Exit(0));
    })
    .succeeds();
}

/// The open file is the parent's, too, and the lock with it: a child would get in beside its parent, and let others in.
#[test]
fn a_child_has_no_part_in_the_locks_of_its_parents_backings() {
    isolated("fork::a_child_has_no_part_in_the_locks_of_its_parents_backings", || {
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = FileBacking::create(file.path(), PAGE).unwrap();
        backing.lock(FileUser::CachedWriter).unwrap();
        let ended = fork(|| {
            is_forked(backing.lock(FileUser::CachedWriter));
            assert!(backing.unlock().is_err());
            0
        });
        assert_eq!(ended, Ended::Exit(0));
        let other = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
        assert!(matches!(other.lock(FileUser::CachedWriter), Err(Error::InUse { .. })), "the child has unlocked it");
        backing.unlock().unwrap();
        other.lock(FileUser::CachedWriter).unwrap();
    })
    .succeeds();
}

/// What is open has been inherited, and keeps a lock that was given up by nothing but closing.
#[test]
fn what_could_not_be_opened_is_unlocked_though_a_child_has_it_open() {
    isolated("fork::what_could_not_be_opened_is_unlocked_though_a_child_has_it_open", || {
        let [file, no_journal] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        no_journal.as_file().set_len(1 << 20).unwrap();
        let open = |path: &Path| FileBacking::open(path, Access::ReadWrite).unwrap();
        let backings = [FileBacking::create(file.path(), PAGE).unwrap(), open(no_journal.path())];
        let (child, told) = waiting_child();
        let [backing, device] = backings;
        let cache = roomy_cache();
        let floor_of_all = MappingOptions::new().floor(1 << 40);
        assert!(Mapping::open(&cache, backing, floor_of_all).is_err());
        let opened = Journal::open(device, JournalOptions::new(), |_| panic!("it has no files"));
        assert!(matches!(opened, Err(Error::NotAJournal { .. })));
        for path in [file.path(), no_journal.path()] {
            open(path).lock(FileUser::CachedWriter).unwrap();
        }
        drop(told);
        // SAFETY: waits for the child of above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    })
    .succeeds();
}

/// What the commit holds then, locks and tickets, are the parent's; the child's thread returns into the middle of it.
#[test]
fn a_child_that_is_forked_within_a_commit_has_no_part_in_it() {
    isolated("fork::a_child_that_is_forked_within_a_commit_has_no_part_in_it", || {
        let [log, data] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        let journal = Journal::create_file(log.path(), 1 << 20, JournalOptions::new()).unwrap();
        let file = Arc::new(journal.join(FileBacking::create(data.path(), 4 * PAGE).unwrap()).unwrap());
        let (drawn, is_drawn) = mpsc::channel();
        let (forked, has_forked) = mpsc::channel::<()>();
        // The commit waits for this thread, which the child does not have.
        let spiller = std::thread::spawn({
            let file = Arc::clone(&file);
            move || {
                let ticket = file.ticket();
                drawn.send(()).unwrap();
                let _ = has_forked.recv();
                file.spill(&ticket, PAGE, &[9; PAGE as usize])
            }
        });
        is_drawn.recv().unwrap();
        let page = vec![7; PAGE as usize];
        let (mut child, mut is_refused, mut status) = (-1, false, -1);
        let committed = journal.commit(|commit| {
            commit.write(&file, 0, &page)?;
            let before = std::fs::read(log.path()).unwrap();
            // SAFETY: the other threads hold no lock that the child needs, but for the commit's.
            child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: takes no pointers; the signal ends the child.
                unsafe { libc::alarm(10) };
                commit.freeze();
                is_refused = matches!(commit.write(&file, PAGE, &page), Err(Error::Forked))
                    && matches!(commit.write_changes(&file, 2, &page, &page), Err(Error::Forked));
                return Ok(());
            }
            // SAFETY: the status is ours to write.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(std::fs::read(log.path()).unwrap(), before, "the child has written to the journal");
            drop(forked);
            Ok(())
        });
        if child == 0 {
            let again = journal.commit_all();
            drop(journal);
            let is_refused = is_refused && [committed, again].iter().all(|done| matches!(done, Err(Error::Forked)));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        assert_eq!(status, 0);
        assert_eq!(committed.unwrap(), 1);
        spiller.join().unwrap().unwrap();
        journal.checkpoint().unwrap();
        let bytes = std::fs::read(data.path()).unwrap();
        assert_eq!([bytes[0], bytes[PAGE as usize]], [7, 9]);
    })
    .succeeds();
}
