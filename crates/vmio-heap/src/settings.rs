//! What `vmio run --heap` was asked for, as it hands it on in the environment.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process;

/// The options of `vmio run` that are the heap's. The names of the variables are those of docs/heap.md.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where the heap's file is made. It loses its name at once.
    pub(crate) file: PathBuf,
    /// The length of the heap.
    pub(crate) heap_bytes: u64,
    /// How much of it is in memory.
    pub(crate) cache_bytes: u64,
}

impl Settings {
    /// Those of this process; none if it is not the one that `vmio run` became. That keeps its number when it becomes yet
    /// another program; those that it starts have others.
    pub(crate) fn of_this_process() -> Option<Settings> {
        if number("VMIO_HEAP_PROCESS")? != u64::from(process::id()) {
            return None;
        }
        let file = env::var_os("VMIO_HEAP_FILE").map(PathBuf::from)?;
        Some(Settings { file, heap_bytes: number("VMIO_HEAP_BYTES")?, cache_bytes: number("VMIO_HEAP_CACHE")? })
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var_os(variable).map(OsString::into_string)?.ok()?.parse().ok()
}
