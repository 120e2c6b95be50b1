//! The state of the dashboard: the caches with their history, and the chosen one.

use std::collections::VecDeque;
use std::time::Duration;

use vmio::telemetry::Snapshot;

use crate::commands::stat::Interval;

/// The most intervals to keep of a cache: no terminal is wider.
const INTERVALS_MAX: usize = 512;

/// A process and a cache of it.
pub type CacheId = (u32, u64);

/// The state behind the dashboard.
pub struct View {
    interval: Duration,
    caches: Vec<CacheView>,
    chosen: Option<CacheId>,
    is_paused: bool,
    notice: Option<String>,
}

/// A cache with its history.
pub struct CacheView {
    /// The process, and the number of the cache in it.
    pub id: CacheId,
    /// The process's name.
    pub command: String,
    /// The present.
    pub now: Snapshot,
    /// Its intervals, the last one at the end; empty until the first has passed.
    pub intervals: VecDeque<Interval>,
}

impl View {
    /// An empty view with this interval between two updates.
    pub fn new(interval: Duration) -> Self {
        Self { interval, caches: Vec::new(), chosen: None, is_paused: false, notice: None }
    }

    /// The time between two updates.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Adds the caches of a process since the last update; caches that are not among them are gone.
    pub fn update<'a>(
        &mut self,
        process_id: u32,
        command: &str,
        caches: impl Iterator<Item = (&'a Snapshot, Interval)>,
    ) {
        let mut present = Vec::new();
        for (now, interval) in caches {
            let id = (process_id, now.cache_number);
            present.push(id);
            let known = self.caches.iter().position(|cache| cache.id == id).unwrap_or_else(|| {
                let (command, intervals) = (command.to_owned(), VecDeque::new());
                self.caches.push(CacheView { id, command, now: now.clone(), intervals });
                self.caches.len() - 1
            });
            let cache = &mut self.caches[known];
            cache.now = now.clone();
            if cache.intervals.len() == INTERVALS_MAX {
                cache.intervals.pop_front();
            }
            cache.intervals.push_back(interval);
        }
        self.caches.retain(|cache| cache.id.0 != process_id || present.contains(&cache.id));
        self.caches.sort_by_key(|cache| cache.id);
    }

    /// Shows a line at the bottom from now on.
    pub fn set_notice(&mut self, notice: String) {
        self.notice = Some(notice);
    }

    /// The line at the bottom, if there is one.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// All caches, by process and number.
    pub fn caches(&self) -> &[CacheView] {
        &self.caches
    }

    /// The chosen cache: the first unless the user chose another that still exists.
    pub fn chosen(&self) -> usize {
        self.caches.iter().position(|cache| Some(cache.id) == self.chosen).unwrap_or(0)
    }

    /// Chooses the cache below.
    pub fn choose_next(&mut self) {
        let next = (self.chosen() + 1).min(self.caches.len().saturating_sub(1));
        self.chosen = self.caches.get(next).map(|cache| cache.id);
    }

    /// Chooses the cache above.
    pub fn choose_previous(&mut self) {
        let previous = self.chosen().saturating_sub(1);
        self.chosen = self.caches.get(previous).map(|cache| cache.id);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Pauses or resumes.
    pub fn toggle_pause(&mut self) {
        self.is_paused = !self.is_paused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::made_up::MadeUpPage;

    fn update(view: &mut View, process_id: u32, caches: &[u64]) {
        let snapshots: Vec<_> = caches.iter().map(|number| MadeUpPage::new(process_id, *number).snapshot()).collect();
        view.update(process_id, "db", snapshots.iter().map(|now| (now, Interval::between(None, now, 1.0))));
    }

    #[test]
    fn the_choice_stays_with_its_cache_while_others_come_and_go() {
        let mut view = View::new(Duration::from_secs(1));
        update(&mut view, 7, &[1, 2]);
        assert_eq!(view.chosen(), 0);
        view.choose_next();
        view.choose_next();
        assert_eq!(view.caches()[view.chosen()].id, (7, 2));
        update(&mut view, 3, &[1]);
        assert_eq!((view.caches()[view.chosen()].id, view.caches().len()), ((7, 2), 3));
        update(&mut view, 7, &[1]);
        assert_eq!((view.chosen(), view.caches().len()), (0, 2));
        view.choose_previous();
        assert_eq!(view.chosen(), 0);
    }

    #[test]
    fn the_past_is_bounded() {
        let mut view = View::new(Duration::from_secs(1));
        (0..INTERVALS_MAX + 9).for_each(|_| update(&mut view, 1, &[1]));
        assert_eq!(view.caches()[0].intervals.len(), INTERVALS_MAX);
    }
}
