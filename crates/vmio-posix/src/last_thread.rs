//! The end of a process whose first thread ends by `pthread_exit`. Without vmio, the process ends with status 0 when its last thread has
//! ended. With vmio, the C library would wait for vmio's own threads for ever. So once the first thread has ended, a thread of vmio's waits
//! for the end of all the program's threads, and then ends the process.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::getpid;
use rustix::thread::{Timespec, gettid, nanosleep};
use vmio::SignalsBlocked;

use crate::entry;
use crate::settings::Settings;

/// The most threads of vmio's that can be recorded.
const OWN_MAX: usize = 1024;
/// How often the threads are checked.
const CHECK_EVERY: Duration = Duration::from_millis(50);
const NO_KEY: u32 = u32::MAX;

/// The numbers of vmio's threads; 0 for none.
static OWN: [AtomicI32; OWN_MAX] = [const { AtomicI32::new(0) }; OWN_MAX];
/// The thread-specific key whose destructor runs at the end of the first thread.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Prepares to notice the end of the first thread, when the library is loaded.
pub(crate) fn start() {
    if Settings::of_this_process().is_none() {
        return;
    }
    let mut key = NO_KEY;
    // SAFETY: the call fills the key.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(first_has_ended)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
        is_first();
    }
}

/// Marks the calling thread as the first of its process.
fn is_first() {
    let key = KEY.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: the pointer is never followed, and is not null.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

/// Resets the state in a forked child, which has only this thread.
pub(crate) fn belongs_to_child() {
    OWN.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    is_first();
}

/// While it exists, the calling thread is recorded as vmio's.
pub(crate) struct Own(Option<&'static AtomicI32>);

impl Own {
    pub(crate) fn new() -> Self {
        let thread = gettid().as_raw_nonzero().get();
        let claim =
            |place: &&AtomicI32| place.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Own(OWN.iter().find(claim))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}

extern "C" fn first_has_ended(_value: *mut c_void) {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call fills the mask. It does not interrupt vmio's own code.
    let mask = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
        Box::into_raw(Box::new(mask.assume_init()))
    };
    // Handlers of the program's must run in its own threads.
    let _signals = SignalsBlocked::new();
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the thread gets the mask made for it.
    unsafe {
        if libc::pthread_create(thread.as_mut_ptr(), ptr::null(), watch, mask.cast()) != 0 {
            drop(Box::from_raw(mask));
        }
    }
}

/// Waits until all threads of the program's have ended, and then ends the process; the program's `atexit` handlers run.
extern "C" fn watch(mask: *mut c_void) -> *mut c_void {
    while entry::as_vmio(are_there_others) {
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: CHECK_EVERY.subsec_nanos().into() });
    }
    // SAFETY: the mask comes from `first_has_ended`. A process may always end.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.cast(), ptr::null_mut());
        libc::exit(0)
    }
}

/// Whether the program may have another thread.
fn are_there_others() -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return true };
    let number = |thread: io::Result<fs::DirEntry>| thread.ok()?.file_name().to_str()?.parse::<i32>().ok();
    let Some(threads) = threads.map(number).collect::<Option<Vec<_>>>() else { return true };
    let own = gettid().as_raw_nonzero().get();
    let is_vmios = |thread| thread == own || OWN.iter().any(|place| place.load(Ordering::Relaxed) == thread);
    let theirs = threads.into_iter().filter(|thread| !is_vmios(*thread));
    may_be_others(theirs, getpid().as_raw_nonzero().get(), |thread| {
        fs::read(format!("/proc/self/task/{thread}/stat")).ok()
    })
}

/// Whether one of these threads may be running, or a thread that they have started since the list was made.
fn may_be_others(listed: impl IntoIterator<Item = i32>, first: i32, about: impl Fn(i32) -> Option<Vec<u8>>) -> bool {
    listed.into_iter().any(|thread| match about(thread) {
        Some(about) if thread == first => is_programs(&about),
        // A thread that has ended since may have started another before, which is not in the list.
        Some(about) => is_programs(&about) || !is_kernels(&about),
        None => true,
    })
}

/// Whether a thread is the program's and has not ended, by its line in /proc.
fn is_programs(about: &[u8]) -> bool {
    // The name may contain anything.
    let Some(end) = about.iter().rposition(|byte| *byte == b')') else { return true };
    let has_ended = matches!(about.get(end + 2), Some(b'Z' | b'X'));
    !has_ended && !is_kernels(about)
}

/// Whether it is a kernel thread of io_uring.
fn is_kernels(about: &[u8]) -> bool {
    let name = about.iter().position(|byte| *byte == b'(').map_or(&about[..0], |start| &about[start + 1..]);
    name.starts_with(b"iou-wrk-") || name.starts_with(b"iou-sqp-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_have_ended_and_the_kernels_are_none_of_the_programs() {
        assert!(is_programs(b"7 (a) S 1") && is_programs(b"7 (a) Z) R 1") && is_programs(b"7"));
        // A thread that was listed and has ended since may have started another.
        let stat = |thread| {
            (thread != 9).then(|| {
                format!(
                    "{thread} ({}) {}",
                    if thread == 8 { "iou-wrk-7" } else { "a" },
                    if thread == 7 { "Z" } else { "S" }
                )
                .into_bytes()
            })
        };
        assert!(!may_be_others([7, 8], 7, stat));
        for other in [9, 10] {
            assert!(may_be_others([7, 8, other], 7, stat));
        }
        assert!(may_be_others([7, 11], 11, stat), "one that is ending");
        for other in [&b"7 (a) Z 1"[..], b"7 (a) S) X 1", b"7 (iou-wrk-1) S 1", b"7 (iou-sqp-1) S 1"] {
            assert!(!is_programs(other));
        }
    }

    #[test]
    fn a_thread_of_vmios_is_no_other() {
        let (told, tells) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = Own::new();
            let number = gettid().as_raw_nonzero().get();
            told.send(number).unwrap();
            let _ = ends.recv();
            drop(own);
        });
        let number = tells.recv().unwrap();
        let is_own = || OWN.iter().any(|place| place.load(Ordering::Relaxed) == number);
        assert!(is_own());
        drop(end);
        thread.join().unwrap();
        assert!(!is_own());
    }
}
