//! Records the caches of a command and of the processes that it starts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vmio::telemetry::{Reader, Snapshot};

use super::descendants;
use super::recording::{Recording, SERIES_MAX};
use super::series::{Series, Source};
use crate::commands::stat::command_name;

/// Adds to a recording while the command runs.
pub struct Recorder {
    recording: Recording,
    readers: Vec<Reader>,
    began: Instant,
    began_unix: Duration,
    samples_max: usize,
    samples: usize,
}

impl Recorder {
    /// Begins a recording with at most this number of samples, at this interval.
    pub fn new(command: String, interval: Duration, samples_max: usize) -> Self {
        Self {
            recording: Recording { command, interval, series: Vec::new(), is_full: false },
            readers: Vec::new(),
            began: Instant::now(),
            began_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            samples_max,
            samples: 0,
        }
    }

    /// The time between two samples, which grows with the recording.
    pub fn interval(&self) -> Duration {
        self.recording.interval
    }

    /// Ends it.
    pub fn finish(self) -> Recording {
        self.recording
    }

    /// Finds new and ended caches of a process and its descendants; an ended cache gets its last sample. Skips unreadable processes: most
    /// likely they have just ended.
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
        self.recording.series.iter_mut().for_each(|series| series.read_misses(false));
    }

    /// Whether the process is still running.
    fn look_at(&mut self, reader: &Reader) -> bool {
        let found = reader.pages();
        let has_ended = reader.wait_for_end(Duration::ZERO).unwrap_or(true);
        let pages = match found {
            // A process that cannot be read for the moment has not ended.
            Err(_) if !has_ended => return true,
            found => found.unwrap_or_default(),
        };
        let id = reader.process_id();
        let at = self.began.elapsed().as_secs_f64();
        let is_gone = |series: &Series| has_ended || pages.iter().all(|(_, cache)| !series.is_of(id, cache));
        let open = self.recording.series.iter_mut().filter(|series| series.process_id == id && series.is_open());
        open.filter(|series| is_gone(series)).for_each(|series| series.end(at));
        for (page, cache) in pages {
            let known = self.recording.series.iter().position(|series| series.is_of(id, &cache));
            if known.is_none() && self.recording.series.len() == SERIES_MAX {
                self.recording.is_full = true;
                break;
            }
            let index = known.unwrap_or_else(|| self.add(id, &cache, Some(page.into())));
            let series = &mut self.recording.series[index];
            series.find_misses(reader, at);
            if has_ended {
                series.end(at);
            }
        }
        !has_ended
    }

    /// Finds caches, and takes a sample of each.
    pub fn sample(&mut self, process_id: u32) {
        self.look(process_id);
        let at = self.began.elapsed().as_secs_f64();
        self.recording.series.iter_mut().for_each(|series| series.sample(at));
        self.samples += 1;
        if self.samples >= self.samples_max {
            self.thin_out();
        }
    }

    /// Adds a cache; returns its index.
    fn add(&mut self, process_id: u32, cache: &Snapshot, source: Option<Source>) -> usize {
        let built = Duration::from_nanos(cache.started_unix_ns).saturating_sub(self.began_unix);
        let built = built.min(self.began.elapsed()).as_secs_f64();
        self.recording.series.push(Series::new(process_id, command_name(process_id), cache, built, source));
        self.recording.series.len() - 1
    }

    /// Drops every other sample but the last. Samples are totals, so no events get lost.
    fn thin_out(&mut self) {
        for series in &mut self.recording.series {
            let last = series.samples.len().saturating_sub(1);
            let mut index = 0;
            series.samples.retain(|_| {
                index += 1;
                (last + 1 - index).is_multiple_of(2)
            });
        }
        self.samples /= 2;
        self.recording.interval = self.recording.interval.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    #[test]
    fn thinning_out_loses_nothing_that_was_counted() {
        let mut recorder = Recorder::new("db".to_owned(), Duration::from_secs(1), 8);
        recorder.add(1, &MadeUpPage::new(1, 1).snapshot(), None);
        for second in 1..=8_u32 {
            let page = MadeUpPage::new(1, 1).counter(0, 10 * u64::from(second));
            recorder.recording.series[0].add(f64::from(second), page.snapshot());
        }
        recorder.thin_out();
        let recording = recorder.finish();
        assert_eq!(recording.interval, Duration::from_secs(2));
        let points = recording.series[0].points();
        let misses: f64 = points.iter().map(|point| point.interval.misses_per_s * point.interval.seconds).sum();
        assert_eq!(points.iter().map(|point| point.at).collect::<Vec<_>>(), [2.0, 4.0, 6.0, 8.0]);
        assert!((misses - 80.0).abs() < 1e-6, "{misses}: from when the cache was built");
    }
}
