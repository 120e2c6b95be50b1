//! The C library's own allocator, and how to tell the C library's own calls.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(pointer: *mut c_void, bytes: usize) -> *mut c_void;
    pub(crate) fn __libc_free(pointer: *mut c_void);
    pub(crate) fn __libc_memalign(alignment: usize, bytes: usize) -> *mut c_void;
    fn __tls_get_addr();
}

/// The allocator for this library's Rust code, vmio's among it: an allocation from the heap that this library serves would wait for itself.
struct CLibraryAllocator;

#[global_allocator]
static ALLOCATOR: CLibraryAllocator = CLibraryAllocator;

/// The alignment of every block of the C library.
const ALIGNMENT: usize = 16;

// SAFETY: these are malloc and related functions, by names that nobody replaces.
unsafe impl GlobalAlloc for CLibraryAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size is allowed, and the alignment is a power of two.
        unsafe {
            match layout.align() <= ALIGNMENT {
                true => __libc_malloc(layout.size()).cast(),
                false => __libc_memalign(layout.align(), layout.size()).cast(),
            }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        // SAFETY: the caller has the block from one of the functions above.
        unsafe { __libc_free(pointer.cast()) }
    }
}

/// The code of the C library and of the loader: two ranges, each as its beginning and length.
static CODE: [(AtomicUsize, AtomicUsize); 2] = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 2];

/// Finds the code. Before, no call counts as the C library's.
pub(crate) fn find_code() {
    for (function, (start, length)) in
        [__libc_malloc as *const () as usize, __tls_get_addr as *const () as usize].into_iter().zip(&CODE)
    {
        let mut search = Search { function, found: None };
        // SAFETY: the callback is for a Search, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut search).cast()) };
        if let Some((first, bytes)) = search.found {
            start.store(first, Ordering::Relaxed);
            length.store(bytes, Ordering::Relaxed);
        }
    }
}

/// Whether the C library or the loader has made the call that returns there.
#[inline]
pub(crate) fn called(return_address: usize) -> bool {
    CODE.iter().any(|(start, length)| {
        return_address.wrapping_sub(start.load(Ordering::Relaxed)) < length.load(Ordering::Relaxed)
    })
}

/// A search for the code around a function.
struct Search {
    function: usize,
    found: Option<(usize, usize)>,
}

extern "C" fn look_at(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader describes an object of its own, and `search` is what find_code gave.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    // SAFETY: the loader gives the number of headers.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = object.dlpi_addr as usize + header.p_vaddr as usize;
        if search.function.wrapping_sub(start) < header.p_memsz as usize {
            search.found = Some((start, header.p_memsz as usize));
            return 1;
        }
    }
    0
}

/// The usable bytes of a block of the C library's.
///
/// # Safety
///
/// `pointer` is such a block.
pub(crate) unsafe fn usable_bytes(pointer: *mut c_void) -> usize {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    static USABLE_SIZE: OnceLock<Option<UsableSize>> = OnceLock::new();
    let usable_size = USABLE_SIZE.get_or_init(|| {
        // SAFETY: the name ends in a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        // SAFETY: the C library's function of that name has this type; a null pointer becomes None.
        unsafe { mem::transmute::<*mut c_void, Option<UsableSize>>(found) }
    });
    // SAFETY: the caller vouches for the block.
    usable_size.map_or(0, |usable_size| unsafe { usable_size(pointer) })
}
