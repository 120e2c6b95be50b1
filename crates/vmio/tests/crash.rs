//! What a sync has acknowledged survives the sudden death of the process: a child that stores and syncs is killed at a
//! random moment, and the file holds, page by page, at least the version that was acknowledged last.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::thread;

use vmio::backing::FileBacking;
use vmio::{Access, Mapping, MappingOptions};

use crate::support::child::{command, is_child};
use crate::support::{PAGE, Random, at, load, read, store, tiny_cache, watchdog};

const NAME: &str = "crash::acknowledged_versions_survive_a_kill";
const FILE: &str = "VMIO_TEST_FILE";
const FIRST_VERSION: &str = "VMIO_TEST_VERSION";
/// More than the cache of 640 pages.
const PAGES: u64 = 1000;
/// The last page ends here.
const TAIL: u64 = 600;
const PAGES_A_ROUND: u64 = 60;
const ROUNDS_OF_KILLS: u64 = 4;

fn open(path: &Path) -> Mapping {
    let backing = FileBacking::open(path, Access::ReadWrite).unwrap();
    Mapping::open(&tiny_cache(), backing, MappingOptions::new()).unwrap()
}

fn pages_of(version: u64) -> impl Iterator<Item = u64> {
    let mut random = Random(version);
    (0..PAGES_A_ROUND).map(move |_| random.below(PAGES))
}

/// Stores version after version, each to some pages, and prints each that is acknowledged. Runs until it is killed.
fn store_and_sync(path: &Path, first: u64) -> ! {
    let map = open(path);
    let noise = map.clone();
    // Unsynced stores and loads elsewhere in the pages, so that pages are evicted in all states.
    thread::spawn(move || {
        let mut random = Random(first);
        loop {
            let page = random.below(PAGES);
            store(&noise, at(page) + 256, load(&noise, at(page) + 256) + 1);
        }
    });
    for version in first.. {
        for page in pages_of(version) {
            store(&map, at(page), version);
            store(&map, at(page) + 512, version);
        }
        match version % 4 {
            0 => map.sync_begin().unwrap().wait().unwrap(),
            1 => map.flush(0..map.len()).unwrap(),
            _ => map.sync().unwrap(),
        }
        println!("acknowledged {version}");
    }
    unreachable!()
}

#[test]
fn acknowledged_versions_survive_a_kill() {
    if is_child(NAME) {
        let path = std::env::var(FILE).unwrap();
        store_and_sync(Path::new(&path), std::env::var(FIRST_VERSION).unwrap().parse().unwrap());
    }
    let _watchdog = watchdog(NAME);
    let file = tempfile::NamedTempFile::new().unwrap();
    let len = (PAGES - 1) * PAGE + TAIL;
    file.as_file().set_len(len).unwrap();
    let mut expected = vec![0; PAGES as usize];
    let mut next = 1;
    for kill in 0..ROUNDS_OF_KILLS {
        let mut child = command(NAME)
            .env(FILE, file.path())
            .env(FIRST_VERSION, next.to_string())
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let wait_for = next + 20 + 37 * kill;
        let mut acknowledged = next - 1;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.by_ref() {
            if let Some(version) = line.unwrap().rsplit_once("acknowledged ").map(|(_, version)| version.parse::<u64>())
            {
                acknowledged = version.unwrap();
            }
            if acknowledged == wait_for {
                // In the middle of whatever it does.
                thread::sleep(std::time::Duration::from_micros(700 * kill));
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(acknowledged >= wait_for, "the child died by itself");
        for version in next..=acknowledged {
            pages_of(version).for_each(|page| expected[page as usize] = version);
        }
        assert_eq!(file.path().metadata().unwrap().len(), len);
        let map = open(file.path());
        for (page, expected) in (0..).zip(&mut expected) {
            let word = |offset: u64| -> u64 {
                u64::from_le_bytes(read(&map, at(page) + offset..at(page) + offset + 8).unwrap().try_into().unwrap())
            };
            for found in [word(0), word(512)] {
                // The version after it may have got through in part.
                let is_later = found == acknowledged + 1 && pages_of(found).any(|other| other == page);
                assert!(found == *expected || is_later, "page {page} holds {found}, not {expected}");
            }
        }
        map.close().unwrap();
        // Start the next life from what is there.
        for page in pages_of(acknowledged + 1) {
            expected[page as usize] = 0;
        }
        next = acknowledged + 2;
        let map = open(file.path());
        for page in pages_of(next - 1) {
            store(&map, at(page), 0);
            store(&map, at(page) + 512, 0);
        }
        map.close().unwrap();
    }
}
