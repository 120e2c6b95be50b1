//! Signals for threads that wait in a system call.

use std::fs;
use std::thread::JoinHandle;
use std::time::Duration;

/// Sends the calling thread a SIGUSR1 once it waits in the system call of that number. It must join the sender.
pub fn signal_in_call(number: i64) -> JoinHandle<()> {
    // SAFETY: both name the thread, which joins the sender.
    let (thread, id) = unsafe { (libc::pthread_self(), libc::gettid()) };
    let (path, wanted) = (format!("/proc/self/task/{id}/syscall"), format!("{number} "));
    std::thread::spawn(move || {
        while !fs::read_to_string(&path).unwrap().starts_with(&wanted) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
    })
}
