//! Atomic mappings on a simulated disk whose power fails anywhere: the files are found as the last acknowledged commit left
//! them, or one whose acknowledgement was under way. (Which pages a cache evicts when is not the seed's to say: a seed that
//! fails need not fail again.)

use vmio::journal::{Inspection, Journal, JournalOptions, RecordKind};
use vmio::{Advice, Mapping, MappingOptions};

use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{PAGE, Random, at, is_managed, roomy_cache, store, watchdog};

const PAGES: u64 = 30;
/// It goes round a few times.
const JOURNAL_BYTES: u64 = (128 << 10) + 400 * PAGE;

/// The words at the start of each page of both files.
type State = [Vec<u64>; 2];

fn state_of(disk: &SimulatedDisk) -> State {
    [1, 2].map(|file| {
        let bytes = disk.contents(file);
        (0..PAGES).map(|page| u64::from_le_bytes(bytes[at(page) as usize..][..8].try_into().unwrap())).collect()
    })
}

/// How many commits were acknowledged, and how many deltas the power cut has left in the journal.
fn live(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let disk = SimulatedDisk::new(seed, &[JOURNAL_BYTES, PAGES * PAGE, PAGES * PAGE]);
    let journal = Journal::create(disk.open(0), JournalOptions::new().checkpoint_at(0.5)).unwrap();
    let cache = roomy_cache();
    let maps =
        [1, 2].map(|file| Mapping::open(&cache, disk.open(file), MappingOptions::new().atomic(&journal)).unwrap());
    if random.below(3) == 0 {
        disk.fail_one_in(10 + random.below(30));
    }
    disk.cut_power_after(random.below(300));
    let mut present = state_of(&disk);
    let (mut acknowledged, mut attempted, mut commits) = (present.clone(), Vec::new(), 0);
    for step in 1..400 {
        let (file, page) = (random.below(2) as usize, random.below(PAGES));
        match random.below(12) {
            0 | 1 => match maps[file].commit() {
                Ok(_) => {
                    acknowledged = present.clone();
                    attempted.clear();
                    commits += 1;
                }
                Err(_) => attempted.push(present.clone()),
            },
            // What is dirty goes to the journal; it stays, and the call fails, if the disk does.
            2 => drop(maps[file].advise(0..PAGES * PAGE, Advice::DontNeed)),
            // Of a disk that is dead, an absent page is not available.
            _ if disk.has_lost_power() => break,
            _ if maps[file].ensure(at(page)..at(page) + 8).is_ok() => {
                store(&maps[file], at(page), step);
                present[file][page as usize] = step;
            }
            _ => {}
        }
    }
    disk.fail_one_in(0);
    disk.cut_power_after(0);
    let after = disk.after_power_cut();
    drop(maps);
    let open = |file: &vmio::journal::JournaledFile| {
        let number = if file.path.contains("file 1") { 1 } else { 2 };
        Ok(Box::new(after.open(number)) as Box<dyn vmio::backing::Backing>)
    };
    after.cut_power_after(1 << 40);
    let records = Inspection::of(after.open(0)).unwrap().records;
    let deltas =
        records.iter().filter(|record| record.kind == RecordKind::Delta).map(|record| u64::from(record.pages)).sum();
    let opened = Journal::open(after.open(0), JournalOptions::new(), open);
    assert!(opened.is_ok(), "{:?}", opened.err());
    let found = state_of(&after);
    attempted.push(acknowledged);
    assert!(attempted.contains(&found), "seed {seed}: {found:?} is none of {attempted:?}");
    (commits, deltas)
}

#[test]
fn a_power_cut_leaves_a_commit_of_both_mappings() {
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog("a_power_cut_leaves_a_commit_of_both_mappings");
    let seeds = test_depth::seeds(20, 60);
    let cuts = seeds.end - seeds.start;
    let (commits, deltas) = seeds.map(live).fold((0, 0), |sum, life| (sum.0 + life.0, sum.1 + life.1));
    println!("{cuts} power cuts, {commits} commits acknowledged, {deltas} deltas found");
    // How many deltas a cut finds depends on when the disk gets them.
    assert!(test_depth::seeds_are_chosen() || commits > cuts && deltas > 0);
}
