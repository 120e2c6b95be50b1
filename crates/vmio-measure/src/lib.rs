//! Measurements that users make of their own storage, `bench map` and `bench kv`, and what others are made of: targets, processes and
//! cgroups for them, Linux mmap and pread beside vmio. No other key-value store is linked here: whoever has some says so by
//! [`kv::Stores`].

#![deny(clippy::print_stdout)]

mod block_trace;
mod break_even;
pub mod cgroup;
pub mod child;
pub mod content;
pub mod device_cache;
pub mod device_counters;
pub mod engines;
pub mod fast_device;
pub mod job;
pub mod kv;
pub mod map;
mod matrix;
pub mod median;
mod op;
pub mod pattern;
pub mod place;
pub mod priority;
pub mod process;
mod quick;
mod run_charts;
mod run_report;
mod scatter;
pub mod side;
mod spec;
mod tables;
pub mod target;
mod trace_page;
pub mod worker;
pub mod wrong_words;
