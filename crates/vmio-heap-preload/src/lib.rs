//! The library that `vmio run --heap` preloads: what the program allocates lies in a mapping of a file, of which so much is in
//! memory as the cache has room for. docs/heap.md is the design.
//!
//! The allocating code decides where memory lies. The program's memory comes from the heap; that of this library, of vmio and of the C
//! library itself from the C library's allocator, as without it. The address of what is freed tells them apart.

mod at_load;
mod c_library;
mod exports;
mod no_room;
mod settings;
