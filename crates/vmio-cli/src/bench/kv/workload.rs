//! The phases of YCSB: which operations, and on which records.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use rand::Rng;
use rand::distr::Distribution as _;
use rand::rngs::SmallRng;
use rand_distr::Zipf;
use serde::{Deserialize, Serialize};

use crate::bench::scatter::Scatter;

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
}

/// How operations are spread over the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// By Zipf's law with the exponent 0.99; popular records are neither neighbours nor put one after the other
    Zipfian,
    /// The same, the newest record most popular
    Latest,
    /// Each as likely as any other
    Uniform,
}

/// When writes are durable; never when they return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When the engine has it so
    None,
    /// Within a second
    Periodic,
}

impl Distribution {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
            Self::Uniform => "uniform",
        }
    }
}

/// What a phase does, in percent.
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
            Self::L => Distribution::Uniform,
            Self::D => Distribution::Latest,
            _ => Distribution::Zipfian,
        }
    }

    /// Whether it changes the store.
    pub fn writes(self) -> bool {
        !matches!(self, Self::C | Self::G)
    }

    /// Whether most of it is scans.
    pub fn scans(self) -> bool {
        matches!(self, Self::E | Self::G)
    }

    /// What is left of a hundred are reads followed by an update.
    fn mix(self) -> Mix {
        let mix = |reads, updates, inserts, scans| Mix { reads, updates, inserts, scans };
        match self {
            Self::L => mix(0, 0, 100, 0),
            Self::A => mix(50, 50, 0, 0),
            Self::B => mix(95, 5, 0, 0),
            Self::C => mix(100, 0, 0, 0),
            Self::D => mix(95, 0, 5, 0),
            Self::E => mix(0, 0, 5, 95),
            Self::F => mix(50, 0, 0, 0),
            Self::G => mix(0, 0, 0, 100),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self:?}")
    }
}

/// An operation on a record by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read it.
    Read(u64),
    /// Put another value.
    Update(u64),
    /// Put one that is not there yet.
    Insert(u64),
    /// Read it, then put another value.
    ReadUpdate(u64),
    /// Read so many from it on.
    Scan(u64, usize),
}

/// How many records each thread has inserted; the numbers of new records go round the threads.
pub struct Inserts {
    before: u64,
    by_thread: Vec<AtomicU64>,
}

impl Inserts {
    /// After so many records that are there.
    pub fn new(before: u64, threads: u32) -> Self {
        Self { before, by_thread: (0..threads).map(|_| AtomicU64::new(0)).collect() }
    }

    /// All records below this are there.
    pub fn records(&self) -> u64 {
        let least = self.by_thread.iter().map(|count| count.load(Ordering::Acquire)).min().unwrap_or(0);
        self.before + least * self.by_thread.len() as u64
    }

    fn next(&self, thread: u32) -> u64 {
        let count = self.by_thread[thread as usize].load(Ordering::Relaxed);
        self.before + count * self.by_thread.len() as u64 + u64::from(thread)
    }

    /// The record that the thread's last insert named is there.
    pub fn done(&self, thread: u32) {
        self.by_thread[thread as usize].fetch_add(1, Ordering::Release);
    }
}

/// The operations of one thread.
pub struct Operations<'a> {
    mix: Mix,
    chooser: Chooser,
    inserts: &'a Inserts,
    thread: u32,
}

enum Chooser {
    Zipfian { ranks: Zipf<f64>, scatter: Scatter },
    Latest { ranks: Zipf<f64> },
    Uniform,
}

/// YCSB's.
const ZIPF_EXPONENT: f64 = 0.99;
const SCAN_RECORDS_MAX: usize = 100;

impl<'a> Operations<'a> {
    /// Of a thread in a phase.
    pub fn new(phase: Phase, distribution: Distribution, inserts: &'a Inserts, thread: u32) -> anyhow::Result<Self> {
        let records = inserts.records().max(1);
        let ranks = || Zipf::new(records as f64, ZIPF_EXPONENT);
        let chooser = match distribution {
            Distribution::Zipfian => Chooser::Zipfian { ranks: ranks()?, scatter: Scatter::new(records) },
            Distribution::Latest => Chooser::Latest { ranks: ranks()? },
            Distribution::Uniform => Chooser::Uniform,
        };
        Ok(Self { mix: phase.mix(), chooser, inserts, thread })
    }

    /// Draws the next one.
    pub fn next(&mut self, random: &mut SmallRng) -> Operation {
        let Mix { reads, updates, inserts, scans } = self.mix;
        let draw = random.random_range(0..100);
        if draw < reads {
            Operation::Read(self.record(random))
        } else if draw < reads + updates {
            Operation::Update(self.record(random))
        } else if draw < reads + updates + inserts {
            Operation::Insert(self.inserts.next(self.thread))
        } else if draw < reads + updates + inserts + scans {
            Operation::Scan(self.record(random), random.random_range(1..=SCAN_RECORDS_MAX))
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
    use rand::SeedableRng;

    use super::*;

    /// How many of 10 000 operations are of each kind.
    fn count(phase: Phase) -> anyhow::Result<[u32; 5]> {
        let inserts = Inserts::new(1000, 2);
        let mut operations = Operations::new(phase, phase.default_distribution(), &inserts, 1)?;
        let mut random = SmallRng::seed_from_u64(1);
        let mut counts = [0; 5];
        for _ in 0..10_000 {
            let (kind, number) = match operations.next(&mut random) {
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
            };
            assert!(number < 1000, "thread 0 has inserted nothing, so nothing beyond is known to be there: {number}");
            counts[kind] += 1;
        }
        Ok(counts)
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
        ] {
            let counts = count(phase)?;
            assert!(counts.iter().zip(percents).all(|(count, percent)| about(*count, percent)), "{phase}: {counts:?}");
        }
        Ok(())
    }

    #[test]
    fn the_latest_are_read_most() -> anyhow::Result<()> {
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
