//! The `--stats` report of a process that runs with a mode.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::process::getpid;
use serde_json::json;

use super::description_table;
use super::lease_requests::{self, manager};
use super::leased_file::Counts;
use super::strict;
use crate::messages;
use crate::settings::{ReportForm, Settings};
use crate::synchronous;

/// The number of the process that reports. A child by vfork has another, though it shares this memory until it runs another program.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Whether the report was printed.
static HAS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Resets the report, at the start and in a forked child, which has done nothing yet.
pub(super) fn belongs_to_this_process() {
    HAS_REPORTED.store(false, Ordering::Relaxed);
    synchronous::reset_in_child();
    PROCESS.store(getpid().as_raw_nonzero().get(), Ordering::Relaxed);
}

/// Undoes the report after a failed exec: the process goes on, and reports again at its end.
pub(crate) fn exec_failed() {
    if getpid().as_raw_nonzero().get() == PROCESS.load(Ordering::Relaxed) {
        HAS_REPORTED.store(false, Ordering::Relaxed);
    }
}

/// Prints the report of the process, once.
pub(crate) fn report() {
    let Some(settings) = Settings::of_this_process() else { return };
    let Some((mode, form)) = settings.mode.zip(settings.report).filter(|_| messages::are_kept()) else { return };
    let process = getpid().as_raw_nonzero();
    if process.get() != PROCESS.load(Ordering::Relaxed) || HAS_REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let (counts, leases_taken) = (counts(), lease_requests::leases_taken());
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (reads, read_bytes) = (of(&counts.reads), of(&counts.read_bytes));
    let (writes, written_bytes) = (of(&counts.writes), of(&counts.written_bytes));
    let logged = strict::counts();
    let (logged_writes, logged_bytes) = (of(&logged.writes), of(&logged.bytes));
    let (shared, checkpoints, stores) = (of(&logged.shared), of(&logged.checkpoints), of(&logged.stores));
    let flushes = synchronous::flushes();
    let cache = lease_requests::cache_stats();
    let of_cache = cache.as_ref().map_or(String::new(), |stats| {
        format!(
            "; cache: {} misses, {} bytes read, {} written, {} pages evicted",
            stats.load_misses + stats.store_misses,
            stats.read_bytes,
            stats.written_bytes,
            stats.evicted_clean + stats.evicted_dirty
        )
    });
    let text = match form {
        ReportForm::Text => format!(
            "vmio run: process {process}, mode {mode}: {leases_taken} files used without system calls: {reads} reads of {read_bytes} \
             bytes, {writes} writes of {written_bytes} bytes; {logged_writes} writes of {logged_bytes} bytes logged, {shared} of them to \
             files that others had open, {checkpoints} checkpoints, {stores} log entries without a system call; {flushes} flushes of names and attributes{of_cache}\n"
        ),
        ReportForm::Json => {
            let report = json!({
                "process": process.get(),
                "mode": mode.to_string(),
                "files": leases_taken,
                "reads_served": reads,
                "read_bytes_served": read_bytes,
                "writes_served": writes,
                "written_bytes_served": written_bytes,
                "writes_logged": logged_writes,
                "bytes_logged": logged_bytes,
                "shared_writes": shared,
                "checkpoints": checkpoints,
                "log_entries_stored": stores,
                "metadata_flushes": flushes,
                "cache": cache.map(|stats| json!({
                    "misses": stats.load_misses + stats.store_misses,
                    "read_bytes": stats.read_bytes,
                    "written_bytes": stats.written_bytes,
                    "evicted_pages": stats.evicted_clean + stats.evicted_dirty,
                })),
            });
            format!("{report}\n")
        }
    };
    messages::write(text.as_bytes());
}

/// The transfers without a system call so far.
fn counts() -> Counts {
    let total = Counts::default();
    if let Some(manager) = manager() {
        total.absorb(&manager.counts);
    }
    description_table::add_counts(&total);
    total
}
