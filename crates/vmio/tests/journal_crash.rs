//! A journal on a simulated disk whose power fails anywhere, also amid recovery: the files are found exactly as the last
//! acknowledged commit left them, or as one whose acknowledgement was under way.
//!
//! Each seed is a life; a failure prints its seed, and `VMIO_TEST_SEEDS=17..18` lives that one alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vmio::backing::Backing;
use vmio::journal::{Journal, JournalOptions, JournaledBacking, RecoveryReport};

use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{PAGE, Random, watchdog};

const JOURNAL: usize = 0;
const FILES: [usize; 2] = [1, 2];
/// Two headers and a log of 80 pages: it goes round many times.
const JOURNAL_BYTES: u64 = (128 << 10) + 80 * PAGE;
const LENGTHS: [u64; 2] = [19 * PAGE, 11 * PAGE + 700];
const ROUNDS: u64 = 4;
const STEPS: u64 = 60;

/// What both files hold.
type State = [Vec<u8>; 2];

struct Life {
    disk: SimulatedDisk,
    random: Random,
    journal: Journal,
    files: Vec<JournaledBacking>,
    /// The state that the program sees.
    present: State,
    /// The last one that was acknowledged.
    acknowledged: State,
    /// Those that came after it and were not.
    attempted: Vec<State>,
    /// Makes every page's contents unique.
    versions: u64,
    /// The most pages of a write. With 1, records of one life often fit between those of the life before.
    pages_max: u64,
    commits: u64,
    /// Pages of which a commit wrote what had changed.
    changes: u64,
}

/// Bytes that are stored to a file at an offset.
type Stored = (usize, u64, Vec<u8>);

fn options() -> JournalOptions {
    // Nothing in the background: the seed alone decides.
    JournalOptions::new().checkpoint_at(1.0).commit_reserve(0.3)
}

fn file_number(name: &str) -> usize {
    FILES.into_iter().find(|file| name == format!("file {file} of the simulated disk")).unwrap()
}

fn open(disk: &SimulatedDisk) -> vmio::Result<(Journal, RecoveryReport)> {
    Journal::open(disk.open(JOURNAL), options(), |file| Ok(Box::new(disk.open(file_number(&file.path)))))
}

impl Life {
    fn new(seed: u64) -> Self {
        let disk = SimulatedDisk::new(seed, &[JOURNAL_BYTES, LENGTHS[0], LENGTHS[1]]);
        let journal = Journal::create(disk.open(JOURNAL), options()).unwrap();
        let state = FILES.map(|file| disk.contents(file));
        Life {
            random: Random(seed ^ 0x5eed),
            files: FILES.map(|file| journal.join(disk.open(file)).unwrap()).into(),
            disk,
            journal,
            present: state.clone(),
            acknowledged: state,
            attempted: Vec::new(),
            versions: 0,
            pages_max: 4,
            commits: 0,
            changes: 0,
        }
    }

    /// A few bytes of a page, more often than not the first of the file.
    fn new_change(&mut self) -> Stored {
        let file = self.random.below(2) as usize;
        let len = self.present[file].len() as u64;
        let page = if self.random.below(3) < 2 { 0 } else { self.random.below(len.div_ceil(PAGE)) };
        let start = page * PAGE + self.random.below(PAGE.min(len - page * PAGE));
        self.versions += 1;
        let bytes = self.versions.to_le_bytes().repeat(1 + self.random.below(40) as usize);
        let end = len.min((page + 1) * PAGE).min(start + bytes.len() as u64);
        (file, start, bytes[..(end - start) as usize].to_vec())
    }

    /// Unique contents for some neighbouring pages of a file.
    fn new_pages(&mut self) -> Stored {
        let file = self.random.below(2) as usize;
        let len = self.present[file].len() as u64;
        let first = self.random.below(len.div_ceil(PAGE));
        let pages = (1 + self.random.below(self.pages_max)).min(len.div_ceil(PAGE) - first);
        let mut bytes = Vec::new();
        for page in first..first + pages {
            self.versions += 1;
            let words = (0..PAGE / 8).map(|word| self.versions << 32 | page << 16 | word);
            bytes.extend(words.flat_map(u64::to_le_bytes));
        }
        bytes.truncate((len - first * PAGE) as usize);
        (file, first * PAGE, bytes)
    }

    fn put(state: &mut State, (file, offset, bytes): &Stored) {
        state[*file][*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn spill(&mut self) {
        let pages = self.new_pages();
        if self.files[pages.0].write_at(pages.1, &pages.2).is_ok() {
            Self::put(&mut self.present, &pages);
        }
    }

    /// Some pages are written by the commit, and others, of the next one, are spilled while it is under way.
    fn commit(&mut self) {
        let count = self.random.below(4);
        let batch: Vec<_> = (0..count).map(|_| self.new_pages()).collect();
        let changes: Vec<_> = (0..self.random.below(5)).map(|_| self.new_change()).collect();
        let later: Vec<_> = (0..self.random.below(3)).map(|_| self.new_pages()).collect();
        let spills_first = self.random.below(2) == 0;
        let ticket_is_held = self.random.below(2) == 0;
        let Life { journal, files, present, changes: changed, .. } = self;
        let mut committed = present.clone();
        let mut is_complete = true;
        let mut after = BTreeMap::new();
        let early = later.first().filter(|_| ticket_is_held);
        let result = journal.commit(|commit| {
            // Copied before the line is drawn, and written after it.
            let ticket = early.map(|pages| (files[pages.0].ticket(), pages));
            commit.freeze();
            if let Some((ticket, pages)) = ticket
                && files[pages.0].spill(&ticket, pages.1, &pages.2).is_ok()
            {
                Self::put(&mut committed, pages);
                Self::put(present, pages);
            }
            let mut spill = |present: &mut State| {
                for (index, pages) in later.iter().enumerate().skip(usize::from(ticket_is_held)) {
                    // A page is in flight once at a time: what the commit writes is not spilled meanwhile.
                    let numbers = |other: &Stored| other.1 / PAGE..(other.1 + other.2.len() as u64).div_ceil(PAGE);
                    let overlaps = |other: &Stored| {
                        let (a, b) = (numbers(other), numbers(pages));
                        other.0 == pages.0 && a.start < b.end && b.start < a.end
                    };
                    if !batch.iter().chain(&changes).any(overlaps) && files[pages.0].write_at(pages.1, &pages.2).is_ok()
                    {
                        Self::put(present, pages);
                        after.insert(index, ());
                    }
                }
            };
            if spills_first {
                spill(present);
            }
            for pages in &batch {
                let written = commit.write(&files[pages.0], pages.1, &pages.2);
                is_complete &= written.is_ok();
                written?;
                Self::put(&mut committed, pages);
                Self::put(present, pages);
            }
            for change in &changes {
                let page = change.1 / PAGE;
                let before = page_of(present, change.0, page);
                let mut after = present.clone();
                Self::put(&mut after, change);
                let written = commit.write_changes(&files[change.0], page, &before, &page_of(&after, change.0, page));
                is_complete &= written.is_ok();
                written?;
                Self::put(&mut committed, change);
                *present = after;
                *changed += 1;
            }
            if !spills_first {
                spill(present);
            }
            Ok(())
        });
        match result {
            Ok(_) => {
                self.acknowledged = committed;
                self.attempted.clear();
                self.commits += 1;
            }
            Err(_) => {
                if is_complete {
                    self.attempted.push(committed);
                }
                // What had changed of pages may not have reached the journal.
                changes.iter().for_each(|change| self.look_at(change));
            }
        }
    }

    /// Takes a page as the journal has it.
    fn look_at(&mut self, change: &Stored) {
        let (file, page) = (change.0, change.1 / PAGE * PAGE);
        let end = (page + PAGE).min(self.present[file].len() as u64);
        let mut buffer = vec![0; PAGE as usize];
        if self.files[file].read_at(page, &mut buffer).is_ok() {
            Self::put(&mut self.present, &(file, page, buffer[..(end - page) as usize].to_vec()));
        }
    }

    fn grow(&mut self) {
        let file = self.random.below(2) as usize;
        let len = self.present[file].len() as u64 + self.random.below(2 * PAGE);
        if len < 40 * PAGE && self.files[file].set_len(len).is_ok() {
            self.present[file].resize(len as usize, 0);
        }
    }

    /// A file leaves and joins again: it forgets what was not committed.
    fn rejoin(&mut self) -> bool {
        let file = self.random.below(2) as usize;
        drop(self.files.remove(file));
        let rejoined = self.journal.join(self.disk.open(FILES[file]));
        let Ok(rejoined) = rejoined else { return false };
        self.files.insert(file, rejoined);
        self.present[file] = self.acknowledged[file].clone();
        self.check_reads(file);
        true
    }

    fn check_reads(&mut self, file: usize) {
        let present = &self.present[file];
        let pages = (present.len() as u64).div_ceil(PAGE);
        let first = self.random.below(pages);
        let count = 1 + self.random.below(pages - first);
        let mut buffer = vec![0xa5; (count * PAGE) as usize];
        let Ok(read) = self.files[file].read_at(first * PAGE, &mut buffer) else { return };
        let end = present.len().min(((first + count) * PAGE) as usize);
        assert!(buffer[..read] == present[(first * PAGE) as usize..end], "file {file} reads wrong from page {first}");
    }

    /// Lives until the power fails, or to the end of its steps.
    fn live(&mut self) {
        for _ in 0..STEPS {
            if self.disk.has_lost_power() {
                break;
            }
            match self.random.below(20) {
                0..7 => self.spill(),
                7..12 => self.commit(),
                12..14 => drop(self.journal.checkpoint()),
                14 => self.grow(),
                15 if !self.rejoin() => break,
                _ => {
                    let file = self.random.below(2) as usize;
                    self.check_reads(file);
                }
            }
        }
    }

    /// The power fails; what is found must be a state that was acknowledged, or nearly.
    fn die_and_recover(self, recovery_dies: bool) -> Self {
        let Life {
            mut disk,
            mut random,
            journal,
            files,
            acknowledged,
            attempted,
            versions,
            pages_max,
            commits,
            changes,
            ..
        } = self;
        disk.fail_one_in(0);
        disk.cut_power_after(0);
        disk = disk.after_power_cut();
        drop((files, journal));
        let mut deaths = if recovery_dies { 1 + random.below(3) } else { 0 };
        let (journal, _report) = loop {
            if deaths > 0 {
                disk.cut_power_after(random.below(24));
            }
            match open(&disk) {
                Ok(opened) if !disk.has_lost_power() => break opened,
                Err(error) if !disk.has_lost_power() => panic!("it cannot be opened: {error:?}"),
                _ => {
                    deaths -= 1;
                    disk = disk.after_power_cut();
                }
            }
        };
        disk.cut_power_after(1 << 40);
        let found = FILES.map(|file| disk.contents(file));
        let mut states = attempted;
        states.push(acknowledged);
        let difference = |state: &State| {
            (0..2)
                .filter(|file| state[*file] != found[*file])
                .map(|file| {
                    let byte = state[file].iter().zip(&found[file]).position(|(a, b)| a != b);
                    format!("file {file} of {} bytes for {}, from byte {byte:?}", found[file].len(), state[file].len())
                })
                .collect::<Vec<_>>()
        };
        assert!(
            states.contains(&found),
            "what is found is none of the states that it may be: {:?}",
            states.iter().map(difference).collect::<Vec<_>>()
        );
        // Nothing is left to do.
        drop(journal);
        let (journal, report) = open(&disk).unwrap();
        assert_eq!((report.commits, report.pages_replayed), (0, 0));
        assert!(FILES.map(|file| disk.contents(file)) == found);
        Life {
            files: FILES.map(|file| journal.join(disk.open(file)).unwrap()).into(),
            disk,
            random,
            journal,
            present: found.clone(),
            acknowledged: found,
            attempted: Vec::new(),
            versions,
            pages_max,
            commits,
            changes,
        }
    }
}

/// A page of a file, with zeros behind the end.
fn page_of(state: &State, file: usize, page: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = state[file][(page * PAGE) as usize..].iter().take(PAGE as usize).copied().collect();
    bytes.resize(PAGE as usize, 0);
    bytes
}

/// Lives, dies and is recovered a few times; how many commits were acknowledged, and how many changes of pages written.
fn run(seed: u64) -> (u64, u64) {
    let mut life = Life::new(seed);
    let lives_are_short = life.random.below(3) == 0;
    if lives_are_short {
        life.pages_max = 1;
    }
    for round in 0..if lives_are_short { 4 * ROUNDS } else { ROUNDS } {
        // Some lives meet failing writes and flushes as well.
        if life.random.below(3) == 0 {
            life.disk.fail_one_in(5 + 10 * life.random.below(4));
        }
        if round % 4 < 3 {
            life.disk.cut_power_after(life.random.below(if lives_are_short { 16 } else { 160 }));
        }
        life.live();
        let recovery_dies = life.random.below(2) == 0;
        life = life.die_and_recover(recovery_dies);
    }
    (life.commits, life.changes)
}

#[test]
fn every_power_cut_leaves_a_commit() {
    let seeds = test_depth::seeds(120, 800);
    let (mut commits, mut changes) = (0, 0);
    let lives = seeds.end - seeds.start;
    for seed in seeds {
        let _watchdog = watchdog("every_power_cut_leaves_a_commit");
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(counts) => {
                commits += counts.0;
                changes += counts.1;
            }
            Err(panic) => {
                eprintln!(
                    "seed {seed} fails: VMIO_TEST_SEEDS={seed}..{} make test CRATE=vmio TEST=journal_crash",
                    seed + 1
                );
                resume_unwind(panic);
            }
        }
    }
    println!(
        "{lives} seeds, {} power cuts and more, {commits} commits acknowledged, {changes} changes",
        lives * ROUNDS
    );
    let is_some = commits > lives && changes > commits;
    assert!(is_some || test_depth::seeds_are_chosen(), "hardly a commit came through: {commits}, {changes} changes");
}
