//! The options of `vmio run --heap`, which it passes on in the environment.

use std::env;
use std::ffi::OsString;
use std::process;

use vmio_heap::{HeapEngine, HeapOptions};

/// The heap's options; none if this process is not the one that `vmio run` became. That process keeps its number when it becomes yet
/// another program, while the programs that it starts have others. docs/heap.md lists the variables.
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
