//! The library that `vmio run --heap` preloads. The program's allocations lie in a mapping of a file, of which at most the size of the
//! cache is in memory. docs/heap.md is the design.
//!
//! The allocating code decides where memory lies. The program's memory comes from the heap. The memory of this library, of vmio and of the
//! C library itself comes from the C library's allocator, as without the heap. The address of a freed block tells them apart.

mod at_load;
mod c_library;
mod exports;
mod no_room;
mod settings;
