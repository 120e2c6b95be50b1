//! The counts of a process, for `vmio run --stats`.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use vmio::{Engine, Stats};

use crate::settings::ReportForm;

/// The counts that the cache does not keep.
#[derive(Default)]
pub(crate) struct Statistics {
    /// Calls of mmap that vmio served.
    pub(crate) mappings: AtomicU64,
    /// Files opened for them.
    pub(crate) files: AtomicU64,
    /// Mappings of files under the folders that vmio did not serve, or refused.
    pub(crate) not_served: AtomicU64,
    /// Reads and writes of mapped files that copied their bytes without a system call.
    pub(crate) calls_served: AtomicU64,
    /// The bytes that these copied.
    pub(crate) bytes_served: AtomicU64,
}

/// The engine, as `vmio run --engine` names it.
fn name_of(engine: Engine) -> &'static str {
    match engine {
        Engine::Kernel => "kernel",
        Engine::Managed => "managed",
        Engine::Ring0 => "ring0",
        _ => "reader-thread",
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Statistics {
    /// The report of a process.
    pub(crate) fn report(&self, process: u32, engine: Engine, cache: &Stats, form: ReportForm) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mappings, files, not_served) = (of(&self.mappings), of(&self.files), of(&self.not_served));
        let (calls, bytes) = (of(&self.calls_served), of(&self.bytes_served));
        let evicted = cache.evicted_clean + cache.evicted_dirty;
        // With the managed engine, Linux alone knows the rest.
        let is_counted = engine != Engine::Managed;
        match form {
            ReportForm::Text => {
                let engine = name_of(engine);
                let mut report = format!(
                    "vmio run: process {process}, {engine}: {mappings} mappings of {files} files served, \
                     {not_served} not served or refused\n"
                );
                if is_counted {
                    report += &format!(
                        "vmio run: {} misses ({} by loads, {} by stores), {} more pages read ahead, \
                         {} minor faults (the page was in memory), {evicted} pages evicted\n\
                         vmio run: {calls} reads and writes of mapped files served from memory, {bytes} bytes\n\
                         vmio run: {} bytes read from the files by {} requests, {} bytes written by {}\n",
                        cache.load_misses + cache.store_misses,
                        cache.load_misses,
                        cache.store_misses,
                        cache.read_ahead_pages,
                        cache.minor_faults,
                        cache.read_bytes,
                        cache.reads,
                        cache.written_bytes,
                        cache.writes,
                    );
                } else {
                    report += &format!(
                        "vmio run: {evicted} pages evicted, {} bytes written for it; misses and reads are Linux's\n",
                        cache.written_bytes
                    );
                }
                report
            }
            ReportForm::Json => {
                let counted = |count: u64| is_counted.then_some(count);
                let report = json!({
                    "process": process,
                    "engine": name_of(engine),
                    "mappings": mappings,
                    "files": files,
                    "not_served": not_served,
                    "load_misses": counted(cache.load_misses),
                    "store_misses": counted(cache.store_misses),
                    "minor_faults": counted(cache.minor_faults),
                    "read_ahead_pages": counted(cache.read_ahead_pages),
                    "evicted_pages": evicted,
                    "calls_served": counted(calls),
                    "bytes_served": counted(bytes),
                    "read_bytes": counted(cache.read_bytes),
                    "reads": counted(cache.reads),
                    "written_bytes": cache.written_bytes,
                    "writes": cache.writes,
                });
                format!("{report}\n")
            }
        }
    }
}
