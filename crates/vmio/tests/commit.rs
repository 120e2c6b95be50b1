//! Atomic mappings: nothing reaches the file but by a commit, and a commit is a point in time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use vmio::backing::{Access, FileBacking};
use vmio::journal::{Inspection, Journal, JournalOptions, RecordKind};
use vmio::{Advice, Cache, Error, FrameHint, Mapping, MappingOptions, UnsupportedBy};

use crate::support::child::{command, is_child};
use crate::support::{PAGE, Random, at, check_empty, is_managed, load, minimal_cache, store, tiny_cache, watchdog};

const HEADERS: u64 = 128 << 10;
const DIR: &str = "VMIO_TEST_DIR";

fn journal(dir: &Path, pages: u64) -> Journal {
    Journal::create_file(dir.join("journal"), HEADERS + pages * PAGE, JournalOptions::new()).unwrap()
}

fn reopen(dir: &Path) -> (Journal, u64) {
    let (journal, report) = Journal::open_file(dir.join("journal"), JournalOptions::new()).unwrap();
    (journal, report.last_commit)
}

fn data_file(path: &Path, pages: u64) -> FileBacking {
    if !path.exists() {
        fs::File::create(path).unwrap().set_len(pages * PAGE).unwrap();
    }
    FileBacking::open(path, Access::ReadWrite).unwrap()
}

fn open(cache: &Cache, journal: &Journal, path: &Path, pages: u64) -> Mapping {
    Mapping::open(cache, data_file(path, pages), MappingOptions::new().atomic(journal)).unwrap()
}

/// Stores a word so often to a page that the page is written whole.
fn store_much(map: &Mapping, page: u64, word: u64) {
    (0..300).for_each(|at_word| store(map, at(page) + 8 * at_word, word));
}

/// The records of the journal in `dir`, and how many pages are in each.
fn records(dir: &Path) -> Vec<(RecordKind, u32)> {
    let copy = dir.join("copy");
    fs::copy(dir.join("journal"), &copy).unwrap();
    let inspection = Inspection::of(FileBacking::open(&copy, Access::ReadOnly).unwrap()).unwrap();
    inspection.records.iter().map(|record| (record.kind, record.pages)).collect()
}

#[test]
fn of_pages_that_change_a_little_the_changes_are_committed() {
    if is_managed("an atomic mapping") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let journal = journal(dir.path(), 8000);
    let cache = crate::support::roomy_cache();
    let map = open(&cache, &journal, &path, 4000);
    let pages = || (0..200).map(|number| number * 17);
    let word = |page, round| (page + 1) * round;
    for round in 1..=12 {
        pages().for_each(|page| store(&map, at(page) + 16 * round, word(page, round)));
        // Stores of what is there already change nothing.
        pages().for_each(|page| store(&map, at(page + 1), 0));
        map.commit().unwrap();
        let records = records(dir.path());
        let of_kind = |kind| records.iter().filter(move |record| record.0 == kind).map(|record| record.1);
        let images = if round < 9 { 0 } else { 200 };
        assert_eq!(of_kind(RecordKind::Batch).sum::<u32>(), images, "after {round} commits");
        assert_eq!(of_kind(RecordKind::Delta).sum::<u32>(), round as u32 * 200 - images, "after {round} commits");
        assert_eq!(of_kind(RecordKind::Delta).count() as u64, (round - u64::from(round > 8)) * 2);
        assert_eq!(of_kind(RecordKind::Commit).count() as u64, round);
        // Some of them come back from the journal.
        map.advise(at(5 * 17)..at(100 * 17), vmio::Advice::DontNeed).unwrap();
        for page in pages() {
            (1..=round).for_each(|before| assert_eq!(load(&map, at(page) + 16 * before), word(page, before)));
        }
    }
    let copies = ["data", "journal"].map(|name| fs::read(dir.path().join(name)).unwrap());
    assert!(copies[0].iter().all(|byte| *byte == 0), "the file has something before the checkpoint");
    journal.checkpoint().unwrap();
    let checkpointed = fs::read(&path).unwrap();
    drop((map, journal));
    // Recovery makes the same of it.
    fs::write(&path, &copies[0]).unwrap();
    fs::write(dir.path().join("journal"), &copies[1]).unwrap();
    let (_, report) = Journal::open_file(dir.path().join("journal"), JournalOptions::new()).unwrap();
    assert_eq!((report.commits, report.pages_replayed), (12, 200));
    assert!(fs::read(&path).unwrap() == checkpointed);
    let word_at = |at: u64| u64::from_le_bytes(checkpointed[at as usize..][..8].try_into().unwrap());
    pages().for_each(|page| assert_eq!(word_at(at(page) + 16 * 12), word(page, 12)));
}

#[test]
fn pages_that_lie_apart_are_committed_in_one_write() {
    if is_managed("an atomic mapping") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let journal = journal(dir.path(), 8000);
    let map = open(&tiny_cache(), &journal, &path, 4000);
    let pages = || (0..200).map(|number| number * 17);
    pages().for_each(|page| store_much(&map, page, page + 1));
    map.commit().unwrap();
    assert_eq!(records(dir.path()), [(RecordKind::Batch, 200), (RecordKind::Commit, 0)]);
    map.close().unwrap();
    let map = open(&tiny_cache(), &journal, &path, 4000);
    pages().for_each(|page| assert_eq!((load(&map, at(page)), load(&map, at(page + 1))), (page + 1, 0)));
}

/// A checkpoint pins a page to copy it, and takes the copy if the version is the same afterwards: one that was made while the
/// page was another must not count.
#[test]
fn a_pinned_page_that_is_stored_to_and_back_gets_another_version() {
    if is_managed("an atomic mapping") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path(), 8000);
    let map = open(&tiny_cache(), &journal, &dir.path().join("data"), 10);
    let change_nothing = || {
        (0..2).for_each(|page| store(&map, at(page), 1));
        (0..2).for_each(|page| store(&map, at(page), 0));
        map.commit().unwrap();
    };
    let pin = map.pin(0..PAGE, Access::ReadOnly).unwrap();
    change_nothing();
    assert_eq!(records(dir.path()), [(RecordKind::Batch, 1), (RecordKind::Commit, 0)]);
    drop(pin);
    change_nothing();
    assert_eq!(records(dir.path())[2..], [(RecordKind::Commit, 0)]);
}

/// The mapping waits for the commit, and keeps nobody from opening other files meanwhile.
#[test]
fn a_commit_opens_a_file_while_a_mapping_joins() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("a_commit_opens_a_file_while_a_mapping_joins");
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path(), 1000);
    let cache = tiny_cache();
    thread::scope(|scope| {
        let mut joining = None;
        let committed = journal.commit(|_| {
            joining = Some(scope.spawn(|| open(&cache, &journal, &dir.path().join("data"), 10)));
            thread::sleep(Duration::from_millis(50));
            let other = data_file(&dir.path().join("other"), 10);
            Mapping::open(&cache, other, MappingOptions::new()).unwrap().close()
        });
        assert_eq!(committed.unwrap(), 1);
        let map = joining.unwrap().join().unwrap();
        store(&map, 0, 1);
        assert_eq!(map.commit().unwrap(), 2);
    });
}

#[test]
fn what_is_not_committed_is_forgotten() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("what_is_not_committed_is_forgotten");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let journal = journal(dir.path(), 8000);
    let cache = minimal_cache();
    let pages = 700; // of a cache of 256
    let map = open(&cache, &journal, &path, pages);
    (0..pages).for_each(|page| store(&map, at(page), page + 1));
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "the file has something that was not committed");
    assert_eq!(map.commit().unwrap(), 1);
    (0..pages).for_each(|page| store(&map, at(page), 2 * page + 2));
    (0..pages).for_each(|page| assert_eq!(load(&map, at(page)), 2 * page + 2));
    map.close().unwrap();
    check_empty(&cache);
    let map = open(&cache, &journal, &path, pages);
    (0..pages).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    // A part of it is committed by another handle's sync, and the rest forgotten.
    store(&map, at(3), 33);
    map.sync().unwrap();
    store(&map, at(4), 44);
    drop(map);
    drop(journal);
    let (journal, _) = reopen(dir.path());
    let map = open(&cache, &journal, &path, pages);
    assert_eq!([load(&map, at(3)), load(&map, at(4))], [33, 5]);
    store(&map, at(5), 55);
    map.commit_begin().unwrap().wait().unwrap();
    drop(map);
    assert_eq!(&fs::read(&path).unwrap()[at(5) as usize..][..8], &55_u64.to_le_bytes());
}

#[test]
fn one_commit_is_for_all_mappings_of_the_journal() {
    if is_managed("an atomic mapping") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path(), 2000);
    let caches = [tiny_cache(), tiny_cache()];
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    let maps: Vec<_> = (0..2).map(|file| open(&caches[file], &journal, &paths[file], 10)).collect();
    for round in 1..5 {
        maps.iter().for_each(|map| store(map, at(round), round));
        let number = if round % 2 == 0 { maps[0].commit().unwrap() } else { journal.commit_all().unwrap() };
        assert_eq!(number, round);
    }
    maps.iter().for_each(|map| store(map, at(1), 99));
    drop((maps, journal));
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        (1..5).for_each(|page| assert_eq!(&bytes[at(page) as usize..][..8], &page.to_le_bytes()));
    }
}

#[test]
fn what_cannot_be_right_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path(), 200);
    let path = dir.path().join("data");
    let cache = tiny_cache();
    let options = || MappingOptions::new().atomic(&journal);
    if is_managed("an atomic mapping") {
        let refused = Mapping::open(&cache, data_file(&path, 10), options());
        assert!(matches!(refused, Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, .. })), "{refused:?}");
        return;
    }
    for frames in [FrameHint::Mixed, FrameHint::SharedAddresses, FrameHint::Stream] {
        let refused = Mapping::open(&cache, data_file(&path, 10), options().frames(frames));
        assert!(matches!(refused, Err(Error::BadOption { option: "frames", .. })), "{refused:?}");
    }
    let plain = Mapping::open(&cache, data_file(&path, 10), MappingOptions::new()).unwrap();
    assert!(matches!(plain.commit(), Err(Error::NotAtomic { .. })));
    let refused = Mapping::open(&cache, data_file(&path, 10), options());
    assert!(matches!(refused, Err(Error::AlreadyMapped { how: "without this journal", .. })), "{refused:?}");
    plain.close().unwrap();
    let map = Mapping::open(&cache, data_file(&path, 10), options()).unwrap();
    assert!(matches!(
        map.pin(0..10, Access::ReadWrite),
        Err(Error::Unsupported { by: UnsupportedBy::AtomicMapping, .. })
    ));
    for advice in [Advice::Free, Advice::Invalidate] {
        assert!(matches!(
            map.advise(0..map.len(), advice),
            Err(Error::Unsupported { by: UnsupportedBy::AtomicMapping, .. })
        ));
    }
    assert!(matches!(map.set_len(PAGE), Err(Error::Unsupported { by: UnsupportedBy::AtomicMapping, .. })));
    drop(map.pin(0..10, Access::ReadOnly).unwrap());
}

#[test]
fn a_file_grows_with_the_commit() {
    if is_managed("an atomic mapping") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let journal = journal(dir.path(), 200);
    let cache = tiny_cache();
    fs::write(&path, [1; 100]).unwrap();
    let map = open(&cache, &journal, &path, 0);
    store(&map, 200, 7);
    map.set_len(3 * PAGE).unwrap();
    assert_eq!(load(&map, 200), 0, "behind the end of the file there was nothing");
    store(&map, at(2), 5);
    assert_eq!(fs::metadata(&path).unwrap().len(), 100);
    map.commit().unwrap();
    map.set_len(5 * PAGE).unwrap();
    map.close().unwrap();
    let mut expected = vec![0; 3 * PAGE as usize];
    expected[..100].fill(1);
    expected[at(2) as usize] = 5;
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn a_full_journal_fails_the_commit_and_loses_nothing() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("a_full_journal_fails_the_commit_and_loses_nothing");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let journal = journal(dir.path(), 400);
    let map = open(&crate::support::roomy_cache(), &journal, &path, 2000);
    (0..10).for_each(|page| store(&map, at(page), 1));
    map.commit().unwrap();
    (0..1000).for_each(|page| store_much(&map, page, page + 2));
    for _ in 0..3 {
        let error = map.commit().unwrap_err();
        assert!(matches!(error, Error::JournalFull { .. }), "{error}");
        (0..1000).for_each(|page| assert_eq!(load(&map, at(page)), page + 2));
    }
    (0..1000).for_each(|page| store(&map, at(page) + 8, 3));
    drop(map);
    let map = open(&crate::support::roomy_cache(), &journal, &path, 2000);
    (0..1000).for_each(|page| assert_eq!([load(&map, at(page)), load(&map, at(page) + 8)], [u64::from(page < 10), 0]));
    // What fits is committed as if nothing had happened.
    (0..100).for_each(|page| store(&map, at(page), page + 4));
    map.commit().unwrap();
    drop(map);
    let bytes = fs::read(&path).unwrap();
    (0..100).for_each(|page| assert_eq!(&bytes[at(page) as usize..][..8], &(page + 4).to_le_bytes()));
}

const KILLED: &str = "commit::a_killed_process_leaves_a_point_in_time";
const PAIRS: u64 = 3;
/// Of a cache of 640.
const PAGES: u64 = 900;

/// Where the word of a pair lies in either file; one pair has both on the same span, others do not.
fn place(pair: u64, turn: u64) -> u64 {
    at((pair * 293 + turn * 131) % (PAGES / 2)) + 16
}

/// Threads store i to one file and then to the other, at places that move with i; commits run, and the cache evicts.
fn commit_for_ever(dir: &Path) -> ! {
    let (journal, _) = reopen(dir);
    let cache = tiny_cache();
    let maps = ["a", "b"].map(|name| open(&cache, &journal, &dir.join(name), PAGES));
    // Of the second file: the first may be one ahead.
    let first: Vec<u64> = (0..PAIRS).map(|pair| newest(&maps[1], pair) + 1).collect();
    let done: [AtomicU64; PAIRS as usize] = std::array::from_fn(|_| AtomicU64::new(0));
    thread::scope(|scope| {
        for pair in 0..PAIRS {
            let (maps, done, first) = (&maps, &done, first[pair as usize]);
            scope.spawn(move || {
                for count in first.. {
                    let turn = count % 8;
                    store(&maps[0], place(pair, turn) + 8 * pair, count);
                    store(&maps[1], place(pair, turn) + 8 * pair, count);
                    done[pair as usize].store(count, Ordering::SeqCst);
                }
            });
        }
        // Loads and stores elsewhere, so that pages of all states are evicted.
        scope.spawn(|| {
            let mut random = Random(first[0]);
            loop {
                let (map, page) = (&maps[random.below(2) as usize], random.below(PAGES));
                match random.below(3) {
                    0 => store(map, at(page) + 1000, random.next()),
                    _ => _ = load(map, at(page) + 1000),
                }
            }
        });
        for round in 0_u64.. {
            let before: Vec<u64> = done.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            match maps[0].commit() {
                Ok(_) => println!("acknowledged {}", before.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")),
                Err(error) => println!("round {round}: {error}"),
            }
        }
    });
    unreachable!()
}

/// The newest count of a pair.
fn newest(map: &Mapping, pair: u64) -> u64 {
    (0..8).map(|turn| load(map, place(pair, turn) + 8 * pair)).max().unwrap()
}

#[test]
fn a_killed_process_leaves_a_point_in_time() {
    if is_child(KILLED) {
        commit_for_ever(Path::new(&std::env::var(DIR).unwrap()));
    }
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog(KILLED);
    let dir = tempfile::tempdir().unwrap();
    drop(journal(dir.path(), 6000));
    for kill in 0..6 {
        let mut child =
            command(KILLED).env(DIR, dir.path()).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut acknowledged = vec![0; PAIRS as usize];
        let mut commits = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((_, counts)) = line.rsplit_once("acknowledged ") else {
                println!("{line}");
                continue;
            };
            acknowledged = counts.split(' ').map(|count| count.parse().unwrap()).collect();
            commits += 1;
            if commits == 12 + kill {
                thread::sleep(Duration::from_micros(900 * kill));
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(commits >= 12, "the child died by itself");
        let (journal, _) = reopen(dir.path());
        let cache = tiny_cache();
        let maps = ["a", "b"].map(|name| open(&cache, &journal, &dir.path().join(name), PAGES));
        for pair in 0..PAIRS {
            let [a, b] = [0, 1].map(|file| newest(&maps[file], pair));
            assert!(a == b || a == b + 1, "pair {pair}: {a} was stored first, and {b} is there");
            assert!(b >= acknowledged[pair as usize], "pair {pair}: {b} is there, {acknowledged:?} was acknowledged");
            // And all that came before.
            for (map, last) in maps.iter().zip([a, b]) {
                for count in last.saturating_sub(7)..=last {
                    let found = load(map, place(pair, count % 8) + 8 * pair);
                    assert!(found == count, "pair {pair}: {found} for {count} of {last}");
                }
            }
        }
    }
}

/// Threads that commit at the same time share commits, and each finds its own stores in them.
#[test]
fn threads_commit_together() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("threads_commit_together");
    const THREADS: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let journal = journal(dir.path(), 4000);
    let map = open(&tiny_cache(), &journal, &path, 800);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let committers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (map, journal) = (&map, &journal);
                scope.spawn(move || {
                    for round in 1..60 {
                        store(map, at(thread * 7) + 8 * thread, round);
                        let number = if round % 2 == 0 { map.commit() } else { journal.commit_all() }.unwrap();
                        assert!(number > 0);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = Random(5);
            while !is_over.load(Ordering::SeqCst) {
                store(&map, at(random.below(800)) + 100 * 8, random.next());
            }
        });
        committers.into_iter().for_each(|committer| committer.join().unwrap());
        is_over.store(true, Ordering::SeqCst);
    });
    drop((map, journal));
    let bytes = fs::read(&path).unwrap();
    for thread in 0..THREADS {
        assert_eq!(&bytes[(at(thread * 7) + 8 * thread) as usize..][..8], &59_u64.to_le_bytes());
    }
}

/// What is done to a mapping, and what it must hold.
#[derive(Clone, Copy, Debug)]
enum Step {
    Store(u64, u64),
    /// A store while a commit may be under way.
    CommitBegin(u64, u64),
    Commit,
    /// Pages elsewhere come in until others must go.
    Press(u64),
    DontNeed,
    /// Closed without a commit, and opened again.
    Reopen,
    /// The journal as well.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..MODEL_PAGES, 1..u64::MAX).prop_map(|(page, word)| Step::Store(page, word)),
        2 => (0..MODEL_PAGES, 1..u64::MAX).prop_map(|(page, word)| Step::CommitBegin(page, word)),
        3 => Just(Step::Commit),
        2 => (0..400_u64).prop_map(Step::Press),
        1 => Just(Step::DontNeed),
        1 => Just(Step::Reopen),
        1 => Just(Step::Restart),
    ]
}

const MODEL_PAGES: u64 = 20;
const PRESSED: u64 = 700;

fn check_model(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut journal = journal(dir.path(), 20_000);
    let cache = minimal_cache();
    let open = |journal: &Journal| open(&cache, journal, &path, MODEL_PAGES + PRESSED);
    let mut map = open(&journal);
    let (mut present, mut committed) = ([0; MODEL_PAGES as usize], [0; MODEL_PAGES as usize]);
    for step in steps {
        match *step {
            Step::Store(page, word) => {
                store(&map, at(page), word);
                present[page as usize] = word;
            }
            Step::CommitBegin(page, word) => {
                let commit = map.commit_begin().unwrap();
                store(&map, at(page), word);
                present[page as usize] = word;
                commit.wait().unwrap();
                // Whether the store is part of it is open: the next one settles that.
                map.commit().unwrap();
                committed = present;
            }
            Step::Commit => {
                map.commit().unwrap();
                committed = present;
            }
            Step::Press(first) => (0..300).for_each(|page| store(&map, at(MODEL_PAGES + first + page), page)),
            Step::DontNeed => map.advise(0..map.len(), Advice::DontNeed).unwrap(),
            Step::Reopen | Step::Restart => {
                drop(map);
                if let Step::Restart = step {
                    drop(journal);
                    journal = reopen(dir.path()).0;
                }
                map = open(&journal);
                present = committed;
            }
        }
        (0..MODEL_PAGES).for_each(|page| assert_eq!(load(&map, at(page)), present[page as usize], "after {step:?}"));
    }
    drop(map);
    drop(journal);
    let bytes = fs::read(&path).unwrap();
    for (page, word) in committed.iter().enumerate() {
        assert_eq!(&bytes[at(page as u64) as usize..][..8], &word.to_le_bytes());
    }
    check_empty(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(12, 24), max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn behaves_like_an_array_with_commits(steps in prop::collection::vec(step(), 1..60)) {
        if !is_managed("an atomic mapping") {
            check_model(&steps);
        }
    }
}
