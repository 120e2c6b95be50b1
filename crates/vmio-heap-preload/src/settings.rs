//! What `vmio run --heap` was asked for, as it hands it on in the environment.

use std::env;
use std::ffi::OsString;
use std::process;

use vmio_heap::{HeapEngine, HeapOptions};

/// The options of `vmio run` that are the heap's; none if this process is not the one that `vmio run` became. That keeps its
/// number when it becomes yet another program; those that it starts have others. The names of the variables are those of
/// docs/heap.md.
pub(crate) fn of_this_process() -> Option<HeapOptions> {
    if number("VMIO_HEAP_PROCESS")? != u64::from(process::id()) {
        return None;
    }
    let options = HeapOptions::new(env::var_os("VMIO_HEAP_FILE")?, number("VMIO_HEAP_CACHE")?);
    let engine = text("VMIO_HEAP_ENGINE").and_then(|name| name.parse::<HeapEngine>().ok()).unwrap_or_default();
    Some(options.heap_bytes(number("VMIO_HEAP_BYTES")?).engine(engine))
}

fn number(variable: &str) -> Option<u64> {
    text(variable)?.parse().ok()
}

fn text(variable: &str) -> Option<String> {
    env::var_os(variable).map(OsString::into_string)?.ok()
}
