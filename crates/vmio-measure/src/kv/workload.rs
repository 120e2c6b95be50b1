//! The phases of YCSB: their operations, and the records that these use.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use rand::Rng;
use rand::distr::Distribution as _;
use rand::rngs::SmallRng;
use rand_distr::Zipf;
use serde::{Deserialize, Serialize};

use super::records::is_in_lower_half;
use crate::scatter::Scatter;

/// A phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Phase {
    /// Load: every record is put once
    #[value(name = "L")]
    L,
    /// 50 % reads, 50 % updates
    #[value(name = "A")]
    A,
    /// 95 % reads, 5 % updates
    #[value(name = "B")]
    B,
    /// Reads
    #[value(name = "C")]
    C,
    /// 95 % reads of the latest records, 5 % inserts
    #[value(name = "D")]
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts
    #[value(name = "E")]
    E,
    /// 50 % reads, 50 % reads followed by an update of the same record
    #[value(name = "F")]
    F,
    /// Scans of 1 to 100 records
    #[value(name = "G")]
    G,
    /// Updates alone, spread evenly, which the store's collection or compaction has to keep up with; not YCSB's
    #[value(name = "U")]
    U,
    /// Deletes of the lower half of all keys; not YCSB's
    #[value(skip)]
    #[serde(rename = "delete")]
    Delete,
    /// Seeks to the first key, where half of all keys were deleted; not YCSB's
    #[value(skip)]
    #[serde(rename = "seek")]
    Seek,
    /// Puts a record after all others, finds the first one, and deletes it; not YCSB's
    #[value(skip)]
    #[serde(rename = "queue")]
    Queue,
    /// Deletes the first half of all records in key order, with a seek to the first key after each hundredth; not YCSB's
    #[value(skip)]
    #[serde(rename = "mass-delete")]
    MassDelete,
}

/// The distribution of operations over the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// By Zipf's law with the exponent 0.99; popular records are neither neighbours nor put one after the other
    Zipfian,
    /// The same, the newest record most popular
    Latest,
    /// All records equally likely
    Uniform,
}

/// When writes are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When the engine does it by itself
    None,
    /// Within a second
    Periodic,
    /// When they return; engines with several writers share a flush
    Sync,
}

impl Distribution {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
            Self::Uniform => "uniform",
        }
    }
}

/// The operations of a phase, in percent.
#[derive(Clone, Copy)]
struct Mix {
    reads: u32,
    updates: u32,
    inserts: u32,
    scans: u32,
}

impl Phase {
    /// YCSB's own distribution.
    pub fn default_distribution(self) -> Distribution {
        match self {
            Self::L | Self::U | Self::Delete | Self::Seek | Self::Queue | Self::MassDelete => Distribution::Uniform,
            Self::D => Distribution::Latest,
            _ => Distribution::Zipfian,
        }
    }

    /// Whether the phase changes the store.
    pub fn writes(self) -> bool {
        !matches!(self, Self::C | Self::G | Self::Seek)
    }

    /// Whether the phase gets a warm-up. Phases whose operations can run only once do not.
    pub fn warms_up(self) -> bool {
        !matches!(self, Self::L | Self::Delete | Self::MassDelete)
    }

    /// The part of its operations that put a record.
    pub fn puts(self) -> f64 {
        if self == Self::Queue {
            return 1.0;
        }
        self.mix().map_or(0.0, |mix| f64::from(100 - mix.reads - mix.scans) / 100.0)
    }

    /// Whether the phase reads single records.
    pub fn reads(self) -> bool {
        self.mix().is_some_and(|mix| mix.reads > 0)
    }

    /// Whether the phase is mostly scans.
    pub fn scans(self) -> bool {
        matches!(self, Self::E | Self::G | Self::Seek)
    }

    /// The mix of a phase; the rest to a hundred are reads followed by an update. `None` for phases that are no mix.
    fn mix(self) -> Option<Mix> {
        let mix = |reads, updates, inserts, scans| Some(Mix { reads, updates, inserts, scans });
        match self {
            Self::L => mix(0, 0, 100, 0),
            Self::A => mix(50, 50, 0, 0),
            Self::B => mix(95, 5, 0, 0),
            Self::C => mix(100, 0, 0, 0),
            Self::D => mix(95, 0, 5, 0),
            Self::E => mix(0, 0, 5, 95),
            Self::F => mix(50, 0, 0, 0),
            Self::G => mix(0, 0, 0, 100),
            Self::U => mix(0, 100, 0, 0),
            Self::Delete | Self::Seek | Self::Queue | Self::MassDelete => None,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delete => out.write_str("delete"),
            Self::Seek => out.write_str("seek"),
            Self::Queue => out.write_str("queue"),
            Self::MassDelete => out.write_str("mass-delete"),
            ycsb => write!(out, "{ycsb:?}"),
        }
    }
}

/// An operation on a record by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read it.
    Read(u64),
    /// Look for a record that never exists.
    ReadAbsent(u64),
    /// Put another value.
    Update(u64),
    /// Put a record that does not exist yet.
    Insert(u64),
    /// Read it, then put another value.
    ReadUpdate(u64),
    /// Read this many records from it on.
    Scan(u64, usize),
    /// Delete it.
    Delete(u64),
    /// Find the first record.
    Seek,
    /// Find the first record, which must be this one.
    SeekTo(u64),
    /// Put a record after all others, and delete the first, which must be this one.
    Turn(u64),
}

/// The number of records that each thread has inserted; the threads take turns in the numbers of new records.
pub struct Inserts {
    before: u64,
    by_thread: Vec<AtomicU64>,
}

impl Inserts {
    /// After `before` existing records.
    pub fn new(before: u64, threads: u32) -> Self {
        Self { before, by_thread: (0..threads).map(|_| AtomicU64::new(0)).collect() }
    }

    /// All records below this exist.
    pub fn records(&self) -> u64 {
        let least = self.by_thread.iter().map(|count| count.load(Ordering::Acquire)).min().unwrap_or(0);
        self.before + least * self.by_thread.len() as u64
    }

    /// The records that a thread has to insert to catch up with the thread with the most: then [`Self::records`] leaves out no existing
    /// record.
    pub fn missing(&self, thread: u32) -> impl Iterator<Item = u64> + '_ {
        let most = self.by_thread.iter().map(|count| count.load(Ordering::Acquire)).max().unwrap_or(0);
        let has_less = move || self.by_thread[thread as usize].load(Ordering::Relaxed) < most;
        std::iter::from_fn(move || has_less().then(|| self.next(thread)))
    }

    fn next(&self, thread: u32) -> u64 {
        let count = self.by_thread[thread as usize].load(Ordering::Relaxed);
        self.before + count * self.by_thread.len() as u64 + u64::from(thread)
    }

    /// The record of the thread's last insert exists.
    pub fn done(&self, thread: u32) {
        self.by_thread[thread as usize].fetch_add(1, Ordering::Release);
    }
}

/// The operations of one thread.
pub struct Operations<'a> {
    work: Work,
    chooser: Chooser,
    inserts: &'a Inserts,
    thread: u32,
    /// Percentage of reads that look for absent records.
    absent_percent: u32,
    /// Records of a scan, at most.
    scan_records: u64,
}

/// No record has this number or a greater one.
const FIRST_ABSENT: u64 = 1 << 63;

enum Work {
    Mixed(Mix),
    /// Each record in turn, from this number on.
    Deletes(u64),
    Seeks,
    /// Takes records from the front, from this number on.
    Queue(u64),
    /// Each record of the first half in turn, from this number on.
    DeletesInOrder {
        next: u64,
        has_sought: bool,
    },
}

/// Deletes between two seeks, in order.
const DELETES_A_SEEK: u64 = 100;

enum Chooser {
    Zipfian { ranks: Zipf<f64>, scatter: Scatter },
    Latest { ranks: Zipf<f64> },
    Uniform,
}

/// YCSB's.
const ZIPF_EXPONENT: f64 = 0.99;
/// Records of a scan, at most: YCSB's.
pub const SCAN_RECORDS: u64 = 100;

impl<'a> Operations<'a> {
    /// The operations of a thread in a phase.
    pub fn new(phase: Phase, distribution: Distribution, inserts: &'a Inserts, thread: u32) -> anyhow::Result<Self> {
        let records = inserts.records().max(1);
        let ranks = || Zipf::new(records as f64, ZIPF_EXPONENT);
        let chooser = match distribution {
            Distribution::Zipfian => Chooser::Zipfian { ranks: ranks()?, scatter: Scatter::new(records) },
            Distribution::Latest => Chooser::Latest { ranks: ranks()? },
            Distribution::Uniform => Chooser::Uniform,
        };
        let work = match phase.mix() {
            Some(mix) => Work::Mixed(mix),
            None if phase == Phase::Delete => Work::Deletes(u64::from(thread)),
            None if phase == Phase::Queue => Work::Queue(0),
            None if phase == Phase::MassDelete => Work::DeletesInOrder { next: 0, has_sought: true },
            None => Work::Seeks,
        };
        Ok(Self { work, chooser, inserts, thread, absent_percent: 0, scan_records: SCAN_RECORDS })
    }

    /// The same, with a percentage of reads that look for absent records, some of them more often than others as well.
    pub fn with_absent(self, percent: u32) -> Self {
        Self { absent_percent: percent, ..self }
    }

    /// The same, with scans of at most `records` records.
    pub fn with_scans_of(self, records: u64) -> Self {
        Self { scan_records: records, ..self }
    }

    /// Draws the next operation; `None` when nothing is left to do.
    pub fn next(&mut self, random: &mut SmallRng) -> Option<Operation> {
        match &mut self.work {
            Work::Mixed(mix) => {
                let mix = *mix;
                Some(self.mixed(mix, random))
            }
            Work::Deletes(next) => {
                let threads = self.inserts.by_thread.len() as u64;
                let records = self.inserts.records();
                while *next < records {
                    let number = *next;
                    *next += threads;
                    if is_in_lower_half(number) {
                        return Some(Operation::Delete(number));
                    }
                }
                None
            }
            Work::Seeks => Some(Operation::Seek),
            Work::Queue(first) => {
                *first += 1;
                Some(Operation::Turn(*first - 1))
            }
            Work::DeletesInOrder { next, has_sought } => {
                if !*has_sought {
                    *has_sought = true;
                    return Some(Operation::SeekTo(*next));
                }
                let deleted = *next;
                (deleted < self.inserts.records() / 2).then(|| {
                    *next += 1;
                    *has_sought = !next.is_multiple_of(DELETES_A_SEEK);
                    Operation::Delete(deleted)
                })
            }
        }
    }

    fn mixed(&self, mix: Mix, random: &mut SmallRng) -> Operation {
        let Mix { reads, updates, inserts, scans } = mix;
        let draw = random.random_range(0..100);
        if draw < reads {
            let record = self.record(random);
            let is_absent = self.absent_percent > 0 && random.random_range(0..100) < self.absent_percent;
            if is_absent { Operation::ReadAbsent(FIRST_ABSENT + record) } else { Operation::Read(record) }
        } else if draw < reads + updates {
            Operation::Update(self.record(random))
        } else if draw < reads + updates + inserts {
            Operation::Insert(self.inserts.next(self.thread))
        } else if draw < reads + updates + inserts + scans {
            Operation::Scan(self.record(random), random.random_range(1..=self.scan_records) as usize)
        } else {
            Operation::ReadUpdate(self.record(random))
        }
    }

    fn record(&self, random: &mut SmallRng) -> u64 {
        match &self.chooser {
            Chooser::Zipfian { ranks, scatter } => scatter.place_of(ranks.sample(random) as u64 - 1),
            Chooser::Latest { ranks } => {
                let records = self.inserts.records();
                records - (ranks.sample(random) as u64).min(records)
            }
            Chooser::Uniform => random.random_range(0..self.inserts.records()),
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, bail};
    use rand::SeedableRng;

    use super::*;

    /// The number of operations of each kind among 10 000.
    fn count(phase: Phase) -> anyhow::Result<[u32; 5]> {
        let inserts = Inserts::new(1000, 2);
        let mut operations = Operations::new(phase, phase.default_distribution(), &inserts, 1)?;
        let mut random = SmallRng::seed_from_u64(1);
        let mut counts = [0; 5];
        for _ in 0..10_000 {
            let (kind, number) = match operations.next(&mut random).context("there is more")? {
                Operation::Read(number) => (0, number),
                Operation::Update(number) => (1, number),
                Operation::Insert(number) => {
                    assert!(number >= 1000 && number % 2 == 1, "{number}");
                    inserts.done(1);
                    (2, 0)
                }
                Operation::ReadUpdate(number) => (3, number),
                Operation::Scan(number, records) => {
                    assert!((1..=100).contains(&records));
                    (4, number)
                }
                other => bail!("{other:?} is not YCSB's"),
            };
            assert!(number < 1000, "thread 0 has inserted nothing, so nothing beyond is known to be there: {number}");
            counts[kind] += 1;
        }
        Ok(counts)
    }

    #[test]
    fn a_load_that_is_stopped_is_evened_out() {
        let inserts = Inserts::new(0, 3);
        (0..5).for_each(|_| inserts.done(1));
        inserts.done(2);
        assert_eq!(inserts.records(), 0);
        let of_thread = |thread| inserts.missing(thread).inspect(|_| inserts.done(thread)).collect::<Vec<_>>();
        assert_eq!(of_thread(0), [0, 3, 6, 9, 12]);
        assert!(of_thread(1).is_empty());
        assert_eq!(of_thread(2), [5, 8, 11, 14]);
        assert_eq!(inserts.records(), 15);
    }

    #[test]
    fn phases_are_mixed_as_ycsb_says() -> anyhow::Result<()> {
        let about = |count: u32, percent: u32| count.abs_diff(percent * 100) < 200;
        for (phase, percents) in [
            (Phase::L, [0, 0, 100, 0, 0]),
            (Phase::A, [50, 50, 0, 0, 0]),
            (Phase::B, [95, 5, 0, 0, 0]),
            (Phase::C, [100, 0, 0, 0, 0]),
            (Phase::D, [95, 0, 5, 0, 0]),
            (Phase::E, [0, 0, 5, 0, 95]),
            (Phase::F, [50, 0, 0, 50, 0]),
            (Phase::G, [0, 0, 0, 0, 100]),
            (Phase::U, [0, 100, 0, 0, 0]),
        ] {
            let counts = count(phase)?;
            assert!(counts.iter().zip(percents).all(|(count, percent)| about(*count, percent)), "{phase}: {counts:?}");
        }
        Ok(())
    }

    #[test]
    fn the_given_percentage_of_reads_finds_nothing() -> anyhow::Result<()> {
        let inserts = Inserts::new(1000, 1);
        let operations = Operations::new(Phase::B, Distribution::Zipfian, &inserts, 0)?.with_absent(30);
        let (mut operations, mut random) = (operations, SmallRng::seed_from_u64(1));
        let (mut absent, mut there) = (0_u32, 0_u32);
        for _ in 0..10_000 {
            match operations.next(&mut random).context("there is more")? {
                Operation::ReadAbsent(number) => {
                    assert!((FIRST_ABSENT..FIRST_ABSENT + 1000).contains(&number), "{number}");
                    absent += 1;
                }
                Operation::Read(number) | Operation::Update(number) => {
                    assert!(number < 1000, "{number}");
                    there += 1;
                }
                other => bail!("{other:?} is not of the phase"),
            }
        }
        assert!(absent.abs_diff(2850) < 200 && absent + there == 10_000, "{absent}");
        Ok(())
    }

    #[test]
    fn scans_have_the_given_length() -> anyhow::Result<()> {
        let inserts = Inserts::new(1000, 1);
        let mut random = SmallRng::seed_from_u64(1);
        let mut operations = Operations::new(Phase::G, Distribution::Uniform, &inserts, 0)?.with_scans_of(5000);
        let mut longest = 0;
        for _ in 0..1000 {
            let Some(Operation::Scan(_, records)) = operations.next(&mut random) else { bail!("G has scans alone") };
            assert!((1..=5000).contains(&records), "{records}");
            longest = longest.max(records);
        }
        assert!(longest > 4000, "{longest}");
        Ok(())
    }

    #[test]
    fn phases_other_than_reads_and_scans_put() {
        let puts = [Phase::L, Phase::A, Phase::B, Phase::C, Phase::E, Phase::F, Phase::Delete].map(Phase::puts);
        assert_eq!(puts, [1.0, 0.5, 0.05, 0.0, 0.05, 0.5, 0.0]);
    }

    #[test]
    fn threads_delete_the_lower_half_once() -> anyhow::Result<()> {
        let inserts = Inserts::new(1001, 2);
        let mut random = SmallRng::seed_from_u64(1);
        let mut deleted = Vec::new();
        for thread in 0..2 {
            let mut operations = Operations::new(Phase::Delete, Distribution::Uniform, &inserts, thread)?;
            while let Some(operation) = operations.next(&mut random) {
                let Operation::Delete(number) = operation else { bail!("{operation:?}") };
                deleted.push(number);
            }
        }
        deleted.sort_unstable();
        assert_eq!(deleted, (0..1001).filter(|number| is_in_lower_half(*number)).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn the_first_half_is_deleted_in_order_with_seeks_to_the_first_remaining_key() -> anyhow::Result<()> {
        let inserts = Inserts::new(1000, 1);
        let mut operations = Operations::new(Phase::MassDelete, Distribution::Uniform, &inserts, 0)?;
        let mut random = SmallRng::seed_from_u64(1);
        let all: Vec<Operation> = std::iter::from_fn(|| operations.next(&mut random)).collect();
        let expected = (0..500).flat_map(|number| {
            let seek = (number % 100 == 99).then_some(Operation::SeekTo(number + 1));
            [Some(Operation::Delete(number)), seek].into_iter().flatten()
        });
        assert_eq!(all, expected.collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn popular_records_are_read_most_and_are_scattered() -> anyhow::Result<()> {
        let inserts = Inserts::new(10_000, 1);
        let operations = Operations::new(Phase::C, Distribution::Zipfian, &inserts, 0)?;
        let mut random = SmallRng::seed_from_u64(1);
        let mut counts = vec![0_u32; 10_000];
        (0..100_000).for_each(|_| counts[operations.record(&mut random) as usize] += 1);
        let mut popular: Vec<usize> = (0..10_000).collect();
        popular.sort_by_key(|number| std::cmp::Reverse(counts[*number]));
        // The first of ten thousand has a share of 1 by the sum of i^-0.99: a tenth, about.
        assert!((9_000..11_500).contains(&counts[popular[0]]), "{}", counts[popular[0]]);
        let ratio = f64::from(counts[popular[0]]) / f64::from(counts[popular[9]]);
        assert!((8.0..12.0).contains(&ratio), "the tenth is a tenth as popular: {ratio}");
        let are_neighbours = |pair: &[usize]| pair[0].abs_diff(pair[1]) < 100;
        assert!(popular[..100].windows(2).filter(|pair| are_neighbours(pair)).count() < 10);
        Ok(())
    }

    #[test]
    fn the_latest_records_are_read_most() -> anyhow::Result<()> {
        let inserts = Inserts::new(10_000, 1);
        let operations = Operations::new(Phase::D, Distribution::Latest, &inserts, 0)?;
        let mut random = SmallRng::seed_from_u64(1);
        let latest = (0..10_000).filter(|_| operations.record(&mut random) >= 9900).count();
        assert!(latest > 4000, "{latest} of 10000 reads were of the latest hundredth");
        inserts.done(0);
        assert_eq!(inserts.records(), 10_001);
        assert!((0..10_000).any(|_| operations.record(&mut random) == 10_000));
        Ok(())
    }
}
