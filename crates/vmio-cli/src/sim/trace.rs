//! A trace: the pages that a program touched, in order.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use vmio_measure::pattern::{OffsetStream, Pattern};

use super::formats::{self, PAGE_BYTES};

/// The format of a trace's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// A page number on each line, as `vmio trace` writes; anything may follow a comma
    Pages,
    /// Comma-separated: time, host, disk, Read or Write, offset and length in bytes, response time (MSR Cambridge)
    Msr,
    /// Records of 24 bytes: time u32, object u64, size u32, next access i64 (libCacheSim's oracleGeneral, uncompressed)
    OracleGeneral,
}

/// Pages in the order in which they were touched.
#[derive(Debug, Default)]
pub struct Trace {
    /// For each access, the number of its page in the order of first accesses.
    pub accesses: Vec<u32>,
    /// The pages of the file by that number.
    pub pages: Vec<u64>,
    numbers: HashMap<u64, u32>,
    /// Whether it has objects, whose neighbours are unknown.
    is_of_objects: bool,
}

impl Trace {
    fn push(&mut self, page: u64) {
        let next = self.pages.len() as u32;
        let number = *self.numbers.entry(page).or_insert(next);
        if number == next {
            self.pages.push(page);
        }
        self.accesses.push(number);
    }

    /// Reads a trace.
    pub fn read(path: &Path, format: TraceFormat) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
        let file = BufReader::with_capacity(1 << 20, file);
        let mut trace = Self { is_of_objects: format == TraceFormat::OracleGeneral, ..Self::default() };
        let touch = |page| trace.push(page);
        let read = match format {
            TraceFormat::Pages => formats::pages(file, touch),
            TraceFormat::Msr => formats::msr(file, touch),
            TraceFormat::OracleGeneral => formats::oracle_general(file, touch),
        };
        read.with_context(|| format!("cannot read the trace {}", path.display()))?;
        ensure!(!trace.accesses.is_empty(), "the trace {} is empty", path.display());
        Ok(trace)
    }

    /// The offset of each access's page in the file, in bytes. Objects lie side by side.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        self.accesses.iter().map(|number| {
            let page = if self.is_of_objects { u64::from(*number) } else { self.pages[*number as usize] };
            PAGE_BYTES.saturating_mul(page)
        })
    }

    /// Generates a trace.
    pub fn synthetic(kind: Synthetic, pages: u64, accesses: usize, seed: u64) -> anyhow::Result<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut trace = Self::default();
        match kind {
            Synthetic::Pattern(pattern) => {
                let mut stream = OffsetStream::new(pattern, pages, 0, 1)?;
                (0..accesses).for_each(|_| trace.push(stream.next_offset(&mut random) / PAGE_BYTES));
            }
            Synthetic::ScanAndHot => {
                // A tenth of the pages gets half of the accesses, while a scan of the rest goes on.
                let hot = (pages / 10).max(1);
                let mut next = hot;
                for _ in 0..accesses {
                    if random.random_bool(0.5) || hot == pages {
                        trace.push(random.random_range(0..hot));
                    } else {
                        trace.push(next);
                        next = if next + 1 == pages { hot } else { next + 1 };
                    }
                }
            }
            Synthetic::Shift => {
                let hot = (pages / 10).max(1);
                for time in 0..accesses {
                    let first = time as u64 * SHIFTS / accesses as u64 * hot;
                    let page = if random.random_bool(0.9) {
                        first + random.random_range(0..hot)
                    } else {
                        random.random_range(0..pages)
                    };
                    trace.push(page % pages);
                }
            }
        }
        Ok(trace)
    }
}

/// A generated trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Synthetic {
    /// A pattern of the benchmark.
    Pattern(Pattern),
    /// Half of the accesses go to a tenth of the pages, and the others scan the rest.
    ScanAndHot,
    /// Nine in ten accesses go to a tenth of the pages, to another one after each eighth of the trace.
    Shift,
}

/// The tenths of the pages that are hot in turn.
const SHIFTS: u64 = 8;

impl FromStr for Synthetic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "scan-hot" => Ok(Self::ScanAndHot),
            "shift" => Ok(Self::Shift),
            _ => text.parse().map(Self::Pattern).map_err(|error: String| format!("{error}, or scan-hot or shift")),
        }
    }
}

impl std::fmt::Display for Synthetic {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pattern(pattern) => write!(out, "{pattern}"),
            Self::ScanAndHot => out.write_str("scan-hot"),
            Self::Shift => out.write_str("shift"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8], format: TraceFormat) -> anyhow::Result<Vec<u64>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), content)?;
        let trace = Trace::read(file.path(), format)?;
        Ok(trace.accesses.iter().map(|number| trace.pages[*number as usize]).collect())
    }

    #[test]
    fn each_format_is_read() -> anyhow::Result<()> {
        assert_eq!(read(b"# page,access\n7\n 9 ,load\n\n7,\n", TraceFormat::Pages)?, [7, 9, 7]);
        let msr = "128166372003061629,hm,0,Read,4095,2,100\n1,hm,0,Write,8192,4096,1\n";
        assert_eq!(read(msr.as_bytes(), TraceFormat::Msr)?, [0, 1, 2]);
        let mut record = [0_u8; 48];
        record[4] = 5;
        record[24 + 11] = 1;
        assert_eq!(read(&record, TraceFormat::OracleGeneral)?, [5, 1 << 56]);
        Ok(())
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for (content, format) in [
            (&b"seven\n"[..], TraceFormat::Pages),
            (b"", TraceFormat::Pages),
            (b"# 7\n", TraceFormat::Pages),
            (b",7\n", TraceFormat::Pages),
            (b"\xff\n", TraceFormat::Pages),
            (b"1,hm,0,Read,0,1073741825,1\n", TraceFormat::Msr),
            (b"1,hm,0,Trim,0,1,1\n", TraceFormat::Msr),
            (b"1,hm,0,Read\n", TraceFormat::Msr),
            (b"1,hm,0,Read,18446744073709551615,4096,1\n", TraceFormat::Msr),
            (b"short", TraceFormat::OracleGeneral),
        ] {
            assert!(read(content, format).is_err(), "{content:?}");
        }
    }
}
