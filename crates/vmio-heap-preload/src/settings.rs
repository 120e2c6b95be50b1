//! The options of `vmio run --heap`, which it passes on in the environment.

use std::env;
use std::process;

use preloadable::variables::{self, Variables, WrongVariable};
use vmio_heap::{HeapEngine, HeapOptions};

/// The heap's options; none if this process is not the one that `vmio run` became. That process keeps its number when it becomes yet
/// another program, while the programs that it starts have others. docs/heap.md lists the variables.
///
/// A process whose variables are wrong must not go on: it would lack the heap that it was promised.
pub(crate) fn of_this_process() -> Result<Option<HeapOptions>, WrongVariable> {
    let given = Variables(|name: &str| env::var_os(name));
    if given.number(variables::HEAP_PROCESS)? != Some(process::id()) {
        return Ok(None);
    }
    let number = |name| given.number(name)?.ok_or(WrongVariable::missing(name));
    let file = env::var_os(variables::HEAP_FILE).ok_or(WrongVariable::missing(variables::HEAP_FILE))?;
    let engine: Option<HeapEngine> = given.meaning(variables::HEAP_ENGINE, |name| name.parse().ok())?;
    let options = HeapOptions::new(file, number(variables::HEAP_CACHE)?);
    Ok(Some(options.heap_bytes(number(variables::HEAP_BYTES)?).engine(engine.unwrap_or_default())))
}
