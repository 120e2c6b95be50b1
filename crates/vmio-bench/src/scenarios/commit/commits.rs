//! How fast threads commit, and what that has the device write.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use vmio_measure::device_counters::{DeviceCounters, DeviceWrites};
use vmio_measure::process::Usage;
use vmio_measure::worker::new_histogram;

use super::CommitSpec;
use super::records::{CHANGED_BYTES, Share};
use super::stores::{Session, Store};

/// What was found. A commit's time includes making its changes.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommitsResult {
    pub(super) commits: u64,
    pub(super) commits_per_s: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
    pub(super) cpu_us_per_commit: f64,
    /// Bytes that the changes of these commits overwrote.
    pub(super) changed_bytes: u64,
    /// What it had the block device write, brought to where it stays; nothing if there is no block device.
    pub(super) device_writes: Option<DeviceWrites>,
    /// The same by the kernel's count for the process, without what the file system writes by itself.
    pub(super) process_write_bytes: u64,
    /// Bytes that the device wrote for a byte changed.
    pub(super) write_amplification: Option<f64>,
}

/// A thread that commits.
pub(super) struct Committer<'a, T> {
    pub(super) session: T,
    pub(super) share: &'a mut Share,
    pub(super) latencies: Histogram<u64>,
}

impl<T: Session> Committer<'_, T> {
    /// Changes a record in each of these pages of the share and commits.
    pub(super) fn commit(&mut self, pages: &[usize]) -> anyhow::Result<()> {
        let changes = self.share.draw_changes(pages);
        let start = Instant::now();
        self.session.commit(&changes)?;
        self.latencies.saturating_record((start.elapsed().as_nanos() as u64).max(1));
        self.share.note(&changes);
        Ok(())
    }

    fn commit_until(&mut self, end: Instant, pages: usize) -> anyhow::Result<()> {
        loop {
            let pages = self.share.draw_pages(pages);
            self.commit(&pages)?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }
}

/// Measures the commits of one thread for each share.
pub(super) fn measure<S: Store>(store: &S, spec: &CommitSpec, shares: &mut [Share]) -> anyhow::Result<CommitsResult> {
    let mut committers = shares
        .iter_mut()
        .map(|share| Ok(Committer { session: store.session()?, share, latencies: new_histogram()? }))
        .collect::<anyhow::Result<Vec<_>>>()?;
    run(&mut committers, spec, spec.warm_up_secs)?;
    committers.iter_mut().for_each(|committer| committer.latencies.reset());
    let counters = || {
        // What is owed to the files then is not owed by what is measured, and what is owed afterwards is counted.
        store.checkpoint()?;
        anyhow::Ok((DeviceCounters::now(&spec.setup.folder)?, Usage::now()?))
    };
    let (device, usage) = counters()?;
    let start = Instant::now();
    run(&mut committers, spec, spec.secs)?;
    let (elapsed_s, cpu_s) = (start.elapsed().as_secs_f64(), Usage::now()?.since(&usage).cpu_s);
    let (device_now, usage_now) = counters()?;
    let mut latencies = new_histogram()?;
    committers.iter().try_for_each(|committer| latencies.add(&committer.latencies))?;
    let device_writes = device_now.zip(device).map(|(now, before)| now.since(&before).writes);
    let changed_bytes = latencies.len() * u64::from(spec.pages) * CHANGED_BYTES as u64;
    let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(CommitsResult {
        commits: latencies.len(),
        commits_per_s: latencies.len() as f64 / elapsed_s,
        mean_us: latencies.mean() / 1e3,
        p50_us: microseconds(0.5),
        p99_us: microseconds(0.99),
        p999_us: microseconds(0.999),
        max_us: latencies.max() as f64 / 1e3,
        cpu_us_per_commit: cpu_s * 1e6 / latencies.len() as f64,
        changed_bytes,
        device_writes,
        process_write_bytes: usage_now.since(&usage).write_bytes,
        write_amplification: device_writes.map(|device| device.bytes as f64 / changed_bytes as f64),
    })
}

/// Each commits for that long, and once at least.
fn run<T: Session>(committers: &mut [Committer<'_, T>], spec: &CommitSpec, secs: f64) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(secs);
    thread::scope(|scope| {
        let threads: Vec<_> = committers
            .iter_mut()
            .map(|committer| scope.spawn(move || committer.commit_until(end, spec.pages as usize)))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a committing thread panicked"))?)
    })
}
