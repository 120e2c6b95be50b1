//! Recordings in files: lines of JSON, in the format of `docs/formats/recording.md`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vmio::telemetry::{PageError, Snapshot};

use super::miss_log::MissLog;
use super::recording::{Recording, SERIES_MAX};
use super::series::Series;

const FORMAT: &str = "vmio recording";
const VERSION: u64 = 1;
/// The longest line of a valid file.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// The most samples of a cache in a valid file.
const SAMPLES_MAX: u64 = 4096;
const WORD_BYTES: usize = 8;

/// The reason why a file cannot be drawn as a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It is not a recording.
    #[error("it is not a recording: record one with `vmio record --save FILE -- CMD`")]
    NotARecording,
    /// It has another version of the format.
    #[error("it has version {found} of the format, and this vmio reads version {VERSION}: use the vmio that saved it")]
    UnknownVersion {
        /// Its version.
        found: u64,
    },
    /// The end of the file is missing.
    #[error("it is cut off at line {line}: record again, or copy the whole file")]
    CutOff {
        /// The last line, which may be incomplete.
        line: u64,
    },
    /// A line does not have the format's syntax.
    #[error("line {line} does not have the format of a recording")]
    BadLine {
        /// Its number, from 1 on.
        line: u64,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A sample is not a stat page of a cache.
    #[error("line {line} is not a sample of a cache")]
    BadSample {
        /// Its number, from 1 on.
        line: u64,
        /// The cause.
        #[source]
        source: PageError,
    },
    /// A line has an impossible value.
    #[error("line {line}: {what}")]
    Contradiction {
        /// Its number, from 1 on.
        line: u64,
        /// The reason.
        what: &'static str,
    },
}

/// The beginning of the first line in every version.
#[derive(Deserialize)]
struct Kind {
    format: String,
    version: u64,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u64,
    command: String,
    interval_s: f64,
    caches: u64,
    is_full: bool,
}

/// The line before the samples of a cache.
#[derive(Serialize, Deserialize)]
struct SavedCache {
    process_id: u32,
    command: String,
    built_s: f64,
    samples: u64,
    misses: Option<MissLog>,
}

/// The same, from a recording.
#[derive(Serialize)]
struct CacheLine<'a> {
    process_id: u32,
    command: &'a str,
    built_s: f64,
    samples: u64,
    misses: Option<&'a MissLog>,
}

/// A stat page of one core: the words that differ from the previous sample, with their indices.
#[derive(Serialize, Deserialize)]
struct Sample {
    at_s: f64,
    words: Vec<(usize, u64)>,
}

/// The last line.
#[derive(Serialize, Deserialize)]
struct End {
    lines: u64,
}

/// The text of a recording's file, without caches that have no sample.
pub fn text(recording: &Recording) -> serde_json::Result<String> {
    let caches: Vec<&Series> = recording.series.iter().filter(|series| !series.samples.is_empty()).collect();
    let mut lines = vec![serde_json::to_string(&Head {
        format: FORMAT.to_owned(),
        version: VERSION,
        command: recording.command.clone(),
        interval_s: recording.interval.as_secs_f64(),
        caches: caches.len() as u64,
        is_full: recording.is_full,
    })?];
    for series in caches {
        lines.push(serde_json::to_string(&CacheLine {
            process_id: series.process_id,
            command: &series.command,
            built_s: series.built,
            samples: series.samples.len() as u64,
            misses: series.misses.as_ref(),
        })?);
        let mut before = Vec::new();
        for (at, cache) in &series.samples {
            let now = words(&cache.page());
            before.resize(now.len(), 0);
            let differ = now.iter().zip(&before).enumerate().filter(|(_, (now, before))| now != before);
            let words = differ.map(|(index, (now, _))| (index, *now)).collect();
            lines.push(serde_json::to_string(&Sample { at_s: *at, words })?);
            before = now;
        }
    }
    lines.push(serde_json::to_string(&End { lines: lines.len() as u64 + 1 })?);
    lines.push(String::new());
    Ok(lines.join("\n"))
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Recording, RecordingError> {
    Lines { file: BufReader::new(File::open(path)?), line: 0 }.recording()
}

fn words(page: &[u8]) -> Vec<u64> {
    page.chunks_exact(WORD_BYTES)
        .map(|word| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        .collect()
}

/// The lines of a file, which may come from anywhere: nothing in it is trusted.
struct Lines<F> {
    file: F,
    /// The number of lines read.
    line: u64,
}

impl<F: BufRead> Lines<F> {
    fn recording(mut self) -> Result<Recording, RecordingError> {
        let head = self.head()?;
        let interval = Duration::try_from_secs_f64(head.interval_s);
        let interval = interval.map_err(|_| self.contradiction("the interval is impossible"))?;
        self.ensure(head.caches <= SERIES_MAX as u64, "it has more caches than a recording can have")?;
        let series = (0..head.caches).map(|_| self.series()).collect::<Result<_, _>>()?;
        let End { lines } = self.next()?;
        self.ensure(lines == self.line, "the number of lines does not match the file")?;
        let is_at_end = self.file.fill_buf()?.is_empty();
        self.ensure(is_at_end, "the file goes on behind its last line")?;
        Ok(Recording { command: head.command, interval, series, is_full: head.is_full })
    }

    fn head(&mut self) -> Result<Head, RecordingError> {
        let text = match self.text() {
            // If the first line is not a recording's, the file is something else.
            Err(RecordingError::CutOff { .. } | RecordingError::Contradiction { .. }) => {
                return Err(RecordingError::NotARecording);
            }
            text => text?,
        };
        match serde_json::from_slice(&text) {
            Ok(Kind { format, version: VERSION }) if format == FORMAT => self.parsed(&text),
            Ok(Kind { format, version }) if format == FORMAT => Err(RecordingError::UnknownVersion { found: version }),
            _ => Err(RecordingError::NotARecording),
        }
    }

    fn series(&mut self) -> Result<Series, RecordingError> {
        let cache: SavedCache = self.next()?;
        self.ensure(
            cache.built_s.is_finite() && cache.built_s >= 0.0,
            "the time when the cache was built is impossible",
        )?;
        self.ensure((1..=SAMPLES_MAX).contains(&cache.samples), "the number of samples is impossible")?;
        if let Some(misses) = &cache.misses {
            misses.check().map_err(|what| self.contradiction(what))?;
        }
        let mut page = Vec::new();
        let first = self.sample(&mut page, cache.built_s)?;
        let mut series = Series::new(cache.process_id, cache.command, &first.1, cache.built_s, None);
        series.samples.push(first);
        for _ in 1..cache.samples {
            let after = series.samples.last().map_or(0.0, |(at, _)| *at);
            let sample = self.sample(&mut page, after)?;
            series.samples.push(sample);
        }
        series.misses = cache.misses;
        Ok(series)
    }

    /// Applies a sample to a stat page, and reads the page.
    fn sample(&mut self, page: &mut Vec<u8>, after: f64) -> Result<(f64, Snapshot), RecordingError> {
        /// The length of a stat page with one core.
        const PAGE_BYTES: usize = 2 * 4096;
        page.resize(PAGE_BYTES, 0);
        let Sample { at_s, words } = self.next()?;
        self.ensure(at_s.is_finite() && at_s >= after, "the sample is older than the one before")?;
        for (index, value) in words {
            let word = page.chunks_exact_mut(WORD_BYTES).nth(index);
            word.ok_or_else(|| self.contradiction("the sample has more words than a stat page"))?
                .copy_from_slice(&value.to_le_bytes());
        }
        let cache = Snapshot::parse(page).map_err(|source| RecordingError::BadSample { line: self.line, source })?;
        Ok((at_s, cache))
    }

    fn next<T: DeserializeOwned>(&mut self) -> Result<T, RecordingError> {
        let text = self.text()?;
        self.parsed(&text)
    }

    fn parsed<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T, RecordingError> {
        serde_json::from_slice(text).map_err(|source| RecordingError::BadLine { line: self.line, source })
    }

    /// The next line.
    fn text(&mut self) -> Result<Vec<u8>, RecordingError> {
        let mut text = Vec::new();
        let read = (&mut self.file).take(LINE_BYTES_MAX).read_until(b'\n', &mut text)?;
        if read == 0 {
            return Err(RecordingError::CutOff { line: self.line });
        }
        self.line += 1;
        match text.pop() {
            Some(b'\n') => Ok(text),
            _ if read as u64 == LINE_BYTES_MAX => Err(self.contradiction("the line is too long")),
            _ => Err(RecordingError::CutOff { line: self.line }),
        }
    }

    fn ensure(&self, holds: bool, what: &'static str) -> Result<(), RecordingError> {
        if holds { Ok(()) } else { Err(self.contradiction(what)) }
    }

    fn contradiction(&self, what: &'static str) -> RecordingError {
        RecordingError::Contradiction { line: self.line, what }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vmio::telemetry::{Miss, PublishedMapping};

    use super::super::page::page;
    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    /// Two caches, one of which publishes its misses.
    fn recording() -> Recording {
        let page = |misses| MadeUpPage::new(7, 2).counter(0, misses).durations(0, 9, misses, 5000);
        let mut log = MissLog::new(0.25);
        log.know_mappings(vec![PublishedMapping { pages: 0..1 << 18, len: 100 * 4096 }]);
        let mut series = Series::new(7, "db \"x\"".to_owned(), &page(0).snapshot(), 0.25, None);
        series.misses = Some(log);
        for (at, misses) in [(0.5, 10), (1.0, 40), (1.5, 40)] {
            let log = series.misses.as_mut().expect("set above");
            (0..20).for_each(|page| log.add(Miss { page: page * 37 % 100, store: page % 2 == 0 }));
            series.add(at, page(misses).snapshot());
        }
        let other = MadeUpPage::new(8, 1).snapshot();
        let mut second = Series::new(8, "sh".to_owned(), &other, 0.0, None);
        second.add(2.0, other);
        let (command, interval) = ("db --load".to_owned(), Duration::from_millis(500));
        Recording { command, interval, series: vec![series, second], is_full: true }
    }

    fn saved() -> String {
        text(&recording()).expect("it can be written")
    }

    fn parsed(text: &[u8]) -> Result<Recording, RecordingError> {
        Lines { file: text, line: 0 }.recording()
    }

    #[test]
    fn the_page_of_a_saved_recording_is_that_of_the_recording() {
        let read = parsed(saved().as_bytes()).expect("it is in order");
        // How long a cache is up depends on the time of asking: the pages are compared without it.
        let drawn = |recording| {
            let page = page(&[recording]).into_string();
            page.lines().filter(|line| !line.contains(", up ")).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(drawn(read), drawn(recording()));
    }

    #[test]
    fn a_file_that_was_cut_off_is_refused_wherever_that_was() {
        let saved = saved();
        for end in 0..saved.len() {
            match parsed(&saved.as_bytes()[..end]) {
                Err(RecordingError::NotARecording) if !saved[..end].contains('\n') => {}
                Err(RecordingError::CutOff { line }) if line <= 8 => {}
                found => panic!("cut off at {end}: {:?}", found.err()),
            }
        }
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        for text in ["", "\n", "<!DOCTYPE html>", "{}\n", "{\"format\":\"something\",\"version\":1}\n", "\u{0}"] {
            assert!(matches!(parsed(text.as_bytes()), Err(RecordingError::NotARecording)), "{text:?}");
        }
        let later = saved().replacen("\"version\":1", "\"version\":2", 1);
        assert!(matches!(parsed(later.as_bytes()), Err(RecordingError::UnknownVersion { found: 2 })));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        let saved = saved();
        for (what, instead, at) in [
            ("\"caches\":2", "\"caches\":257", 1),
            ("\"interval_s\":0.5", "\"interval_s\":-1", 1),
            ("\"built_s\":0.25", "\"built_s\":-0.25", 2),
            ("\"samples\":3", "\"samples\":0", 2),
            ("\"ends_s\":[0.5,1.0,1.5]", "\"ends_s\":[0.5,1.5,1.0]", 2),
            ("\"ends_s\":[0.5,1.0,1.5]", "\"ends_s\":[0.5,1.5]", 2),
            ("\"pages_per_row\":2", "\"pages_per_row\":1", 2),
            ("\"pages_per_row\":2", "\"pages_per_row\":3", 2),
            ("\"at_s\":1.0", "\"at_s\":0.4", 4),
            ("\"words\":[]", "\"words\":[[1024,1]]", 5),
            ("\"lines\":8", "\"lines\":9", 8),
        ] {
            let changed = saved.replacen(what, instead, 1);
            assert_ne!(changed, saved, "no {what}");
            let refused = parsed(changed.as_bytes()).err();
            let is_named = matches!(&refused, Some(RecordingError::Contradiction { line, .. }) if *line == at);
            assert!(is_named, "{instead}: {refused:?}");
        }
        let bad = saved.replacen("\"words\":[]", "\"words\":[[9,0]]", 1);
        assert!(matches!(parsed(bad.as_bytes()), Err(RecordingError::BadSample { line: 5, .. })));
        let bad = saved.replacen("\"words\":[]", "\"words\":7", 1);
        assert!(matches!(parsed(bad.as_bytes()), Err(RecordingError::BadLine { line: 5, .. })));
        assert!(parsed(format!("{saved}\n").as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(changes in proptest::collection::vec((any::<usize>(), 0..12_usize), 0..6)) {
            let mut text = saved().into_bytes();
            for (at, byte) in changes {
                let at = at % text.len();
                text[at] = b"0123456789,e"[byte];
            }
            if let Ok(recording) = parsed(&text) {
                prop_assert!(!page(&[recording]).into_string().is_empty());
            }
        }
    }
}
