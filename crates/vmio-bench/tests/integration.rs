//! The tests of the benchmarks' command, one program.

mod bench;
mod bench_kv;
mod common;
mod pages;
mod programs;
