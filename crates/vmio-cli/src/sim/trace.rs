//! A trace: the pages that a program touched, in order.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::bench::content::PAGE_BYTES;
use crate::bench::pattern::{OffsetStream, Pattern};

/// What a file of a trace looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// One page number a line
    Pages,
    /// Comma-separated: time, host, disk, Read or Write, offset and length in bytes, response time (MSR Cambridge)
    Msr,
    /// Records of 24 bytes: time u32, object u64, size u32, next access i64 (libCacheSim's oracleGeneral, uncompressed)
    OracleGeneral,
}

/// The length of a record of [`TraceFormat::OracleGeneral`].
const RECORD_BYTES: usize = 24;

/// Pages in the order in which they were touched.
#[derive(Debug, Default)]
pub struct Trace {
    /// For each access, the number of its page in the order of first accesses.
    pub accesses: Vec<u32>,
    /// The file's pages by that number.
    pub pages: Vec<u64>,
    numbers: HashMap<u64, u32>,
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

    /// Reads one.
    pub fn read(path: &Path, format: TraceFormat) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
        let file = BufReader::with_capacity(1 << 20, file);
        let mut trace = Self::default();
        match format {
            TraceFormat::OracleGeneral => trace.read_records(file)?,
            TraceFormat::Pages | TraceFormat::Msr => {
                for (line, text) in file.lines().enumerate() {
                    let at = || format!("line {} of {}", line + 1, path.display());
                    let text = text.with_context(at)?;
                    match format {
                        TraceFormat::Msr => trace.push_msr(&text).with_context(at)?,
                        _ if text.trim().is_empty() => {}
                        _ => trace.push(text.trim().parse().with_context(|| format!("{text:?} in {}", at()))?),
                    }
                }
            }
        }
        ensure!(!trace.accesses.is_empty(), "the trace {} is empty", path.display());
        Ok(trace)
    }

    fn push_msr(&mut self, line: &str) -> anyhow::Result<()> {
        let fields: Vec<&str> = line.split(',').collect();
        let [_, _, _, kind, offset, len, ..] = fields[..] else { bail!("{line:?} has fewer than six fields") };
        ensure!(matches!(kind, "Read" | "Write"), "{kind:?} is neither Read nor Write");
        let (offset, len): (u64, u64) = (offset.trim().parse()?, len.trim().parse()?);
        let end = offset.checked_add(len.max(1)).with_context(|| format!("{line:?} ends behind 2^64"))?;
        ensure!(len <= 1 << 30, "{line:?} is more than 1 GiB long");
        (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).for_each(|page| self.push(page));
        Ok(())
    }

    fn read_records(&mut self, mut file: impl Read) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.len().is_multiple_of(RECORD_BYTES);
        ensure!(whole, "{} bytes are no whole number of records of {RECORD_BYTES}", bytes.len());
        for record in bytes.chunks_exact(RECORD_BYTES) {
            let mut object = [0; 8];
            object.copy_from_slice(&record[4..12]);
            self.push(u64::from_le_bytes(object));
        }
        Ok(())
    }

    /// Makes one up.
    pub fn synthetic(kind: Synthetic, pages: u64, accesses: usize, seed: u64) -> anyhow::Result<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut trace = Self::default();
        match kind {
            Synthetic::Pattern(pattern) => {
                let mut stream = OffsetStream::new(pattern, pages, 0, 1)?;
                (0..accesses).for_each(|_| trace.push(stream.next_offset(&mut random) / PAGE_BYTES));
            }
            Synthetic::ScanAndHot => {
                // A tenth of the pages gets half of the accesses; a scan of the rest goes on beside it.
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
        }
        Ok(trace)
    }
}

/// A trace that is made up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Synthetic {
    /// As the benchmark's.
    Pattern(Pattern),
    /// Half of the accesses go to a tenth of the pages, the others scan the rest.
    ScanAndHot,
}

impl FromStr for Synthetic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "scan-hot" => Ok(Self::ScanAndHot),
            _ => text.parse().map(Self::Pattern).map_err(|error: String| format!("{error}, or scan-hot")),
        }
    }
}

impl std::fmt::Display for Synthetic {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pattern(pattern) => write!(out, "{pattern}"),
            Self::ScanAndHot => out.write_str("scan-hot"),
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
        assert_eq!(read(b"7\n 9\n\n7\n", TraceFormat::Pages)?, [7, 9, 7]);
        let msr = "128166372003061629,hm,0,Read,4095,2,100\n1,hm,0,Write,8192,4096,1\n";
        assert_eq!(read(msr.as_bytes(), TraceFormat::Msr)?, [0, 1, 2]);
        let mut record = [0_u8; 2 * RECORD_BYTES];
        record[4] = 5;
        record[RECORD_BYTES + 11] = 1;
        assert_eq!(read(&record, TraceFormat::OracleGeneral)?, [5, 1 << 56]);
        Ok(())
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for (content, format) in [
            (&b"seven\n"[..], TraceFormat::Pages),
            (b"", TraceFormat::Pages),
            (b"1,hm,0,Trim,0,1,1\n", TraceFormat::Msr),
            (b"1,hm,0,Read\n", TraceFormat::Msr),
            (b"1,hm,0,Read,18446744073709551615,4096,1\n", TraceFormat::Msr),
            (b"short", TraceFormat::OracleGeneral),
        ] {
            assert!(read(content, format).is_err(), "{content:?}");
        }
    }
}
