//! Threads of an ordinary process in guest mode of a virtual machine that is the process's own.
//!
//! A thread that enters ([`Machine::enter`]) goes on with the next instruction as a guest of Linux's KVM: same memory at the same addresses, same
//! registers, same thread for the kernel. The processor's ring 0 is its own there, so a page fault on memory that the program manages needs no
//! switch to the kernel. Everything else is the host's as before: a system call is forwarded, and an access that the host refuses ends in the
//! host's signal.
//!
//! From the bottom: `raw`, `lock` and `memory` stand on the kernel alone. `page_tables` are the guest's; `address_space` gives the machine the process's memory, in which
//! the processor finds `descriptors` and `stubs`. `block` is a virtual processor's memory and `vcpu` the processor. `monitor` is the
//! host's side of it, with `forward` for system calls, `native` for entering and `resume` for going on outside. Calls that may wait are made by
//! `outside_call`. `signals` are blocked in the monitor, and a thread has a `deferral` of them without a call;
//! `restore` brings threads back after handlers. Users hold a [`Machine`].
//!
//! Managed memory is beside all that: `frames` are a pool, `managed` ranges map them, `faults` asks the program's handler for them, and
//! `shootdown` empties the TLBs when they go. Pages that are `exposed` are there for the kernel, too: `exposures` counts how often, and keeps their
//! frames from other pages so long. The pool has its free frames by the host's `cores`, and its `fresh_frames` by their nodes. `calls` whose pointers lead to managed memory have them held.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("this crate is for Linux on x86-64");

mod address_space;
mod bases;
mod block;
mod calls;
mod cores;
mod counters;
mod deferral;
mod descriptors;
mod error;
mod exposed;
mod exposures;
mod faults;
mod forward;
mod frames;
mod fresh_frames;
mod level;
mod lock;
mod machine;
mod managed;
mod memory;
mod monitor;
mod native;
mod outside_call;
mod page_tables;
mod program;
mod raw;
mod restore;
mod resume;
mod shootdown;
mod signals;
mod stubs;
mod touch;
mod vcpu;

pub use calls::Holder;
pub use counters::Counts;
pub use deferral::SignalsDeferred;
pub use error::{Error, Result};
pub use faults::FaultHandler;
pub use frames::{Frame, FramePool};
pub use level::Level;
pub use machine::{Machine, is_at_ring_0, is_inside, leave};
pub use managed::{ManagedRange, PageState, Pages, Rights, StoreNote};
pub use touch::segv_action;
