//! Measurements that users make of their own storage, `bench map` and `bench kv`, and their building blocks: targets, processes and
//! cgroups, Linux mmap and pread beside vmio. This crate links no other key-value store: programs that have some provide them by
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
