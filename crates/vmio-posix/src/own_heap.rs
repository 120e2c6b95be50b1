//! The allocator of vmio's own objects, which does not use the program's `malloc`.
//!
//! Signal handlers make calls that vmio serves (`_exit`, `close`, `write`), and may have interrupted `malloc`, whose locks they must not wait
//! for. So vmio allocates here, with signals blocked: no handler finds an allocation half done, and none leaves one by a jump.
//!
//! The lengths of blocks are powers of two. A block longer than [`LARGEST`] is a mapping of its own.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use vmio::{PAGE_BYTES, SignalsBlocked};

const SMALLEST: usize = 16;
/// The length of a slab. A slab begins at a multiple of it, so that all blocks are aligned to their lengths.
const LARGEST: usize = 64 << 10;
const CLASSES: usize = (LARGEST.ilog2() - SMALLEST.ilog2()) as usize + 1;
/// The bytes mapped at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A free block begins with the address of the next one.
struct Free {
    next: *mut Free,
}

/// Blocks of one length: the freed ones, and the unused rest of a slab.
#[derive(Clone, Copy)]
struct Class {
    free: *mut Free,
    fresh: *mut u8,
    fresh_bytes: usize,
}

struct Blocks {
    classes: [Class; CLASSES],
    /// Slabs that belong to no class yet.
    chunk: *mut u8,
    chunk_bytes: usize,
}

/// The allocator of this library.
pub(crate) struct OwnHeap {
    is_locked: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

// SAFETY: only the thread with the lock touches the blocks.
unsafe impl Sync for OwnHeap {}

#[cfg_attr(not(test), global_allocator)]
static HEAP: OwnHeap = OwnHeap::new();

/// Repairs the heap in a forked child: another thread of the parent may have been in the middle of an allocation. The free blocks then stay
/// unused.
pub(crate) fn belongs_to_child() {
    let _signals = SignalsBlocked::new();
    if HEAP.is_locked.load(Ordering::Acquire) {
        // SAFETY: this is the only thread, and it is not inside the allocator.
        unsafe { *HEAP.blocks.get() = Blocks::none() };
        HEAP.unlock();
    }
}

impl OwnHeap {
    const fn new() -> Self {
        OwnHeap { is_locked: AtomicBool::new(false), blocks: UnsafeCell::new(Blocks::none()) }
    }

    fn lock(&self) {
        // The holder executes a few instructions, or maps a chunk.
        while self.is_locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Blocks) -> T) -> T {
        let _signals = SignalsBlocked::new();
        self.lock();
        // SAFETY: this thread has the lock, and does not come here a second time.
        let done = act(unsafe { &mut *self.blocks.get() });
        self.unlock();
        done
    }
}

impl Blocks {
    const fn none() -> Self {
        let none = Class { free: ptr::null_mut(), fresh: ptr::null_mut(), fresh_bytes: 0 };
        Blocks { classes: [none; CLASSES], chunk: ptr::null_mut(), chunk_bytes: 0 }
    }

    fn take(&mut self, class: usize) -> *mut u8 {
        let bytes = SMALLEST << class;
        let free = self.classes[class].free;
        if !free.is_null() {
            // SAFETY: it is a freed block, and nobody has written to it since.
            self.classes[class].free = unsafe { (*free).next };
            return free.cast();
        }
        if self.classes[class].fresh_bytes == 0 {
            let Some(slab) = self.slab() else { return ptr::null_mut() };
            self.classes[class].fresh = slab;
            self.classes[class].fresh_bytes = LARGEST;
        }
        let class = &mut self.classes[class];
        let block = class.fresh;
        class.fresh_bytes -= bytes;
        // SAFETY: it is in the slab, or its end.
        class.fresh = unsafe { block.add(bytes) };
        block
    }

    fn give_back(&mut self, class: usize, block: *mut u8) {
        let block = block.cast::<Free>();
        // SAFETY: by the caller of `dealloc` it is a block, and nobody else has it; an address fits in it, and is aligned.
        unsafe { block.write(Free { next: self.classes[class].free }) };
        self.classes[class].free = block;
    }

    fn slab(&mut self) -> Option<*mut u8> {
        if self.chunk_bytes == 0 {
            self.chunk = map(CHUNK_BYTES, LARGEST)?;
            self.chunk_bytes = CHUNK_BYTES;
        }
        let slab = self.chunk;
        self.chunk_bytes -= LARGEST;
        // SAFETY: it is in the chunk, or its end.
        self.chunk = unsafe { slab.add(LARGEST) };
        Some(slab)
    }
}

/// Maps bytes at a multiple of a power of two.
fn map(bytes: usize, align: usize) -> Option<*mut u8> {
    let more = if align > PAGE_BYTES { align } else { 0 };
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses the place, and the parts around the aligned range are unmapped.
    unsafe {
        let start = mmap_anonymous(ptr::null_mut(), bytes.checked_add(more)?, protection, flags).ok()?;
        let before = start.align_offset(align.max(1));
        let aligned = start.byte_add(before);
        for (part, len) in [(start, before), (aligned.byte_add(bytes), more - before)] {
            if len > 0 {
                let _ = munmap(part, len);
            }
        }
        Some(aligned.cast())
    }
}

/// The class of a layout; none if it gets a mapping of its own.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALLEST);
    (bytes <= LARGEST).then(|| (bytes.next_power_of_two().ilog2() - SMALLEST.ilog2()) as usize)
}

/// The length of the mapping for a layout without a class.
fn mapped_bytes(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE_BYTES)
}

// SAFETY: blocks and mappings have the length and alignment of the layout, and belong to nobody else until they are freed.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => self.with(|blocks| blocks.take(class)),
            None => mapped_bytes(layout.size()).and_then(|bytes| map(bytes, layout.align())).unwrap_or(ptr::null_mut()),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && class_of(layout).is_some() {
            // SAFETY: the block has that length.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => self.with(|blocks| blocks.give_back(class, block)),
            // SAFETY: by the caller it is a mapping of that length.
            None => _ = mapped_bytes(layout.size()).map(|bytes| unsafe { munmap(block.cast(), bytes) }),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: by the caller.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (class_of(layout), class_of(new)) {
            (Some(old), Some(new)) if old == new => block,
            (None, None) if layout.align() <= PAGE_BYTES => {
                let (Some(old), Some(new)) = (mapped_bytes(layout.size()), mapped_bytes(bytes)) else {
                    return ptr::null_mut();
                };
                // SAFETY: by the caller it is a mapping of that length.
                unsafe { mremap(block.cast(), old, new, MremapFlags::MAYMOVE) }
                    .map_or(ptr::null_mut(), |moved| moved.cast())
            }
            // SAFETY: by the caller; both blocks have the copied length.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_aligned_and_used_again() {
        let heap = OwnHeap::new();
        let layouts = [1, 16, 17, 4096, 65_536, 65_537, 3 << 20].map(|size| Layout::from_size_align(size, 8).unwrap());
        let aligned = [64, 4096, 65_536, 1 << 20].map(|align| Layout::from_size_align(100, align).unwrap());
        for _ in 0..2 {
            let blocks: Vec<_> = layouts
                .iter()
                .chain(&aligned)
                .cycle()
                .take(300)
                .enumerate()
                // SAFETY: no layout is empty, and each block has its layout's length.
                .map(|(number, layout)| unsafe {
                    let block = heap.alloc_zeroed(*layout);
                    assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()), "{layout:?}");
                    assert_eq!((*block, *block.add(layout.size() - 1)), (0, 0), "{layout:?}");
                    block.write_bytes(number as u8, layout.size());
                    (block, *layout)
                })
                .collect();
            for (number, (block, layout)) in blocks.into_iter().enumerate() {
                let byte = number as u8;
                // SAFETY: the block is still this one's, and has that length.
                unsafe {
                    assert_eq!((*block, *block.add(layout.size() - 1)), (byte, byte), "{layout:?}");
                    let longer = heap.realloc(block, layout, layout.size() * 3);
                    assert_eq!((*longer, *longer.add(layout.size() - 1)), (byte, byte), "{layout:?}");
                    heap.dealloc(longer, Layout::from_size_align_unchecked(layout.size() * 3, layout.align()));
                }
            }
        }
        // SAFETY: both blocks are freed.
        unsafe {
            let first = heap.alloc(layouts[0]);
            heap.dealloc(first, layouts[0]);
            assert_eq!(heap.alloc(layouts[1]), first);
        }
    }

    #[test]
    fn threads_get_different_blocks() {
        static SHARED: OwnHeap = OwnHeap::new();
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                scope.spawn(move || {
                    let layout = Layout::new::<u64>();
                    for _ in 0..2000 {
                        // SAFETY: each block is this thread's until the thread frees it.
                        unsafe {
                            let blocks = [(); 3].map(|()| SHARED.alloc(layout).cast::<u64>());
                            blocks.iter().for_each(|block| block.write(number));
                            std::thread::yield_now();
                            assert!(blocks.iter().all(|block| block.read() == number));
                            blocks.iter().for_each(|block| SHARED.dealloc(block.cast(), layout));
                        }
                    }
                });
            }
        });
    }
}
