//! Samples of the stat pages of a command's caches, over time.
//!
//! They are totals: where in the file a page was missed is not in them. A recording of single misses would be another
//! field of [`Series`], and its charts another function in `charts.rs`.

use std::time::Instant;

use vmio::telemetry::{Reader, Snapshot};

use super::descendants;
use crate::commands::stat::{Interval, Sample, command_name};

/// More caches than this are not recorded.
const SERIES_MAX: usize = 256;

/// What was seen of all caches.
pub struct Recording {
    /// The command line.
    pub command: String,
    /// The caches, in the order in which they were first seen.
    pub series: Vec<Series>,
    /// Caches that there was no room for, counted at each sample.
    pub left_out: usize,
    readers: Vec<Reader>,
    began: Instant,
    samples_max: usize,
    samples: usize,
    thinning: u32,
}

/// A cache over time.
pub struct Series {
    /// The process.
    pub process_id: u32,
    /// The process's name.
    pub command: String,
    /// Seconds since the recording began, with the cache at that moment.
    pub samples: Vec<(f64, Snapshot)>,
}

/// What a cache did, at the end of an interval.
pub struct Point {
    /// Seconds since the recording began.
    pub at: f64,
    /// The cache at that moment.
    pub now: Snapshot,
    /// What it did since the point before.
    pub interval: Interval,
}

impl Series {
    /// The number of the cache in its process.
    pub fn cache_number(&self) -> u64 {
        self.samples.first().map_or(0, |(_, cache)| cache.cache_number)
    }

    /// What happened between each sample and the next.
    pub fn points(&self) -> Vec<Point> {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        let point = |((before_at, before), (at, now)): (&(f64, Snapshot), &(f64, Snapshot))| {
            let interval = Interval::between(Some(before), now, at - before_at);
            Point { at: *at, now: now.clone(), interval }
        };
        pairs.map(point).collect()
    }
}

impl Recording {
    /// An empty one, of so many samples at most.
    pub fn new(command: String, samples_max: usize) -> Self {
        Self {
            command,
            series: Vec::new(),
            left_out: 0,
            readers: Vec::new(),
            began: Instant::now(),
            samples_max,
            samples: 0,
            thinning: 1,
        }
    }

    /// So many times longer than at first the time between two samples should be.
    pub fn thinning(&self) -> u32 {
        self.thinning
    }

    /// Takes a sample of a process and all that descend from it. One that cannot be looked at is passed over: most
    /// likely it has just ended.
    pub fn sample(&mut self, process_id: u32) {
        self.readers.retain(|reader| !reader.wait_for_end(std::time::Duration::ZERO).unwrap_or(true));
        for id in descendants::of(process_id) {
            if self.readers.iter().all(|reader| reader.process_id() != id)
                && let Ok(reader) = Reader::open(id)
            {
                self.readers.push(reader);
            }
        }
        let samples: Vec<_> =
            self.readers.iter().filter_map(|reader| Some((reader.process_id(), Sample::take(reader).ok()??))).collect();
        for (id, sample) in samples {
            let at = (sample.taken - self.began).as_secs_f64();
            sample.caches.into_iter().for_each(|cache| self.add(id, at, cache));
        }
        self.samples += 1;
        if self.samples >= self.samples_max {
            self.thin_out();
        }
    }

    fn add(&mut self, process_id: u32, at: f64, cache: Snapshot) {
        // A process that has ended may have left its number to another; when they were built tells their caches apart.
        let is_same = |series: &Series| {
            let first = series.samples.first().map(|(_, first)| (first.cache_number, first.started_unix_ns));
            series.process_id == process_id && first == Some((cache.cache_number, cache.started_unix_ns))
        };
        match self.series.iter().position(is_same) {
            Some(index) => self.series[index].samples.push((at, cache)),
            None if self.series.len() == SERIES_MAX => self.left_out += 1,
            None => {
                let command = command_name(process_id);
                self.series.push(Series { process_id, command, samples: vec![(at, cache)] });
            }
        }
    }

    /// Forgets every other sample: as they are totals, nothing that happened is lost. The last one is kept.
    fn thin_out(&mut self) {
        for series in &mut self.series {
            let last = series.samples.len().saturating_sub(1);
            let mut index = 0;
            series.samples.retain(|_| {
                index += 1;
                (last + 1 - index).is_multiple_of(2)
            });
        }
        self.samples /= 2;
        self.thinning = self.thinning.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    #[test]
    fn thinning_out_loses_nothing_that_was_counted() {
        let mut recording = Recording::new("db".to_owned(), 8);
        for second in 0..8_u32 {
            let page = MadeUpPage::new(1, 1).counter(0, 10 * u64::from(second));
            recording.add(1, f64::from(second), page.snapshot());
        }
        recording.thin_out();
        assert_eq!(recording.thinning(), 2);
        let points = recording.series[0].points();
        let misses: f64 = points.iter().map(|point| point.interval.misses_per_s * point.interval.seconds).sum();
        assert_eq!(points.iter().map(|point| point.at).collect::<Vec<_>>(), [3.0, 5.0, 7.0]);
        assert!((misses - 60.0).abs() < 1e-6, "{misses}: from the first sample that is left to the last");
    }

    #[test]
    fn caches_are_kept_apart_and_bounded() {
        let mut recording = Recording::new("db".to_owned(), 8);
        for number in 1..=SERIES_MAX as u64 + 3 {
            recording.add(1, 0.0, MadeUpPage::new(1, number).snapshot());
        }
        recording.add(1, 1.0, MadeUpPage::new(1, 2).snapshot());
        assert_eq!((recording.series.len(), recording.left_out), (SERIES_MAX, 3));
        assert_eq!((recording.series[1].samples.len(), recording.series[1].cache_number()), (2, 2));
    }
}
