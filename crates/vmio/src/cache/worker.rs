//! The background threads: they keep a reserve of free pages, and keep the dirty pages below the dirty ratio.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::evictor::Evictor;
use crate::cache::merge_buffers::BATCH_PAGES;
use crate::cache::pass::{Goal, PASS_PAGES, Pass};
use crate::cache::shared::Shared;
use crate::sys::thread::{self, OwnThread};

/// How long a worker that makes no progress waits before its next try, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(250));
/// A third of the weight of an ordinary thread: enough to protect and unmap, not to do all the writing as well.
const NICE: i32 = 5;
/// If no page is evicted and the cache does not fill up for this long, workers write dirty pages above the ratio.
const QUIET: Duration = Duration::from_millis(20);

/// Starts a worker. It ends after `Workers::stop`.
pub(crate) fn spawn(shared: Arc<Shared>, number: u32) -> io::Result<OwnThread> {
    let evictor = Evictor::new(BATCH_PAGES, &shared.write_back.merge_buffers)?;
    thread::spawn(format!("vmio-worker-{number}"), move || {
        // Where all cores are busy, the threads that fault do most of the writing themselves, a run at a time; a worker
        // of the same weight would take a core from them for a scheduler's tick each time.
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::debug!(%error, "the worker keeps its priority");
        }
        Worker { shared, evictor, back_off: BACK_OFF.0 }.run();
    })
}

struct Worker {
    shared: Arc<Shared>,
    evictor: Evictor,
    back_off: Duration,
}

impl Worker {
    fn run(&mut self) {
        loop {
            // First the event: work that comes after this ends the sleep below.
            let event = self.shared.workers.work_event();
            if self.shared.workers.is_stopping() {
                return;
            }
            if let Some(run) = self.shared.write_back.queue.pop() {
                run.write(&self.shared);
            } else if self.shared.memory.budget.free() < self.shared.memory.watermarks().low {
                self.refill_reserve();
            } else if self.shared.reads.streams.has_requests() {
                self.shared.read_ahead(&mut self.evictor);
            } else if self.shared.has_too_many_dirty() {
                self.clean_when_quiet(event);
            } else {
                self.back_off = BACK_OFF.0;
                self.shared.workers.sleep(event, None);
            }
        }
    }

    /// Evicts until the reserve is full, well past the point where the worker began: few long runs disturb the
    /// program's threads less often than many short ones.
    fn refill_reserve(&mut self) {
        let mut goal = Goal::EVICT;
        while !self.shared.workers.is_stopping() {
            let free = self.shared.memory.budget.free();
            if free >= self.shared.memory.watermarks().high {
                return;
            }
            let short =
                self.shared.memory.watermarks().high.saturating_sub(free) + self.shared.memory.budget.limit().owed;
            let wanted = (short as usize).min(PASS_PAGES);
            let pass = self.evictor.pass(&self.shared, wanted, goal);
            tracing::trace!(pass.freed, pass.written, pass.failed, "evicted");
            goal = if (pass.freed as usize) < wanted / 4 { goal.harder() } else { Goal::EVICT };
            if pass.freed == 0 {
                self.wait_after(pass);
            } else {
                self.back_off = BACK_OFF.0;
            }
        }
    }

    /// Writes dirty pages while no page is evicted and the cache does not fill up. At other times eviction writes dirty
    /// pages anyway. A page that is written and stays resident traps at its next store.
    fn clean_when_quiet(&mut self, event: u32) {
        let (evicted, free) = (self.shared.eviction.evicted_pages(), self.shared.memory.budget.free());
        let began = Instant::now();
        self.shared.workers.sleep(event, Some(QUIET));
        let filled = free.saturating_sub(self.shared.memory.budget.free());
        let woken = began.elapsed() < QUIET;
        if woken || self.shared.eviction.evicted_pages() != evicted || filled > self.shared.memory.watermarks().help {
            return;
        }
        while self.shared.has_too_many_dirty() && !self.shared.workers.is_stopping() {
            let pass = self.evictor.pass(&self.shared, PASS_PAGES, Goal::Clean);
            tracing::trace!(pass.written, pass.failed, "wrote back");
            if pass.written == 0 {
                return self.wait_after(pass);
            }
            self.back_off = BACK_OFF.0;
        }
    }

    /// Waits after a pass that gained nothing: all pages are pinned or busy, or their writes fail.
    fn wait_after(&mut self, pass: Pass) {
        let event = self.shared.workers.work_event();
        self.shared.workers.sleep(event, Some(self.back_off));
        if pass.failed > 0 {
            self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        }
    }
}
