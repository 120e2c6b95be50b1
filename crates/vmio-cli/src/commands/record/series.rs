//! A cache over time: samples of its stat page, and its misses if it publishes them.

use vmio::telemetry::{Miss, Misses, OpenPage, Reader, Snapshot};

use super::miss_log::MissLog;
use crate::commands::stat::Interval;

/// The least distance of samples, in seconds: closer ones say nothing about rates.
const SHORTEST: f64 = 0.01;

/// A cache over time.
pub struct Series {
    /// The process.
    pub process_id: u32,
    /// The process's name.
    pub command: String,
    /// The number of the cache in its process.
    pub cache_number: u64,
    started_unix_ns: u64,
    /// When it was built, in seconds since the recording began.
    pub built: f64,
    /// Seconds since the recording began, with the cache at that moment.
    pub samples: Vec<(f64, Snapshot)>,
    /// Its misses, if it publishes them.
    pub misses: Option<MissLog>,
    /// The cache, until it is gone.
    source: Option<Source>,
}

/// The open stat page and misses of a cache, which remain readable after its process has ended.
pub struct Source {
    page: OpenPage,
    misses: Option<Misses>,
    read: Vec<Miss>,
}

/// A cache at the end of an interval.
pub struct Point {
    /// Seconds since the recording began.
    pub at: f64,
    /// The cache at that moment.
    pub now: Snapshot,
    /// Its rates since the previous point.
    pub interval: Interval,
}

impl From<OpenPage> for Source {
    fn from(page: OpenPage) -> Self {
        Self { page, misses: None, read: Vec::new() }
    }
}

impl Series {
    /// The series of a cache built this number of seconds after the recording began.
    pub fn new(process_id: u32, command: String, cache: &Snapshot, built: f64, source: Option<Source>) -> Self {
        Self {
            process_id,
            command,
            cache_number: cache.cache_number,
            started_unix_ns: cache.started_unix_ns,
            built,
            samples: Vec::new(),
            misses: None,
            source,
        }
    }

    /// Whether it is the series of that cache of that process. Linux may use a process number again: the times of the caches then differ.
    pub fn is_of(&self, process_id: u32, cache: &Snapshot) -> bool {
        let own = (self.process_id, self.cache_number, self.started_unix_ns);
        own == (process_id, cache.cache_number, cache.started_unix_ns)
    }

    /// Whether the cache is still open.
    pub fn is_open(&self) -> bool {
        self.source.is_some()
    }

    /// Finds the published misses of the cache, which appear right after its construction, if at all.
    pub fn find_misses(&mut self, reader: &Reader, at: f64) {
        /// In seconds.
        const YOUNG: f64 = 1.0;
        let is_wanted = self.misses.is_none() && (self.samples.is_empty() || at - self.built < YOUNG);
        if let Some(source) = self.source.as_mut().filter(|_| is_wanted)
            && let Ok(Some(misses)) = reader.misses(self.cache_number)
        {
            source.misses = Some(misses);
            self.misses = Some(MissLog::new(self.built));
        }
    }

    /// Takes a sample, if the cache is open.
    pub fn sample(&mut self, at: f64) {
        self.read_misses(false);
        if let Some(Ok(cache)) = self.source.as_ref().map(|source| source.page.snapshot()) {
            self.add(at, cache);
        }
    }

    /// Takes the last sample of an ended cache.
    pub fn end(&mut self, at: f64) {
        self.read_misses(true);
        self.sample(at);
        self.source = None;
    }

    /// Adds a sample, which replaces the previous one if that is closer than `SHORTEST`.
    pub fn add(&mut self, at: f64, cache: Snapshot) {
        if self.samples.last().is_some_and(|(before, _)| at - before < SHORTEST) {
            self.samples.pop();
        }
        self.samples.push((at, cache));
        if let Some(log) = &mut self.misses {
            log.end_period(at);
        }
    }

    /// Reads the misses since the last call, before the cache overwrites them; all of them if the cache has ended.
    pub fn read_misses(&mut self, is_gone: bool) {
        let (Some(log), Some(Source { misses: Some(misses), read, .. })) = (&mut self.misses, &mut self.source) else {
            return;
        };
        // Misses that cannot be read are lost here; the cache still counts them in its totals.
        while let Ok(left) = misses.read(read) {
            if read.is_empty() {
                match left {
                    1.. if is_gone => misses.skip(),
                    _ => break,
                }
            }
            if let Ok(mappings) = misses.mappings() {
                log.know_mappings(mappings);
            }
            read.drain(..).for_each(|miss| log.add(miss));
        }
        log.lost = misses.lost();
    }

    /// The rates between each sample and the next, from the construction of the cache on.
    pub fn points(&self) -> Vec<Point> {
        let (mut before_at, mut before) = (self.built, None);
        let is_first_of_several = |index, at: f64| index == 0 && self.samples.len() > 1 && at - self.built < SHORTEST;
        let mut points = Vec::new();
        for (index, (at, now)) in self.samples.iter().enumerate() {
            if is_first_of_several(index, *at) {
                continue;
            }
            let interval = Interval::between(before, now, (at - before_at).max(SHORTEST));
            points.push(Point { at: *at, now: now.clone(), interval });
            (before_at, before) = (*at, Some(now));
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    fn series(samples: &[(f64, u64)]) -> Series {
        let page = |misses| MadeUpPage::new(1, 1).counter(0, misses).snapshot();
        let mut series = Series::new(1, "db".to_owned(), &page(0), 0.5, None);
        samples.iter().for_each(|(at, misses)| series.add(*at, page(*misses)));
        series
    }

    fn rates(series: &Series) -> Vec<(f64, f64)> {
        series.points().iter().map(|point| (point.at, point.interval.misses_per_s)).collect()
    }

    #[test]
    fn one_sample_says_what_was_done_since_the_cache_was_built() {
        assert_eq!(rates(&series(&[(1.0, 40)])), [(1.0, 80.0)]);
        assert_eq!(rates(&series(&[(0.502, 3), (1.0, 40), (2.0, 50)])), [(1.0, 80.0), (2.0, 10.0)]);
    }

    #[test]
    fn caches_are_told_apart() {
        let series = series(&[]);
        assert!(series.is_of(1, &MadeUpPage::new(1, 1).snapshot()));
        assert!(
            !series.is_of(1, &MadeUpPage::new(1, 2).snapshot()) && !series.is_of(2, &MadeUpPage::new(2, 1).snapshot())
        );
    }

    #[test]
    fn of_samples_that_were_taken_at_the_same_time_the_last_one_counts() {
        assert_eq!(rates(&series(&[(1.5, 40), (2.5, 50), (2.5, 60)])), [(1.5, 40.0), (2.5, 20.0)]);
    }
}
