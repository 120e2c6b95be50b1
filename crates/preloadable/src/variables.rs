//! The environment variables by which `vmio run` passes its options on to the libraries that it preloads, and how these read them.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

/// The folders whose files are served, colons between them. Without it the library serves nothing.
pub const UNDER: &str = "VMIO_RUN_UNDER";
/// The bytes of the cache.
pub const CACHE: &str = "VMIO_RUN_CACHE";
/// The engine of the cache, where there is no mode.
pub const ENGINE: &str = "VMIO_RUN_ENGINE";
/// The mode of reads and writes.
pub const MODE: &str = "VMIO_RUN_MODE";
/// Whether an open waits for another process, or is refused.
pub const WHEN_SHARED: &str = "VMIO_RUN_WHEN_SHARED";
/// The bytes of an operation log.
pub const LOG_BYTES: &str = "VMIO_RUN_LOG_BYTES";
/// The bytes written without a sync after which stores replace writes.
pub const STORES_AFTER: &str = "VMIO_RUN_STORES_AFTER";
/// Whether a store waits while the disk is full, or fails.
pub const ON_FULL: &str = "VMIO_RUN_ON_FULL";
/// Set: mappings get disk space first.
pub const PREALLOCATE: &str = "VMIO_RUN_PREALLOCATE";
/// Set: a thread of the kernel submits reads and writes of mapped files.
pub const POLL_SUBMISSIONS: &str = "VMIO_RUN_POLL_SUBMISSIONS";
/// Set: programs that the library does not cover are refused.
pub const STRICT_COVERAGE: &str = "VMIO_RUN_STRICT_COVERAGE";
/// Set: messages say what is served.
pub const VERBOSE: &str = "VMIO_RUN_VERBOSE";
/// The form of the report at the end.
pub const STATS: &str = "VMIO_RUN_STATS";

/// With `--heap`: the number of the process whose heap lies in the file. Without it there is no such heap.
pub const HEAP_PROCESS: &str = "VMIO_HEAP_PROCESS";
/// The file of the heap.
pub const HEAP_FILE: &str = "VMIO_HEAP_FILE";
/// The most bytes that the heap can have.
pub const HEAP_BYTES: &str = "VMIO_HEAP_BYTES";
/// The bytes of the heap that are in memory.
pub const HEAP_CACHE: &str = "VMIO_HEAP_CACHE";
/// The engine of the heap's cache.
pub const HEAP_ENGINE: &str = "VMIO_HEAP_ENGINE";

/// A variable whose value is none of those that `vmio run` passes on.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongVariable {
    name: &'static str,
    /// None if it is missing.
    value: Option<OsString>,
}

impl WrongVariable {
    /// Of a variable that is not set.
    pub fn missing(name: &'static str) -> Self {
        WrongVariable { name, value: None }
    }
}

impl fmt::Display for WrongVariable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(out, "{} has no such value as {}", self.name, value.display()),
            None => write!(out, "{} is missing", self.name),
        }
    }
}

/// The variables of a process's environment, by a function that has their values.
pub struct Variables<Of>(pub Of);

impl<Of: Fn(&str) -> Option<OsString>> Variables<Of> {
    /// Whether the variable is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.0(name).is_some()
    }

    /// The meaning of a variable's value; none if the variable is not set.
    ///
    /// # Errors
    ///
    /// If the value has no meaning.
    pub fn meaning<T>(
        &self,
        name: &'static str,
        meaning: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, WrongVariable> {
        let Some(value) = self.0(name) else { return Ok(None) };
        match value.to_str().and_then(meaning) {
            Some(meaning) => Ok(Some(meaning)),
            None => Err(WrongVariable { name, value: Some(value) }),
        }
    }

    /// The number that is a variable's value; none if the variable is not set.
    ///
    /// # Errors
    ///
    /// If the value is none.
    pub fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, WrongVariable> {
        self.meaning(name, |value| value.parse().ok())
    }
}
