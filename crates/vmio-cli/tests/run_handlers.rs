//! `vmio run` of programs with handlers of signals: which are called, with what blocked, what they may do, and how they leave calls.

mod common;

use common::TestResult;
use common::modes::same_output;
use common::programs::{compiled, mapped, plain, text};

const WAYS: [&str; 13] = [
    "sigaction",
    "nodefer",
    "once",
    "informed",
    "signal",
    "bsd_signal",
    "ssignal",
    "sysv_signal",
    "__sysv_signal",
    "sigset",
    "syscall",
    "siginterrupt",
    "sigignore",
];

#[test]
fn a_handler_of_sigbus_is_called_as_without_vmio_however_it_was_installed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("handlers", dir.path(), &["-Wno-deprecated-declarations"])?;
    for way in WAYS {
        let words = [text(&program), way];
        let output = same_output(
            plain(&words).current_dir(dir.path()),
            mapped("managed", dir.path(), &words).current_dir(dir.path()),
        )
        .map_err(|error| format!("{way}: {error}"))?;
        // Vmio's handler, which says so, is still there.
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("was made shorter while it was mapped").count(), 1, "{way}: {said}");
    }
    Ok(())
}
