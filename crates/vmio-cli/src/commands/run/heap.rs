//! `vmio run --heap`: runs a program with its heap in a file.

use std::fs::{self, File};
use std::path::Path;
use std::process::{self, Command};

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use preloadable::variables;
use vmio::{Cache, Engine};
use vmio_heap::{HEAP_BYTES_MIN, HeapEngine, HeapOptions};

/// Parses the name of a heap engine.
pub(super) fn engine_parser() -> impl TypedValueParser<Value = HeapEngine> {
    PossibleValuesParser::new(HeapEngine::ALL.map(HeapEngine::name)).try_map(|name| name.parse::<HeapEngine>())
}

/// Prepares a command that gets its heap from the file. Fails now for errors that would otherwise end the program.
pub(super) fn serve(
    command: &mut Command,
    file: &Path,
    cache_bytes: u64,
    heap_bytes: Option<u64>,
    engine: HeapEngine,
) -> anyhow::Result<()> {
    if heap_bytes.is_some_and(|bytes| bytes < HEAP_BYTES_MIN) {
        bail!("--heap-size must be at least {} MiB", HEAP_BYTES_MIN >> 20);
    }
    let file = std::path::absolute(file).with_context(|| format!("{} is not a path for --heap", file.display()))?;
    let options = HeapOptions::new(&file, cache_bytes);
    let heap_bytes = heap_bytes.map_or(options.clone(), |bytes| options.heap_bytes(bytes)).length();
    try_file(&file, heap_bytes)?;
    let built = Cache::builder().engine(Engine::Managed).capacity(cache_bytes).build().map(drop);
    built.context("cannot build the cache (--cache sets its size)")?;
    // crates/vmio-heap-preload/src/settings.rs reads these.
    command.env(variables::HEAP_FILE, file).env(variables::HEAP_ENGINE, engine.name());
    for (variable, number) in [
        (variables::HEAP_BYTES, heap_bytes),
        (variables::HEAP_CACHE, cache_bytes),
        // This process becomes the program.
        (variables::HEAP_PROCESS, u64::from(process::id())),
    ] {
        command.env(variable, number.to_string());
    }
    Ok(())
}

/// Creates the file as the library will, and removes it again.
fn try_file(file: &Path, bytes: u64) -> anyhow::Result<()> {
    let created = File::options().write(true).create_new(true).open(file);
    let advice = "--heap takes a file that does not exist yet, and that is gone when the program ends";
    let created = created.with_context(|| format!("cannot create {}; {advice}", file.display()))?;
    let sized = created.set_len(bytes);
    fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    sized.with_context(|| format!("{} cannot be made {bytes} bytes long; choose another --heap-size", file.display()))
}
