//! The environment variables by which `vmio run` passes its options on to the library that it preloads.

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
/// Set: programs that the library does not cover are refused.
pub const STRICT_COVERAGE: &str = "VMIO_RUN_STRICT_COVERAGE";
/// Set: messages say what is served.
pub const VERBOSE: &str = "VMIO_RUN_VERBOSE";
/// The form of the report at the end.
pub const STATS: &str = "VMIO_RUN_STATS";
