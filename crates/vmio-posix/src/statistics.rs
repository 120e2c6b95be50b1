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
        let misses = cache.load_misses + cache.store_misses;
        let evicted = cache.evicted_clean + cache.evicted_dirty;
        match form {
            ReportForm::Text => format!(
                "vmio run: process {process}, {}: {mappings} mappings of {files} files taken, {left} left to Linux or refused\n\
                 vmio run: {misses} misses ({} by loads, {} by stores), {} more pages read ahead, \
                 {} found in memory out of sight or at another address, {evicted} pages evicted\n\
                 vmio run: {calls} reads and writes of mapped files served from memory, {bytes} bytes\n\
                 vmio run: {} bytes read from the files by {} requests, {} bytes written by {}\n",
                name_of(engine),
                cache.load_misses,
                cache.store_misses,
                cache.read_ahead_pages,
                cache.soft_misses,
                cache.read_bytes,
                cache.reads,
                cache.written_bytes,
                cache.writes,
            ),
            ReportForm::Json => {
                let report = json!({
                    "process": process,
                    "engine": name_of(engine),
                    "mappings": mappings,
                    "files": files,
                    "not_taken": left,
                    "load_misses": cache.load_misses,
                    "store_misses": cache.store_misses,
                    "soft_misses": cache.soft_misses,
                    "read_ahead_pages": cache.read_ahead_pages,
                    "evicted_pages": evicted,
                    "calls_served": calls,
                    "bytes_served": bytes,
                    "read_bytes": cache.read_bytes,
                    "reads": cache.reads,
                    "written_bytes": cache.written_bytes,
                    "writes": cache.writes,
                });
                format!("{report}\n")
            }
        }
    }
}
