//! The heap as the allocator of a Rust program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use libmimalloc_sys as mimalloc;

use crate::heap::{contains, is_there};

/// The allocator of a program whose heap lies in a file. Before [`start`](crate::start) the system serves it, and from then on the heap. A
/// block from the system moves to the heap when its length changes.
///
/// As the `#[global_allocator]` it serves every allocation of Rust code, vmio's own threads' among them, but not C's malloc.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileHeap;

// SAFETY: both allocators give blocks of the layout that nobody else has. The address of a block tells which allocator gave it, since
// nothing else ever gets the heap's addresses.
unsafe impl GlobalAlloc for FileHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_there() {
            // SAFETY: any size is allowed, and the alignment is a power of two.
            true => unsafe { mimalloc::mi_malloc_aligned(layout.size(), layout.align()) }.cast(),
            // SAFETY: the caller vouches for the layout.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_there() {
            // SAFETY: as of `alloc`. Unused memory of the heap holds zeros, so mimalloc need not store to it.
            true => unsafe { mimalloc::mi_zalloc_aligned(layout.size(), layout.align()) }.cast(),
            // SAFETY: the caller vouches for the layout.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match contains(block as usize) {
            // SAFETY: the caller has the block from here, and its address says that mimalloc gave it.
            true => unsafe { mimalloc::mi_free(block.cast()) },
            // SAFETY: the block's address says that the system gave it.
            false => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if contains(block as usize) {
            // SAFETY: as of `dealloc`.
            return unsafe { mimalloc::mi_realloc_aligned(block.cast(), bytes, layout.align()) }.cast();
        }
        if !is_there() {
            // SAFETY: the block is the system's, and the caller vouches for the layout and the new length.
            return unsafe { System.realloc(block, layout, bytes) };
        }
        // SAFETY: the caller vouches that the new length makes a layout; the old block has its layout's length, and is freed once.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes));
                System.dealloc(block, layout);
            }
            moved
        }
    }
}
