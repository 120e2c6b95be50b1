//! The library's integration tests, one program: linking one for each file took longer than running most of them.
#![allow(clippy::unwrap_used)]

mod cancellation;
mod commit;
mod commit_crash;
mod crash;
mod dax;
mod devices;
mod dynamic;
mod end_of_file;
mod ensure;
mod fault_injection;
mod fetch;
mod fetch_single;
mod files;
mod fork;
mod fork_memory;
mod growth_model;
mod invalidate;
mod journal;
mod journal_crash;
mod kernel_engine;
mod kernel_verify_before_map;
mod kernels;
mod managed;
mod managed_read_ahead;
mod memfd_frames;
mod memory_limit;
mod model;
mod nvme;
mod persistent_map;
mod policies;
mod pre_images;
mod read_ahead;
mod reader_thread;
mod reentry;
mod resize;
#[cfg(target_arch = "x86_64")]
mod ring0;
#[cfg(target_arch = "x86_64")]
mod ring0_exits;
mod ring0_waiting_calls;
mod shared_addresses;
mod shared_addresses_model;
mod sharing;
mod sigbus;
mod sparse;
mod stream;
mod support;
mod sync;
mod system_calls;
mod telemetry;
mod tenants;
mod threads;
mod traps;
mod units;
mod verifier;
