//! `libvmio_posix.so`, which `vmio run` has the loader put before the C library: mappings of files under the given
//! folders become mappings of one vmio cache, and all else goes to the C library untouched.
//!
//! A call takes this way: `exports` has a function of the C library's name; `entry` sees to it that nothing of vmio's
//! own comes in there; `process` is what a process has of vmio, made at its first mapping; `file` is one mapped file,
//! with the `windows` that the program sees it through. docs/design/run.md says which calls, and why.
#![deny(unsafe_op_in_unsafe_fn)]
// Without `exports` nobody calls most of it.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod apart;
mod cancellation;
mod entry;
mod errno;
// The tests of this crate are programs that use the C library's own.
#[cfg(not(test))]
mod exports;
mod file;
mod fork;
mod last_thread;
mod left_to_linux;
mod locks;
mod memory;
mod messages;
mod own_descriptors;
mod own_heap;
mod preallocation;
mod process;
mod refused;
mod settings;
mod sharing;
mod split;
mod statistics;
mod synchronous;
mod table;
mod transfer;
mod unseen;
mod unserved_faults;
mod windows;

#[cfg(not(test))]
mod real;
