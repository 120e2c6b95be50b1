//! The ratios that two pages ask of the same figures, docs/benchmarks/README.md and docs/benchmarks/map.md: how many times better vmio is to be.
//! Two threads, unless the name says otherwise.

/// Uniform loads a second, of Linux mmap's.
pub const UNIFORM_LOADS: f64 = 1.1;
/// Uniform stores a second, of Linux mmap's.
pub const UNIFORM_STORES: f64 = 2.0;
/// The 99th percentile of uniform loads, of which Linux mmap's is a multiple. Any number of threads.
pub const UNIFORM_LOADS_P99: f64 = 5.0;
/// Hits, of those of private memory. One thread.
pub const HITS: f64 = 1.0;
/// The 99.9th percentile of stores during a sync, of which Linux msync's is a multiple. One thread.
pub const STORES_IN_SYNC_P999: f64 = 10.0;

/// Whether a ratio is what is wanted, to the two digits behind the point that pages show.
pub fn reaches(ratio: f64, wanted: f64) -> bool {
    format!("{ratio:.2}").parse().unwrap_or(ratio) >= wanted
}
