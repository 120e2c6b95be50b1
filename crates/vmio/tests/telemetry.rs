//! What a cache counts is seen from other processes, and neither children nor caches that come and go disturb it.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use vmio::backing::MemoryBacking;
use vmio::telemetry::{PageError, ReadError, Reader, Snapshot};
use vmio::{Access, Advice, Cache, Mapping, MappingOptions};

use crate::support::child::{Ended, command, fork, is_child, isolated};
use crate::support::{PAGE, at, cache_of, load, roomy_cache, store, tiny_cache};

const PAGES: u64 = 64;
const SUBJECT: &str = "VMIO_TEST_SUBJECT";

fn open(cache: &Cache, pages: u64) -> Mapping {
    Mapping::open(cache, MemoryBacking::new(pages * PAGE).unwrap(), MappingOptions::new()).unwrap()
}

fn snapshots(process_id: u32) -> Vec<Snapshot> {
    Reader::open(process_id).unwrap().snapshots().unwrap()
}

/// What is published of this process's only cache.
fn own_snapshot() -> Snapshot {
    let mut found = snapshots(std::process::id());
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn another_process_sees_the_counters() {
    const NAME: &str = "telemetry::another_process_sees_the_counters";
    if is_child(NAME) {
        let subject = std::env::var(SUBJECT).unwrap().parse().unwrap();
        let found = snapshots(subject);
        // Other tests of the subject's program have caches as well: ours is the one with three pinned pages, and two for their tables.
        let ours = found.iter().find(|found| found.stats.pinned_pages == 5).unwrap();
        println!("seen: {:?} {} {}", ours.stats, ours.mappings, ours.mapped_bytes);
        println!("seen: {} {} {}", ours.miss.count(), ours.sync.count(), ours.write.count());
        return;
    }
    let cache = roomy_cache();
    let map = open(&cache, PAGES);
    map.advise(0..map.len(), Advice::Random).unwrap();
    (0..10).for_each(|page| store(&map, at(page), 1));
    (10..30).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    map.sync().unwrap();
    let _pin = map.pin(0..3 * PAGE, Access::ReadOnly).unwrap();
    let output = command(NAME).env(SUBJECT, std::process::id().to_string()).output().unwrap();
    let seen = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{seen}{}", String::from_utf8_lossy(&output.stderr));
    let stats = cache.stats();
    assert_eq!((stats.store_misses, stats.load_misses, stats.minor_faults), (10, 20, 0));
    assert_eq!((stats.resident_pages, stats.dirty_pages), (30, 0));
    assert!(seen.contains(&format!("seen: {stats:?} 1 {}\n", PAGES * PAGE)), "{seen}\nnot {stats:?}");
    assert!(seen.contains(&format!("seen: 30 1 {}\n", stats.writes)), "{seen}");
}

#[test]
fn resident_pages_are_counted_by_priority_wherever_they_go() {
    isolated("telemetry::resident_pages_are_counted_by_priority_wherever_they_go", || {
        const SPAN: u64 = 512;
        let cache = cache_of(4096).build().unwrap();
        let options = |priority| MappingOptions::new().priority(priority);
        let backing = || MemoryBacking::new(4 * SPAN * PAGE).unwrap();
        let kept = Mapping::open(&cache, backing(), options(0)).unwrap();
        let first_to_go = Mapping::open(&cache, backing(), options(255)).unwrap();
        let by_priority = || {
            let seen = own_snapshot().stats;
            assert_eq!(seen.resident_by_priority, cache.stats().resident_by_priority);
            assert_eq!(seen.resident_by_priority.iter().sum::<u64>(), seen.resident_pages);
            seen.resident_by_priority
        };
        for map in [&kept, &first_to_go] {
            map.advise(0..map.len(), Advice::Random).unwrap();
        }
        (0..100).for_each(|page| assert_eq!(load(&kept, at(page)), 0));
        (0..60).for_each(|page| store(&first_to_go, at(page * 30), 1));
        assert_eq!(by_priority(), [100, 0, 0, 0, 0, 0, 0, 60]);
        // The first span, with the first 18 of those pages.
        first_to_go.advise(0..SPAN * PAGE, Advice::Priority(127)).unwrap();
        assert_eq!(by_priority(), [100, 0, 0, 18, 0, 0, 0, 42]);
        // A span that was given a priority before it was touched.
        kept.advise(SPAN * PAGE..2 * SPAN * PAGE, Advice::Priority(32)).unwrap();
        assert_eq!(load(&kept, at(SPAN + 7)), 0);
        assert_eq!(by_priority(), [100, 1, 0, 18, 0, 0, 0, 42]);
        first_to_go.advise(0..30 * PAGE, Advice::DontNeed).unwrap();
        kept.advise(0..kept.len(), Advice::Priority(200)).unwrap();
        assert_eq!(by_priority(), [0, 0, 0, 17, 0, 0, 101, 42]);
        drop(first_to_go);
        assert_eq!(by_priority(), [0, 0, 0, 0, 0, 0, 101, 0]);
        // More than there is room for: what is evicted is counted no more.
        let many = open(&cache, 3 * 4096);
        (0..3 * 4096).for_each(|page| store(&many, at(page), 1));
        let seen = own_snapshot().stats;
        let [.., of_many, _, kept, _] = seen.resident_by_priority;
        assert!(of_many <= seen.resident_pages && of_many > 4096 / 2 && kept <= 101, "{seen:?}");
        drop((kept, many));
    })
    .succeeds();
}

#[test]
fn gauges_follow_mappings_and_their_lengths() {
    isolated("telemetry::gauges_follow_mappings_and_their_lengths", || {
        let cache = cache_of(640).build().unwrap();
        let mapped = || {
            let found = own_snapshot();
            (found.mappings, found.mapped_bytes)
        };
        assert_eq!((mapped(), own_snapshot().stats.capacity_pages), ((0, 0), 640));
        let first = open(&cache, PAGES);
        let second = open(&cache, 2 * PAGES);
        assert_eq!(mapped(), (2, 3 * PAGES * PAGE));
        second.set_len(PAGE).unwrap();
        assert_eq!(mapped(), (2, (PAGES + 1) * PAGE));
        second.set_len(5 * PAGE).unwrap();
        first.close().unwrap();
        assert_eq!(mapped(), (1, 5 * PAGE));
        store(&second, at(2), 1);
        let stats = own_snapshot().stats;
        assert_eq!((stats.dirty_pages, stats.resident_pages, stats.free_pages + stats.table_pages), (1, 1, 639));
        drop(second);
        let stats = own_snapshot().stats;
        assert_eq!((mapped(), stats.dirty_pages, stats.resident_pages), ((0, 0), 0, 0));
    })
    .succeeds();
}

#[test]
fn caches_that_come_and_go_leave_nothing() {
    isolated("telemetry::caches_that_come_and_go_leave_nothing", || {
        let first = tiny_cache();
        let before = descriptors();
        for round in 2..200 {
            let cache = tiny_cache();
            let map = open(&cache, PAGES);
            store(&map, 0, round);
            let found = snapshots(std::process::id());
            let numbers: Vec<u64> = found.iter().map(|found| found.cache_number).collect();
            assert_eq!(numbers, [1, round]);
            assert_eq!((found[0].stats.store_misses, found[1].stats.store_misses), (0, 1));
        }
        assert_eq!(descriptors(), before);
        drop(first);
        assert!(snapshots(std::process::id()).is_empty());
    })
    .succeeds();
}

#[test]
fn a_page_that_was_opened_tells_what_a_cache_did_to_its_end() {
    isolated("telemetry::a_page_that_was_opened_tells_what_a_cache_did_to_its_end", || {
        let cache = tiny_cache();
        let (page, before) = Reader::open(std::process::id()).unwrap().pages().unwrap().remove(0);
        let map = open(&cache, PAGES);
        store(&map, 0, 1);
        drop((map, cache));
        let after = page.snapshot().unwrap();
        assert_eq!((before.stats.store_misses, after.stats.store_misses), (0, 1));
        assert_eq!((after.cache_number, after.mappings, after.stats.resident_pages), (before.cache_number, 0, 0));
    })
    .succeeds();
}

#[test]
fn a_forked_child_neither_disturbs_the_page_nor_passes_for_its_owner() {
    isolated("telemetry::a_forked_child_neither_disturbs_the_page_nor_passes_for_its_owner", || {
        let cache = roomy_cache();
        let map = open(&cache, PAGES);
        let pin = map.pin(0..2 * PAGE, Access::ReadOnly).unwrap();
        let handles = (cache, map, pin);
        let before = own_snapshot();
        let ended = fork(|| {
            let inherited = snapshots(std::process::id()).len();
            let stats = handles.0.stats();
            assert_eq!((inherited, stats.load_misses, stats.pinned_pages), (0, 0, 0));
            assert_eq!(stats.capacity_pages, 16 * 1024);
            // SAFETY: the child's copy of the handles, which it does not use again.
            drop(unsafe { std::ptr::read(&handles) });
            let own = roomy_cache();
            let map = open(&own, PAGES);
            (0..5).for_each(|page| store(&map, at(page), 1));
            let found = own_snapshot();
            assert_eq!((found.stats.store_misses, found.process_id), (5, std::process::id()));
            0
        });
        assert_eq!(ended, Ended::Exit(0));
        let after = own_snapshot();
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        assert_eq!((after.stats.load_misses, after.stats.pinned_pages), (2, 4));
    })
    .succeeds();
}

#[test]
fn no_descriptor_is_left_to_another_program() {
    isolated("telemetry::no_descriptor_is_left_to_another_program", || {
        let _cache = tiny_cache();
        let mut child = std::process::Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let found = snapshots(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(found.is_empty());
    })
    .succeeds();
}

/// With the limit of the length of files at zero, to make the memory file would end the process.
#[test]
fn a_cache_that_cannot_publish_counts_all_the_same() {
    isolated("telemetry::a_cache_that_cannot_publish_counts_all_the_same", || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads a limit of ours.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) }, 0);
        let cache = tiny_cache();
        let map = open(&cache, PAGES);
        (0..5).for_each(|page| store(&map, at(page), 1));
        assert_eq!((cache.stats().store_misses, cache.stats().dirty_pages), (5, 5));
        assert!(snapshots(std::process::id()).is_empty());
    })
    .succeeds();
}

#[test]
fn a_process_that_has_ended_is_told_from_one_that_lives() {
    let mut child = std::process::Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let reader = Reader::open(child.id()).unwrap();
    assert!(!reader.wait_for_end(Duration::ZERO).unwrap());
    assert!(reader.snapshots().unwrap().is_empty());
    drop(child.stdin.take());
    child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    // It is not waited for yet: /proc still has it.
    assert!(reader.wait_for_end(Duration::from_secs(60)).unwrap());
    assert!(matches!(reader.snapshots(), Err(ReadError::NoSuchProcess { .. })));
    child.wait().unwrap();
    assert!(matches!(reader.snapshots(), Err(ReadError::NoSuchProcess { .. })));
    assert!(matches!(Reader::open(u32::MAX), Err(ReadError::NoSuchProcess { process_id: u32::MAX })));
    assert!(matches!(Reader::open(0), Err(ReadError::NoSuchProcess { process_id: 0 })));
}

#[test]
fn a_process_of_another_user_is_refused() {
    if !crate::support::is_root("to be another user") {
        return;
    }
    isolated("telemetry::a_process_of_another_user_is_refused", || {
        let _cache = tiny_cache();
        let subject = std::process::id();
        let ended = fork(|| {
            // SAFETY: changes the user of the child, which has one thread.
            assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
            let refused = Reader::open(subject).and_then(|reader| reader.snapshots());
            assert!(matches!(refused, Err(ReadError::Denied { process_id }) if process_id == subject), "{refused:?}");
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    })
    .succeeds();
}

/// A memory file of the name that is looked for, with anything in it.
fn published(bytes: &[u8]) -> std::fs::File {
    let file = rustix::fs::memfd_create("vmio-stat", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn files_that_only_have_the_name_are_errors_or_passed_over() {
    isolated("telemetry::files_that_only_have_the_name_are_errors_or_passed_over", || {
        let _cache = tiny_cache();
        let reader = Reader::open(std::process::id()).unwrap();
        let read = || match reader.snapshots() {
            Ok(found) => Ok(found.len()),
            Err(ReadError::Page { source, .. }) => Err(source),
            Err(error) => panic!("{error}"),
        };
        // One that is being made.
        let unfinished = [published(&[]), published(&[0; 4096])];
        assert_eq!(read(), Ok(1));
        drop(unfinished);
        let mut page = b"vmiostat".to_vec();
        page.resize(8192, 0);
        let other = published(&[b'x'; 100]);
        assert_eq!(read(), Err(PageError::NotAStatPage { magic: u64::from_le_bytes([b'x'; 8]) }));
        drop(other);
        page[8] = 2;
        let newer = published(&page);
        assert_eq!(read(), Err(PageError::UnknownVersion { found: 2, known: 1 }));
        drop(newer);
        page[8] = 1;
        let _cut_off = published(&page[..512]);
        assert_eq!(read(), Err(PageError::WrongLength { found: 512, expected: 4096 }));
    })
    .succeeds();
}
