//! `libvmio_posix.so`, which `vmio run` preloads before the C library. Mappings of files under the given folders become mappings of one
//! vmio cache, and all other calls go to the C library unchanged.
//!
//! A call takes this way: `exports` has a function of the C library's name. `entry` keeps vmio's own calls out. `process` has the cache of the
//! process, built at its first mapping. `file` is one mapped file, with the `windows` through which the program sees it. With `--mode`,
//! `leased` serves reads and writes, and `program_maps` maps files of vmio-pmfs. docs/guides/run.md lists the served calls.
#![deny(unsafe_op_in_unsafe_fn)]
// Without `exports` most of it is not called.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod cancellation;
mod entry;
mod errno;
// The tests of this crate are programs that must call the C library itself.
#[cfg(not(test))]
mod exports;
mod file;
mod files_kept_open;
mod fork;
mod last_thread;
mod leased;
mod lock_calls;
mod locks;
mod machine;
mod memory;
mod messages;
mod own_descriptors;
mod own_heap;
mod preallocation;
mod process;
mod program_maps;
mod settings;
mod sharing;
mod sigbus;
mod statistics;
mod synchronous;
mod table;
mod transfer;
mod uncovered_programs;
mod unserved_files;
mod unshared_fd_thread;
mod watched;
mod windows;

#[cfg(not(test))]
mod real;
