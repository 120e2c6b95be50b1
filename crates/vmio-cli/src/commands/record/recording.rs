//! The caches of a command and of the processes that it starts, over time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vmio::telemetry::{Reader, Snapshot};

use super::descendants;
use super::series::{Series, Source};

/// More caches than this are not recorded.
const SERIES_MAX: usize = 256;

/// What was seen of all caches.
pub struct Recording {
    /// The command line.
    pub command: String,
    /// The caches, in the order in which they were first seen.
    pub series: Vec<Series>,
    /// Whether there were caches that there was no room for.
    pub is_full: bool,
    readers: Vec<Reader>,
    began: Instant,
    began_unix: Duration,
    samples_max: usize,
    samples: usize,
    thinning: u32,
}

impl Recording {
    /// An empty one, of so many samples at most.
    pub fn new(command: String, samples_max: usize) -> Self {
        Self {
            command,
            series: Vec::new(),
            is_full: false,
            readers: Vec::new(),
            began: Instant::now(),
            began_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            samples_max,
            samples: 0,
            thinning: 1,
        }
    }

    /// So many times longer than at first the time between two samples should be.
    pub fn thinning(&self) -> u32 {
        self.thinning
    }

    /// Looks for caches of a process and of all that descend from it: those that are new, and those that are gone, which
    /// get their last sample. One that cannot be looked at is passed over: most likely its process has just ended.
    pub fn look(&mut self, process_id: u32) {
        for id in descendants::of(process_id) {
            if self.readers.iter().all(|reader| reader.process_id() != id)
                && let Ok(reader) = Reader::open(id)
            {
                self.readers.push(reader);
            }
        }
        let mut readers = std::mem::take(&mut self.readers);
        readers.retain(|reader| self.look_at(reader));
        self.readers = readers;
        self.series.iter_mut().for_each(|series| series.read_misses(false));
    }

    /// Whether the process is still there.
    fn look_at(&mut self, reader: &Reader) -> bool {
        let found = reader.pages();
        let has_ended = reader.wait_for_end(Duration::ZERO).unwrap_or(true);
        let pages = match found {
            // What cannot be read for the moment is not gone.
            Err(_) if !has_ended => return true,
            found => found.unwrap_or_default(),
        };
        let id = reader.process_id();
        let at = self.began.elapsed().as_secs_f64();
        let is_gone = |series: &Series| has_ended || pages.iter().all(|(_, cache)| !series.is_of(id, cache));
        let open = self.series.iter_mut().filter(|series| series.process_id == id && series.is_open());
        open.filter(|series| is_gone(series)).for_each(|series| series.end(at));
        for (page, cache) in pages {
            let known = self.series.iter().position(|series| series.is_of(id, &cache));
            if known.is_none() && self.series.len() == SERIES_MAX {
                self.is_full = true;
                break;
            }
            let index = known.unwrap_or_else(|| self.add(id, &cache, Some(page.into())));
            let series = &mut self.series[index];
            series.find_misses(reader, at);
            if has_ended {
                series.end(at);
            }
        }
        !has_ended
    }

    /// Looks for caches, and takes a sample of those that there are.
    pub fn sample(&mut self, process_id: u32) {
        self.look(process_id);
        let at = self.began.elapsed().as_secs_f64();
        self.series.iter_mut().for_each(|series| series.sample(at));
        self.samples += 1;
        if self.samples >= self.samples_max {
            self.thin_out();
        }
    }

    /// Returns where it stands.
    fn add(&mut self, process_id: u32, cache: &Snapshot, source: Option<Source>) -> usize {
        let built = Duration::from_nanos(cache.started_unix_ns).saturating_sub(self.began_unix);
        let built = built.min(self.began.elapsed()).as_secs_f64();
        self.series.push(Series::new(process_id, cache, built, source));
        self.series.len() - 1
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
        recording.add(1, &MadeUpPage::new(1, 1).snapshot(), None);
        for second in 1..=8_u32 {
            let page = MadeUpPage::new(1, 1).counter(0, 10 * u64::from(second));
            recording.series[0].add(f64::from(second), page.snapshot());
        }
        recording.thin_out();
        assert_eq!(recording.thinning(), 2);
        let points = recording.series[0].points();
        let misses: f64 = points.iter().map(|point| point.interval.misses_per_s * point.interval.seconds).sum();
        assert_eq!(points.iter().map(|point| point.at).collect::<Vec<_>>(), [2.0, 4.0, 6.0, 8.0]);
        assert!((misses - 80.0).abs() < 1e-6, "{misses}: from when the cache was built");
    }
}
