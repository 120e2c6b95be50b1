//! Tests that need a process of their own: they run again in a child, which is this binary with one test selected.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

const ROLE: &str = "VMIO_TEST_ROLE";

/// Runs `body` in a child process that runs only the test of that name, `module::test`. In the child this does not return.
pub fn isolated(test: &str, body: impl FnOnce()) -> Outcome {
    if is_child(test) {
        body();
        std::process::exit(0);
    }
    let output = command(test).stdin(Stdio::null()).output().unwrap();
    // Of a name that no test has, the child would run nothing, and end well.
    let is_found = output.stdout.windows(15).any(|said| said == b"running 1 test\n");
    assert!(is_found, "no test is called {test}");
    Outcome(output)
}

/// Whether this process is the child of the test of that name.
pub fn is_child(test: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|role| role == test)
}

/// The command that runs the test of that name as a child.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, test);
    command
}

/// How a child ended.
pub struct Outcome(Output);

impl Outcome {
    /// It ended well; returns what it printed.
    pub fn succeeds(&self) -> String {
        assert!(self.0.status.success(), "{}", self.describe());
        let printed = String::from_utf8_lossy(&self.0.stdout).into_owned();
        // What a child says of itself it says of its test.
        let skipped = printed.lines().filter_map(|line| line.split_once("skipped: "));
        skipped.for_each(|(_, reason)| test_depth::skipped(reason));
        printed
    }

    /// It left with that status.
    pub fn exits_with(&self, code: i32) {
        assert_eq!(self.0.status.code(), Some(code), "{}", self.describe());
    }

    /// It was killed by that signal.
    pub fn dies_of(&self, signal: i32) {
        assert_eq!(self.0.status.signal(), Some(signal), "{}", self.describe());
    }

    fn describe(&self) -> String {
        format!(
            "{}\n{}\n{}",
            self.0.status,
            String::from_utf8_lossy(&self.0.stdout),
            String::from_utf8_lossy(&self.0.stderr)
        )
    }
}

/// How a forked child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With that exit code.
    Exit(i32),
    /// By that signal.
    Signal(i32),
}

/// Forks; the child runs `body` and leaves with its result, or with 101 if it panics.
pub fn fork(body: impl FnOnce() -> i32) -> Ended {
    // SAFETY: called in processes of their own (see `isolated`) whose other threads hold no lock that the child needs.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        0 => {
            // A child that hangs is killed: a watchdog's thread would not be forked along.
            // SAFETY: alarm has no preconditions; the child uses no timer of its own.
            unsafe { libc::alarm(30) };
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: ends the child at once, without running what belongs to the parent.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is ours to write.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if libc::WIFSIGNALED(status) {
                Ended::Signal(libc::WTERMSIG(status))
            } else {
                Ended::Exit(libc::WEXITSTATUS(status))
            }
        }
    }
}

/// Installs a signal handler with the given flags.
pub fn install_handler(signal: i32, handler: usize, flags: i32) {
    // SAFETY: a zeroed sigaction is valid; the handlers of the tests only do what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// The exit code of a process whose SIGBUS came where [`expect_sigbus_at`] said.
pub const RIGHT: i32 = 42;
/// And of one whose SIGBUS came elsewhere.
pub const WRONG: i32 = 43;

static EXPECTED: AtomicUsize = AtomicUsize::new(0);

/// A handler that leaves the process with [`RIGHT`] or [`WRONG`].
pub extern "C" fn compare_address(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; _exit is async-signal-safe.
    unsafe {
        let right = (*info).si_addr() as usize == EXPECTED.load(Ordering::SeqCst) && (*info).si_signo == libc::SIGBUS;
        libc::_exit(if right { RIGHT } else { WRONG });
    }
}

/// The address that [`compare_address`] takes for right.
pub fn expect_sigbus_at(address: usize) {
    EXPECTED.store(address, Ordering::SeqCst);
}
