//! Threads that are cancelled while they touch mapped memory: whatever they were bringing in is there for others.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Mapping, MappingOptions};

use crate::support::{PAGE, at, check_empty, load, tiny_cache, watchdog};

const PAGES: u64 = 512;

unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const c_void,
        body: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> i32;
    fn pthread_cancel(thread: libc::pthread_t) -> i32;
    fn pthread_testcancel();
}

static TOUCHED: AtomicU64 = AtomicU64::new(0);

/// Touches one page after the other until it is cancelled, and has nothing to drop then.
unsafe extern "C-unwind" fn touch_all(base: *mut c_void) -> *mut c_void {
    let base = base.cast::<u8>();
    for page in (0..PAGES).cycle() {
        // SAFETY: the mapping stays until the thread has ended.
        unsafe { base.add(at(page) as usize).read_volatile() };
        TOUCHED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a call without arguments. No frame of this thread has anything to drop.
        unsafe { pthread_testcancel() };
    }
    ptr::null_mut()
}

#[test]
fn a_thread_that_is_cancelled_amid_a_miss_leaves_no_page_behind() {
    let _watchdog = watchdog("a_thread_that_is_cancelled_amid_a_miss_leaves_no_page_behind");
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGES * PAGE).unwrap();
    let cache = tiny_cache();
    let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    map.advise(0..map.len(), Advice::Random).unwrap();
    for round in 0..60 {
        let before = TOUCHED.load(Ordering::Relaxed);
        let mut thread = 0;
        // SAFETY: the thread is joined before the mapping goes.
        unsafe {
            let base = map.as_ptr().cast_mut().cast();
            assert_eq!(pthread_create(&raw mut thread, ptr::null(), touch_all, base), 0);
            while TOUCHED.load(Ordering::Relaxed) < before + 1 + round {
                std::hint::spin_loop();
            }
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
        }
        (0..PAGES).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    }
    map.close().unwrap();
    check_empty(&cache);
}
