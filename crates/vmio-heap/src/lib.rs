//! The heap of a program in a mapped file, of which at most the size of its cache is in memory. So the program can allocate more than fits
//! in memory. docs/heap.md is the design.
//!
//! [`FileHeap`] is a global allocator for Rust programs. `vmio run --heap` gives unmodified programs such a heap through malloc.
//!
//! ```
//! use vmio_heap::{FileHeap, HeapOptions};
//!
//! #[global_allocator]
//! static HEAP: FileHeap = FileHeap;
//!
//! fn main() -> Result<(), vmio_heap::HeapError> {
//!     let file = std::env::temp_dir().join(format!("vmio-heap-{}", std::process::id()));
//!     vmio_heap::start(&HeapOptions::new(file, 16 << 20))?;   // 16 MiB of memory, whatever is allocated
//!     let squares: Vec<u64> = (0..8_000_000).map(|number| number * number).collect();
//!     assert!(vmio_heap::contains(squares.as_ptr() as usize));
//!     assert_eq!(squares[5_000_000], 25_000_000_000_000);
//!     Ok(())
//! }
//! ```

mod allocator;
mod engine;
mod error;
mod fork;
mod heap;
mod memory;
mod options;

pub use allocator::FileHeap;
pub use engine::HeapEngine;
pub use error::HeapError;
pub use heap::{contains, is_there, start};
pub use options::{HEAP_BYTES_MIN, HeapOptions};
