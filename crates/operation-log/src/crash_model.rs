//! Random operations, and a power cut after them that leaves any part of the unacknowledged writes. After recovery every acknowledged write
//! is there whole, and every other one whole or not at all.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{FileIdentity, FileNumber, Log, LogOptions, recover};

const FILES: usize = 3;

#[derive(Clone, Debug)]
enum Operation {
    Write(Write),
    Retire(usize),
    Checkpoint,
}

#[derive(Clone, Debug)]
struct Write {
    file: usize,
    offset: usize,
    content: Content,
    crash: Option<Torn>,
    /// Whether the file has it when the power goes.
    is_in_file: bool,
}

#[derive(Clone, Debug)]
enum Content {
    Fill(u8, usize),
    /// A copy of bytes of the log itself, which look like entries since they are some.
    OfLog(usize, usize),
}

/// The parts that arrived of an unacknowledged write.
#[derive(Clone, Debug)]
struct Torn {
    unit_bytes: usize,
    arrived: Vec<bool>,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let content = prop_oneof![
        (any::<u8>(), 1..700_usize).prop_map(|(fill, len)| Content::Fill(fill, len)),
        (0..100_usize, 1..30_usize).prop_map(|(unit, units)| Content::OfLog(unit, units)),
    ];
    let torn = (prop_oneof![Just(64_usize), Just(512)], vec(any::<bool>(), 16))
        .prop_map(|(unit_bytes, arrived)| Torn { unit_bytes, arrived });
    let write = (0..FILES, 0..1500_usize, content, proptest::option::weighted(0.35, torn), any::<bool>()).prop_map(
        |(file, offset, content, crash, is_in_file)| {
            Operation::Write(Write { file, offset, content, crash, is_in_file })
        },
    );
    let operation = prop_oneof![
        12 => write,
        1 => (0..FILES).prop_map(Operation::Retire),
        1 => Just(Operation::Checkpoint),
    ];
    vec(operation, 1..16)
}

/// A write that the log may replay.
struct Logged {
    file: usize,
    offset: usize,
    len_before: usize,
    data: Vec<u8>,
    is_acknowledged: bool,
}

struct Subject {
    _folder: tempfile::TempDir,
    under: PathBuf,
    log: Log,
    files: Vec<(File, FileNumber)>,
    /// The durable contents of the files, without those of the log.
    bases: Vec<Vec<u8>>,
    logged: Vec<Logged>,
    /// Bytes of the log that a crash takes back.
    lost: Vec<(usize, Vec<u8>)>,
    /// The log as it was when it was begun.
    begun: Vec<u8>,
}

impl Subject {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let under = folder.path().to_owned();
        let log = Log::create(&under, LogOptions::new().capacity_bytes(128 << 10)).unwrap();
        let make = |index: usize| {
            let path = under.join(format!("file{index}"));
            let file = File::create(&path).unwrap();
            let number = log.file(FileIdentity::of(&file).unwrap(), &path).unwrap();
            (file, number)
        };
        let files = (0..FILES).map(make).collect();
        let begun = fs::read(log.path()).unwrap();
        let bases = vec![Vec::new(); FILES];
        Subject { _folder: folder, under, log, files, bases, logged: Vec::new(), lost: Vec::new(), begun }
    }

    fn do_one(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(write) => self.write(write),
            Operation::Retire(file) => {
                let (file, number) = (*file, self.files[*file].1);
                self.settle(file);
                self.log.retire(number, || Ok(())).unwrap();
            }
            Operation::Checkpoint => {
                (0..FILES).for_each(|file| self.settle(file));
                self.log.checkpoint(|_| Ok(())).unwrap();
                self.lost.clear();
                self.begun = fs::read(self.log.path()).unwrap();
            }
        }
    }

    /// Makes a file's acknowledged writes durable in the file itself.
    fn settle(&mut self, file: usize) {
        self.bases[file] = self.contents(file, |logged, _| logged.is_acknowledged);
        self.files[file].0.write_all_at(&self.bases[file], 0).unwrap();
        self.logged.retain(|logged| logged.file != file);
    }

    fn write(&mut self, write: &Write) {
        let data = match write.content {
            Content::Fill(fill, len) => vec![fill; len],
            Content::OfLog(unit, units) => fs::read(self.log.path()).unwrap()[unit * 64..][..units * 64].to_vec(),
        };
        let (file, number) = &self.files[write.file];
        let len_before = self.contents(write.file, |logged, _| logged.is_acknowledged).len();
        let logged_file = self.log.files.get(*number).unwrap();
        let introduces = logged_file.introduction(self.log.generation()).is_some();
        let start = self.log.space.tail() as usize;
        let (front, back) = data.split_at(data.len() / 3);
        let buffers = [IoSlice::new(front), IoSlice::new(back)];
        drop(self.log.write(*number, write.offset as u64, len_before as u64, &buffers).unwrap());
        let end = self.log.space.tail() as usize;
        if let Some(torn) = &write.crash {
            let mut at = start;
            for index in 0.. {
                let next = (at / torn.unit_bytes + 1) * torn.unit_bytes;
                if !torn.arrived[index % torn.arrived.len()] {
                    self.lost.push((at, self.begun[at..next.min(end)].to_vec()));
                }
                at = next;
                if at >= end {
                    break;
                }
            }
            if introduces {
                logged_file.set_introduced(u64::MAX);
            }
        } else if write.is_in_file {
            file.write_all_at(&data, write.offset as u64).unwrap();
        }
        let (file, offset, is_acknowledged) = (write.file, write.offset, write.crash.is_none());
        self.logged.push(Logged { file, offset, len_before, data, is_acknowledged });
    }

    /// A file's contents with the logged writes that `is_chosen` accepts. It gets each write with the number of unacknowledged ones before.
    fn contents(&self, file: usize, is_chosen: impl Fn(&Logged, u32) -> bool) -> Vec<u8> {
        let mut bytes = self.bases[file].clone();
        let mut unacknowledged = 0;
        for logged in self.logged.iter().filter(|logged| logged.file == file) {
            if is_chosen(logged, unacknowledged) {
                let len = bytes.len().max(logged.len_before).max(logged.offset + logged.data.len());
                bytes.resize(len, 0);
                bytes[logged.offset..][..logged.data.len()].copy_from_slice(&logged.data);
            }
            unacknowledged += u32::from(!logged.is_acknowledged);
        }
        bytes
    }

    fn crash_and_recover(self) {
        let mut image = fs::read(self.log.path()).unwrap();
        for (at, bytes) in &self.lost {
            image[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        let path = self.log.path().to_owned();
        let is_removed = self.log.files.are_retired();
        let Subject { _folder, under, log, bases, logged, files, .. } = self;
        drop(log);
        assert_eq!(is_removed, !path.exists());
        if !is_removed {
            File::options().write(true).open(&path).unwrap().write_all_at(&image, 0).unwrap();
        }
        let recovery = recover(&under).unwrap();
        assert!(recovery.logs.iter().all(|log| matches!(log.state, crate::LogState::Recovered)), "{recovery:?}");
        assert!(!path.exists() && recover(&under).unwrap().logs.is_empty());

        let log = Log::create(&under, LogOptions::new().capacity_bytes(64 << 10)).unwrap();
        let begun = Vec::new();
        let subject = Subject { _folder, under, log, files, bases, logged, lost: Vec::new(), begun };
        for file in 0..FILES {
            let found = fs::read(subject.under.join(format!("file{file}"))).unwrap();
            let is_unacknowledged = |logged: &&Logged| logged.file == file && !logged.is_acknowledged;
            let unacknowledged = subject.logged.iter().filter(is_unacknowledged).count();
            let is_possible = (0..1_u32 << unacknowledged).any(|chosen| {
                let is_chosen = |logged: &Logged, index: u32| logged.is_acknowledged || chosen >> index & 1 == 1;
                subject.contents(file, is_chosen) == found
            });
            assert!(is_possible, "file {file} is in no state that the writes lead to");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(test_depth::pick(32, 96)) })]

    #[test]
    fn recovery_keeps_what_was_acknowledged_and_nothing_in_part(operations in operations()) {
        let mut subject = Subject::new();
        for operation in &operations {
            subject.do_one(operation);
        }
        subject.crash_and_recover();
    }
}
