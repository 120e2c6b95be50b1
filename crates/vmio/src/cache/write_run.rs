//! Write-back of a batch, the write: neighbours go to the device together, and other threads take part.

use std::sync::atomic::Ordering;
use std::time::Instant;

use vmio_core::futex;

use crate::cache::destination::Destination;
use crate::cache::shared::Shared;
use crate::cache::write_batch::{BatchPage, WriteBatch, WriteRun};
use crate::sys::abort::AbortOnUnwind;
use crate::sys::{PAGE_BYTES, cpu, probes};
use crate::telemetry::counters::Counter;

/// The most pages of one write (1 MiB).
const RUN_PAGES_MAX: usize = 256;
/// In the count of unfinished runs: the batch's owner sleeps until it is zero.
const OWNER_SLEEPS: u32 = 1 << 31;

impl WriteBatch {
    /// Writes all collected pages, and returns when the writes have landed or failed. A page whose write failed is dirty again,
    /// and the region has noted the failure. Other threads take part.
    pub(crate) fn write(&self, shared: &Shared) {
        self.progress.failed.store(0, Ordering::SeqCst);
        if self.pages.is_empty() {
            return;
        }
        // In the journal all pages are neighbours.
        let follows = |a: &BatchPage, b: &BatchPage| {
            let are_neighbours = a.destination != Destination::Backing && a.page < b.page || a.page + 1 == b.page;
            a.region == b.region && a.destination == b.destination && are_neighbours
        };
        let runs = || self.pages.chunk_by(follows);
        let count: usize = runs().map(|run| run.len().div_ceil(RUN_PAGES_MAX)).sum();
        self.progress.unfinished.store(count as u32, Ordering::SeqCst);
        let mut slot = 0;
        for run in runs() {
            for part in run.chunks(RUN_PAGES_MAX) {
                let run = WriteRun { pages: part, data: self.buffer.slot(slot), progress: &raw const *self.progress };
                slot += part.len();
                if let Err(run) = shared.write_back.queue.push(run) {
                    run.write(shared);
                }
            }
        }
        if count > 1 && shared.workers.writes_are_slow() {
            (1..count.min(shared.workers.count as usize)).for_each(|_| shared.workers.wake(true));
        }
        let unfinished = &self.progress.unfinished;
        while unfinished.load(Ordering::SeqCst) & !OWNER_SLEEPS > 0 {
            match shared.write_back.queue.pop() {
                Some(run) => run.write(shared),
                None => {
                    let left = unfinished.fetch_or(OWNER_SLEEPS, Ordering::SeqCst) | OWNER_SLEEPS;
                    if left > OWNER_SLEEPS {
                        futex::wait(unfinished, left);
                    }
                }
            }
        }
    }

    /// Calls [`Self::write`] and [`Self::clear`]; returns how many pages could not be written.
    pub(crate) fn write_and_clear(&mut self, shared: &Shared) -> u32 {
        self.write(shared);
        self.clear();
        self.failed()
    }
}

impl WriteRun {
    /// Writes the run and settles its pages.
    pub(crate) fn write(self, shared: &Shared) {
        let _backing_may_panic = AbortOnUnwind::new();
        // SAFETY: the batch that made the run keeps pages, data and counters valid until the count goes down.
        let (pages, data, progress) = unsafe {
            (&*self.pages, std::slice::from_raw_parts(self.data, self.pages.len() * PAGE_BYTES), &*self.progress)
        };
        // At least one page, all of one region and with one destination.
        let (region, destination) = (pages[0].region(), pages[0].destination);
        let started = Instant::now();
        let core = cpu::current();
        let offset = pages[0].page * PAGE_BYTES as u64;
        let mapping = region.table.address(0);
        probes::write_begin(mapping, offset, data.len());
        let settle = |page, error| {
            if !region.settle_write(page, error, destination) {
                progress.failed.fetch_add(1, Ordering::SeqCst);
            }
        };
        match region.write(destination, &|at| pages[at].page, data) {
            Ok(()) => pages.iter().for_each(|written| settle(written.page, None)),
            // One bad page must not hold its neighbours back: find it.
            Err(_) if pages.len() > 1 => {
                for (page, data) in pages.iter().map(|written| written.page).zip(data.chunks(PAGE_BYTES)) {
                    let result = region.write(destination, &|_| page, data);
                    settle(page, result.err());
                }
            }
            Err(error) => settle(pages[0].page, Some(error)),
        }
        probes::write_end(mapping, offset, data.len());
        shared.note_write(started.elapsed().as_nanos() as u64);
        shared.telemetry.count(core, Counter::Writes, 1);
        shared.telemetry.count(core, Counter::WrittenBytes, data.len() as u64);
        // The last access to memory of the batch: at zero it may be reused. Most owners have written all by themselves.
        if progress.unfinished.fetch_sub(1, Ordering::SeqCst) == OWNER_SLEEPS | 1 {
            futex::wake_all(&progress.unfinished);
        }
    }
}
