//! The thread that collects: it wakes when a log chunk is begun or a compaction has ended, and from time to time while there are no writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use vmio::SignalsBlocked;

use super::pace::Bound;
use super::wake::Woken;
use super::{Goal, IDLE_SLACK_BYTES, Step};
use crate::db::open_segment::OpenSegment;
use crate::db::segments::Segments;
use crate::error::{Error, Result};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::volume::free_reserve::SpacePriority;

/// After this long without a wake-up, the store counts as idle.
const IDLE: Duration = Duration::from_millis(500);
/// Wait while a compaction runs that has to end first.
const COMPACTION_WAIT: Duration = Duration::from_millis(20);
/// Writers wait once the log exceeds its limit and the slack of background collection by this much.
const BOUND_BYTES: u64 = 32 << 20;
/// Chunks of one segment that are collected before the other segments' turn.
const CHUNKS_A_ROUND: usize = 16;
/// Where the volume cannot grow, writers are slowed below this number of free chunks, or fewer in a short volume.
const FREE_CHUNKS_MAX: u64 = 16;

/// The collector thread; it stops when this is dropped.
pub(crate) struct CollectorThread {
    segments: Arc<Segments>,
    thread: Option<JoinHandle<()>>,
}

impl CollectorThread {
    pub(crate) fn start(segments: &Arc<Segments>) -> std::io::Result<Self> {
        let _signals = SignalsBlocked::new();
        let its = Arc::clone(segments);
        let work = move || its.collect_in_background();
        let thread = std::thread::Builder::new().name("vmio-kv-gc".to_owned()).spawn(work)?;
        Ok(CollectorThread { segments: Arc::clone(segments), thread: Some(thread) })
    }
}

impl Drop for CollectorThread {
    fn drop(&mut self) {
        self.segments.store().collector.stop();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that collects garbage has panicked");
        }
    }
}

impl Segments {
    fn collect_in_background(&self) {
        let wake = &self.store().collector;
        let mut wait = IDLE;
        loop {
            let woken = wake.wait(wait);
            if woken == Woken::Stop {
                return;
            }
            // A compaction that the thread waits for may end without a new chunk.
            let is_idle = woken == Woken::Idle && wait == IDLE;
            wait = IDLE;
            for segment in self.all() {
                match segment.collect_due(is_idle) {
                    // The other segments come in between.
                    Ok(Step::Emptied) => wait = Duration::ZERO,
                    Ok(Step::WaitFirst) => wait = wait.min(COMPACTION_WAIT),
                    Ok(Step::Reached | Step::NothingToGain) => {}
                    Err(error) => {
                        // No writer waits for a collection that cannot happen.
                        segment.collector.pace.set(Bound::Space, 0.0);
                        if !matches!(error, Error::Stopped { .. }) {
                            tracing::error!(%error, "the log could not be kept short");
                        }
                    }
                }
                segment.discard_free(if is_idle { 1 } else { segment.segment.worth_a_discard() });
            }
        }
    }
}

impl OpenSegment {
    /// Does the due collections, some chunks at a time. Compactions and writers go on meanwhile, writers at the pace that this sets.
    fn collect_due(&self, is_idle: bool) -> Result<Step> {
        let mut has_emptied = false;
        for _ in 0..CHUNKS_A_ROUND {
            self.keep_recovery_short();
            let goal = self.goal(is_idle);
            let mut state = self.collecting();
            if is_idle {
                self.segment.give_back()?;
            }
            self.log.check_goes_on()?;
            let step = self.step(&mut state, goal, true)?;
            if step != Step::Emptied || self.collector.pace.closeness() > 0.5 {
                self.give_up_emptied(&mut state, 1)?;
            }
            drop(state);
            self.collector.gains_nothing.store(step == Step::NothingToGain, Ordering::Relaxed);
            self.set_pace();
            match step {
                Step::Emptied if !self.store.compactions.is_stopping() => has_emptied = true,
                // The moved records are in memory, so another look may find more.
                Step::Reached if is_idle && has_emptied => return Ok(Step::WaitFirst),
                step => return Ok(step),
            }
        }
        Ok(Step::Emptied)
    }

    fn goal(&self, is_idle: bool) -> Goal {
        let chunks = self.chunks_to_keep() / 2 + 1;
        let is_short = !self.may_grow() && self.chunks_left() < chunks;
        match is_short {
            true => Goal::FreeChunks { priority: SpacePriority::Put, chunks },
            false if is_idle => Goal::Limit { slack_bytes: IDLE_SLACK_BYTES.min(self.slack_bytes()) },
            false => Goal::Limit { slack_bytes: self.slack_bytes() },
        }
    }

    /// Sets how close the log is to its bound. No writer is slowed while a collection would gain nothing.
    pub(crate) fn set_pace(&self) {
        let mut closeness: f64 = 0.0;
        if !self.collector.gains_nothing.load(Ordering::Relaxed) {
            let space = self.segment.allocator().log_chunks.space();
            let free_of_delay = self.limit(space) + self.slack_bytes();
            closeness = closeness.max(space.bytes.saturating_sub(free_of_delay) as f64 / BOUND_BYTES as f64);
            if !self.may_grow() {
                let least = self.chunks_to_keep();
                // A write without space is refused: no writer stops before that.
                closeness = closeness.max(0.9 * least.saturating_sub(self.chunks_left()) as f64 / least as f64);
            }
        }
        self.collector.pace.set(Bound::Space, closeness);
    }

    /// Chunks left for puts.
    fn chunks_left(&self) -> u64 {
        let allocator = self.segment.allocator();
        let least_free = self.segment.free_reserve.least_free(SpacePriority::Put, allocator.units_in_all());
        allocator.free_units_with_holes().saturating_sub(least_free)
    }

    fn may_grow(&self) -> bool {
        self.store.volume().units() < self.store.device.units_max()
    }

    /// With this number of free chunks no writer is slowed.
    fn chunks_to_keep(&self) -> u64 {
        (self.segment.allocator().units_in_all() / 32).clamp(1, FREE_CHUNKS_MAX)
    }
}

const _: () = assert!(BOUND_BYTES.is_multiple_of(ALLOCATION_UNIT_BYTES));
