//! What was done for the program, for `vmio run --stats`.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use vmio::{Engine, Stats};

use crate::settings::ReportForm;

/// What the cache does not count.
#[derive(Default)]
pub(crate) struct Statistics {
    /// Calls of mmap that vmio served.
    pub(crate) mappings: AtomicU64,
    /// Files opened for them.
    pub(crate) files: AtomicU64,
    /// Mappings of files under the folders that were left to Linux, or refused.
    pub(crate) not_taken: AtomicU64,
    /// Reads and writes of mapped files that took no system call for their bytes.
    pub(crate) calls_served: AtomicU64,
    /// The bytes that these copied.
    pub(crate) bytes_served: AtomicU64,
}

/// The engine, as `vmio run --engine` names it.
fn name_of(engine: Engine) -> &'static str {
    match engine {
        Engine::Kernel => "kernel",
        Engine::Managed => "managed",
        _ => "reader-thread",
    }
}

/// One more.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Statistics {
    /// The report of a process.
    pub(crate) fn report(&self, process: u32, engine: Engine, cache: &Stats, form: ReportForm) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mappings, files, left) = (of(&self.mappings), of(&self.files), of(&self.not_taken));
        let (calls, bytes) = (of(&self.calls_served), of(&self.bytes_served));
        let evicted = cache.evicted_clean + cache.evicted_dirty;
        // The rest only Linux knows.
        let is_counted = engine != Engine::Managed;
        match form {
            ReportForm::Text => {
                let engine = name_of(engine);
                let mut report = format!(
                    "vmio run: process {process}, {engine}: {mappings} mappings of {files} files taken, \
                     {left} left to Linux or refused\n"
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
                    "not_taken": left,
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
