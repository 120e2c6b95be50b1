//! The journal over real files and through mappings: who reads what when, several threads, and what goes wrong.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmio::backing::{Access, Backing, FileBacking};
use vmio::journal::{Inspection, Journal, JournalOptions, JournaledBacking};
use vmio::{Error, Mapping, MappingOptions};

use crate::support::child::{command, is_child};
use crate::support::device::{Device, READ_EIO, WRITE_EIO};
use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{PAGE, Random, at, is_managed, load, minimal_cache, store, watchdog};

const HEADERS: u64 = 128 << 10;

/// Pages in memory that direct I/O takes.
struct Pages {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Pages {
    /// `count` pages filled with a word.
    fn of(count: u64, word: u64) -> Self {
        let len = (count * PAGE) as usize;
        let mut memory = vec![0; len + PAGE as usize];
        let start = memory.as_ptr().align_offset(PAGE as usize);
        memory[start..start + len].chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word.to_le_bytes()));
        Pages { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// The word that a page is filled with.
fn word_of(file: &dyn Backing, page: u64) -> u64 {
    let mut pages = Pages::of(1, 0);
    assert_eq!(file.read_at(page * PAGE, pages.bytes()).unwrap(), PAGE as usize);
    let word = pages.bytes()[..8].to_vec();
    assert!(pages.bytes().chunks(8).all(|chunk| chunk == word), "page {page} is torn");
    u64::from_le_bytes(word.try_into().unwrap())
}

fn write(file: &dyn Backing, page: u64, count: u64, word: u64) -> std::io::Result<()> {
    file.write_at(page * PAGE, Pages::of(count, word).bytes())
}

fn data_file(path: &Path, pages: u64) -> FileBacking {
    if !path.exists() {
        fs::File::create(path).unwrap().set_len(pages * PAGE).unwrap();
    }
    FileBacking::open(path, Access::ReadWrite).unwrap()
}

fn file_word(path: &Path, page: u64) -> u64 {
    word_of(&FileBacking::open(path, Access::ReadOnly).unwrap(), page)
}

#[test]
fn what_a_mapping_evicts_reaches_the_file_with_the_commit_only() {
    if is_managed("a mapping over a journal") {
        return;
    }
    let _watchdog = watchdog("what_a_mapping_evicts_reaches_the_file_with_the_commit_only");
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("data"), dir.path().join("journal"));
    let pages = 700; // of a cache of 256
    let journal = Journal::create_file(&log, HEADERS + 4000 * PAGE, JournalOptions::new()).unwrap();
    let file = journal.join(data_file(&path, pages)).unwrap();
    let map = Mapping::open(&minimal_cache(), file, MappingOptions::new()).unwrap();
    (0..pages).for_each(|page| store(&map, at(page), page + 1));
    assert!(journal.usage().used_bytes > 200 * PAGE, "nothing was spilled: {:?}", journal.usage());
    // What was evicted comes back from the journal.
    (0..pages).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "the file has something that was not committed");
    map.sync().unwrap();
    let copy = dir.path().join("copy");
    fs::copy(&log, &copy).unwrap();
    journal.checkpoint().unwrap();
    let committed = fs::read(&path).unwrap();
    for page in 0..pages {
        let word = &committed[at(page) as usize..][..8];
        assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), page + 1);
    }
    assert_eq!(journal.usage().used_bytes, 0);
    map.close().unwrap();
    drop(journal);
    // The journal as it was at the commit brings an empty file to the same state.
    fs::write(&path, vec![0; (pages * PAGE) as usize]).unwrap();
    let (_journal, report) = Journal::open_file(&copy, JournalOptions::new()).unwrap();
    assert_eq!((report.commits, report.pages_replayed), (1, pages));
    assert!(fs::read(&path).unwrap() == committed);
}

/// A place of the log that can neither be written nor read keeps nothing from the file that was committed around it.
#[test]
fn a_bad_place_of_the_log_is_passed_over() {
    let _watchdog = watchdog("a_bad_place_of_the_log_is_passed_over");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let device = Device::of_pages(HEADERS / PAGE + 200);
    let journal = Journal::create(device.backing(), JournalOptions::new()).unwrap();
    let file = journal.join(data_file(&path, 100)).unwrap();
    write(&file, 0, 1, 7).unwrap();
    // In the middle of the second record, whose first page is written alone.
    device.set_faults(HEADERS / PAGE + 10, READ_EIO | WRITE_EIO);
    assert!(write(&file, 10, 20, 8).is_err());
    write(&file, 1, 1, 9).unwrap();
    file.flush().unwrap();
    journal.checkpoint().unwrap();
    assert_eq!([0, 1, 10].map(|page| file_word(&path, page)), [7, 9, 0]);
}

/// A journal is not made over one that is in use, nor emptied for options that make no sense.
#[test]
fn a_journal_that_cannot_be_made_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("journal");
    let journal = Journal::create_file(&log, HEADERS + 100 * PAGE, JournalOptions::new()).unwrap();
    let before = fs::read(&log).unwrap();
    assert!(Journal::create_file(&log, HEADERS + 200 * PAGE, JournalOptions::new()).is_err());
    drop(journal);
    let without_sense = JournalOptions::new().checkpoint_at(2.0);
    assert!(matches!(Journal::create_file(&log, HEADERS + 200 * PAGE, without_sense), Err(Error::BadOption { .. })));
    assert!(matches!(Journal::create_file(&log, PAGE, JournalOptions::new()), Err(Error::BadOption { .. })));
    assert!(fs::read(&log).unwrap() == before);
    Journal::create_file(&log, HEADERS + 200 * PAGE, JournalOptions::new()).unwrap();
    assert_eq!(fs::metadata(&log).unwrap().len(), HEADERS + 200 * PAGE);
}

#[test]
fn a_full_journal_says_so_and_loses_nothing() {
    let _watchdog = watchdog("a_full_journal_says_so_and_loses_nothing");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let options = JournalOptions::new().commit_reserve(0.5);
    let journal = Journal::create_file(dir.path().join("journal"), HEADERS + 200 * PAGE, options).unwrap();
    let file = journal.join(data_file(&path, 1000)).unwrap();
    let spilled = (0..1000).take_while(|page| write(&file, *page, 1, page + 1).is_ok()).count() as u64;
    assert!((40..50).contains(&spilled), "{spilled} pages fit half of the log");
    let error = write(&file, spilled, 1, 7).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    // More than there is room for, then what there is room for.
    let error = journal.commit(|commit| commit.write(&file, 500 * PAGE, Pages::of(150, 8).bytes())).unwrap_err();
    assert!(matches!(error, Error::JournalFull { capacity_bytes, .. } if capacity_bytes == 200 * PAGE), "{error}");
    (0..spilled).for_each(|page| assert_eq!(word_of(&file, page), page + 1));
    assert_eq!(file_word(&path, 0), 0);
    journal.commit(|_| Ok(())).unwrap();
    // And now the spills make their own room.
    for page in 0..400 {
        write(&file, page, 1, page + 2).unwrap();
        if page % 20 == 19 {
            journal.commit(|_| Ok(())).unwrap();
        }
    }
    journal.checkpoint().unwrap();
    (0..400).for_each(|page| assert_eq!(file_word(&path, page), page + 2));
}

#[test]
fn after_a_failed_flush_nothing_is_durable_until_it_was_written_again() {
    let open =
        |disk: &SimulatedDisk| Journal::open(disk.open(0), JournalOptions::new(), |_| Ok(Box::new(disk.open(1))));
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed, &[HEADERS + 100 * PAGE, 10 * PAGE]);
        let journal = Journal::create(disk.open(0), JournalOptions::new()).unwrap();
        let file = journal.join(disk.open(1)).unwrap();
        write(&file, 0, 3, 1).unwrap();
        // The commit's write succeeds and its flush does not.
        let result = journal.commit(|_| {
            disk.fail_flushes(1);
            Ok(())
        });
        assert!(matches!(result, Err(Error::JournalFlush { .. })), "{result:?}");
        assert_eq!(word_of(&file, 1), 1, "it is still read");
        write(&file, 3, 1, 2).unwrap();
        journal.commit(|_| Ok(())).unwrap();
        let after = disk.after_power_cut();
        let (_journal, report) = open(&after).unwrap();
        assert_eq!((report.commits, report.pages_replayed), (1, 4), "seed {seed}");
        assert_eq!([0, 2, 3, 4].map(|page| word_of(&after.open(1), page)), [1, 1, 2, 0]);
    }
}

#[test]
fn damage_is_told_from_a_crash_and_changes_nothing() {
    let disk = SimulatedDisk::new(1, &[HEADERS + 100 * PAGE, 10 * PAGE]);
    let journal = Journal::create(disk.open(0), JournalOptions::new().checkpoint_at(1.0)).unwrap();
    let file = journal.join(disk.open(1)).unwrap();
    for commit in 1..4 {
        write(&file, commit, 1, commit).unwrap();
        journal.commit(|_| Ok(())).unwrap();
    }
    let crashed = disk.after_power_cut();
    let inspection = Inspection::of(crashed.open(0)).unwrap();
    assert_eq!((inspection.commits, inspection.damaged_at), (3, None));
    // Each record is two pages and each commit record one: the image of the second commit.
    let offset = HEADERS + 4 * PAGE;
    crashed.corrupt(0, offset + 100, |byte| *byte ^= 4);
    let opened = Journal::open(crashed.open(0), JournalOptions::new(), |_| Ok(Box::new(crashed.open(1))));
    let Err(Error::JournalDamaged { offset: at, .. }) = opened else { panic!("damage was not seen") };
    assert_eq!(at, HEADERS + 3 * PAGE);
    assert!(crashed.contents(1).iter().all(|byte| *byte == 0));
}

/// The next opening would take the records for its own, after it has let files be written to without them.
#[test]
fn records_of_a_later_opening_than_the_header_are_damage() {
    let disk = SimulatedDisk::new(1, &[HEADERS + 100 * PAGE, 10 * PAGE]);
    let one_more_life = |journal: Journal, word| {
        let file = journal.join(disk.open(1)).unwrap();
        let header = disk.contents(0)[..HEADERS as usize].to_vec();
        write(&file, 1, 1, word).unwrap();
        journal.commit(|_| Ok(())).unwrap();
        header
    };
    let options = || JournalOptions::new().checkpoint_at(1.0);
    let older = one_more_life(Journal::create(disk.open(0), options()).unwrap(), 1);
    let open = |disk: &SimulatedDisk| Journal::open(disk.open(0), options(), |_| Ok(Box::new(disk.open(1))));
    one_more_life(open(&disk).unwrap().0, 2);

    let crashed = disk.after_power_cut();
    assert_eq!(Inspection::of(crashed.open(0)).unwrap().damaged_at, None);
    for (offset, byte) in (0..).zip(&older) {
        crashed.corrupt(0, offset, |present| *present = *byte);
    }
    assert!(Inspection::of(crashed.open(0)).unwrap().damaged_at.is_some());
    let Err(Error::JournalDamaged { what, .. }) = open(&crashed) else { panic!("it was opened") };
    assert!(what.contains("later opening"), "{what}");
}

#[test]
fn commits_are_not_brought_into_another_file_of_that_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log, copy) = (dir.path().join("data"), dir.path().join("journal"), dir.path().join("copy"));
    let journal = Journal::create_file(&log, HEADERS + 200 * PAGE, JournalOptions::new()).unwrap();
    let file = journal.join(data_file(&path, 10)).unwrap();
    assert!(matches!(journal.join(data_file(&path, 10)), Err(Error::AlreadyMapped { .. })));
    write(&file, 0, 1, 1).unwrap();
    journal.commit(|_| Ok(())).unwrap();
    fs::copy(&log, &copy).unwrap();
    fs::rename(&path, dir.path().join("moved")).unwrap();
    let refused = |what: &str| match Journal::open_file(&copy, JournalOptions::new()) {
        Err(error @ Error::JournaledFile { .. }) => assert!(error.to_string().contains(what), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    };
    refused("missing");
    data_file(&path, 10);
    refused("another one of that name");
    assert_eq!(file_word(&path, 0), 0);
    fs::rename(dir.path().join("moved"), &path).unwrap();
    let (_journal, report) = Journal::open_file(&copy, JournalOptions::new()).unwrap();
    assert_eq!((report.commits, report.files.len()), (1, 1));
    assert_eq!(file_word(&path, 0), 1);
}

#[test]
fn nothing_is_replayed_that_somebody_else_may_have_written() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log, copy) = (dir.path().join("data"), dir.path().join("journal"), dir.path().join("copy"));
    let journal = Journal::create_file(&log, HEADERS + 200 * PAGE, JournalOptions::new()).unwrap();
    let file = journal.join(data_file(&path, 10)).unwrap();
    write(&file, 0, 1, 1).unwrap();
    journal.commit(|_| Ok(())).unwrap();
    fs::copy(&log, &copy).unwrap();
    let refused = |what: &str| match Journal::open_file(&copy, JournalOptions::new()) {
        Err(error @ Error::NotAJournal { .. }) => assert!(error.to_string().contains(what), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    };
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o666)).unwrap();
    refused("anybody may write to it");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give it away, and take it back.
    if chown(&copy, Some(65534), None).is_ok() {
        refused("it belongs to user 65534");
        chown(&copy, Some(0), None).unwrap();
    } else {
        test_depth::skipped("a journal of another user: only root can give one away");
    }
    drop((file, journal));
    let (_journal, report) = Journal::open_file(&copy, JournalOptions::new()).unwrap();
    assert_eq!(report.commits, 1);
}

#[test]
fn a_file_that_has_left_is_its_owners_again() {
    let options = || JournalOptions::new().checkpoint_at(1.0);
    let disk = SimulatedDisk::new(7, &[HEADERS + 100 * PAGE, 10 * PAGE, 10 * PAGE]);
    let journal = Journal::create(disk.open(0), options()).unwrap();
    let [left, other] = [1, 2].map(|file| journal.join(disk.open(file)).unwrap());
    let committed = journal.commit(|commit| {
        commit.freeze();
        // Of the next commit, and in the log before the pages of this one: the log must keep both.
        write(&other, 0, 1, 5).unwrap();
        commit.write(&left, 0, Pages::of(2, 1).bytes())
    });
    assert_eq!(committed.unwrap(), 1);
    drop(left);
    assert!(journal.usage().used_bytes > 0);
    assert_eq!(word_of(&disk.open(1), 1), 1);
    // Whoever has it now changes it, and it joins again.
    write(&disk.open(1), 1, 1, 2).unwrap();
    let left = journal.join(disk.open(1)).unwrap();
    journal.commit(|_| Ok(())).unwrap();
    journal.checkpoint().unwrap();
    assert_eq!([word_of(&left, 0), word_of(&left, 1), word_of(&other, 0)], [1, 2, 5]);
    let crashed = disk.after_power_cut();
    Journal::open(crashed.open(0), options(), |_| unreachable!("there is nothing to replay")).unwrap();
}

/// Threads spill and read pages of their own, others commit and ask for checkpoints, in a log that goes round.
#[test]
fn threads_spill_read_commit_and_checkpoint_at_once() {
    const THREADS: u64 = 4;
    const PAGES: u64 = 40;
    let _watchdog = watchdog("threads_spill_read_commit_and_checkpoint_at_once");
    let dir = tempfile::tempdir().unwrap();
    let options = JournalOptions::new().checkpoint_at(0.2);
    let journal = Journal::create_file(dir.path().join("journal"), HEADERS + 600 * PAGE, options).unwrap();
    let paths = [dir.path().join("a"), dir.path().join("b")];
    let files: Vec<JournaledBacking> =
        paths.iter().map(|path| journal.join(data_file(path, THREADS * PAGES)).unwrap()).collect();
    let stopping = AtomicBool::new(false);
    let last: Vec<Vec<u64>> = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stopping.load(Ordering::SeqCst) {
                    journal.commit(|_| Ok(())).unwrap();
                }
            });
        }
        scope.spawn(|| {
            while !stopping.load(Ordering::SeqCst) {
                journal.checkpoint().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let files = &files;
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let mut words = vec![0; 2 * PAGES as usize];
                    for version in 1..1500 {
                        let (file, page) = (random.below(2), random.below(PAGES));
                        let count = (1 + random.below(20)).min(PAGES - page);
                        let first = thread * PAGES + page;
                        let word = thread << 32 | version;
                        match write(&files[file as usize], first, count, word) {
                            Ok(()) => words[(file * PAGES + page) as usize..][..count as usize].fill(word),
                            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
                        }
                        let (file, page) = (random.below(2), random.below(PAGES));
                        let found = word_of(&files[file as usize], thread * PAGES + page);
                        assert_eq!(found, words[(file * PAGES + page) as usize], "page {page} of thread {thread}");
                    }
                    words
                })
            })
            .collect();
        let last = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        stopping.store(true, Ordering::SeqCst);
        last
    });
    journal.commit(|_| Ok(())).unwrap();
    drop((files, journal));
    for (thread, words) in (0..).zip(&last) {
        for (index, word) in (0..).zip(words) {
            let (file, page) = (index / PAGES, thread * PAGES + index % PAGES);
            assert_eq!(file_word(&paths[file as usize], page), *word, "file {file}, page {page}");
        }
    }
}

const KILLED: &str = "journal::a_killed_process_leaves_a_commit_of_both_files";
const KILL_PAGES: u64 = 60;

/// Every version fills all pages of both files, by spills and by the commit's own pages.
fn commit_for_ever(dir: &Path) -> ! {
    let (journal, report) = Journal::open_file(dir.join("journal"), JournalOptions::new()).unwrap();
    println!("acknowledged {}", report.last_commit);
    let [a, b] = ["a", "b"].map(|name| journal.join(data_file(&dir.join(name), KILL_PAGES)).unwrap());
    for version in file_word(&dir.join("a"), 0) + 1.. {
        for page in 0..KILL_PAGES {
            write(&a, page, 1, version).unwrap();
        }
        journal.commit(|commit| commit.write(&b, 0, Pages::of(KILL_PAGES, version).bytes())).unwrap();
        println!("acknowledged {version}");
    }
    unreachable!()
}

#[test]
fn a_killed_process_leaves_a_commit_of_both_files() {
    const DIR: &str = "VMIO_TEST_DIR";
    if is_child(KILLED) {
        commit_for_ever(Path::new(&std::env::var(DIR).unwrap()));
    }
    let _watchdog = watchdog(KILLED);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("journal");
    drop(Journal::create_file(&log, HEADERS + 400 * PAGE, JournalOptions::new()).unwrap());
    for kill in 0..6 {
        let mut child =
            command(KILLED).env(DIR, dir.path()).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut acknowledged = 0;
        let mut count = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            if let Some((_, version)) = line.unwrap().rsplit_once("acknowledged ") {
                acknowledged = version.parse().unwrap();
                count += 1;
            }
            if count == 8 + kill {
                std::thread::sleep(Duration::from_micros(900 * kill));
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(count >= 8, "the child died by itself");
        let (_journal, _) = Journal::open_file(&log, JournalOptions::new()).unwrap();
        let found = file_word(&dir.path().join("a"), 0);
        assert!((acknowledged..=acknowledged + 1).contains(&found), "{found} after {acknowledged}");
        for name in ["a", "b"] {
            (0..KILL_PAGES).for_each(|page| assert_eq!(file_word(&dir.path().join(name), page), found));
        }
    }
}
