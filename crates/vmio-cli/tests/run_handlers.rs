//! `vmio run` of programs with signal handlers: which run, with which mask, which calls they may make, and how they may leave calls.

use std::fs;

use crate::common::TestResult;
use crate::common::modes::{same_as_plain, same_output, under};
use crate::common::programs::{compiled, mapped, plain, text};

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

const MODES: [&str; 5] = ["posix", "posix --cache 8M", "sync", "strict", "strict --cache 8M"];

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
        // vmio's handler, which prints this, is still there.
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("was made shorter while it was mapped").count(), 1, "{way}: {said}");
    }
    Ok(())
}

#[test]
fn a_handler_may_leave_a_call_by_a_jump() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("jumps_out", dir.path(), &[])?;
    for how in ["siglongjmp", "longjmp", "within"] {
        let words = [text(&program), how];
        for engine in ["reader-thread", "managed"] {
            let work = tempfile::tempdir()?;
            let mut command = mapped(engine, work.path(), &words);
            same_output(plain(&words).current_dir(dir.path()), command.current_dir(work.path()))
                .map_err(|error| format!("{engine}, {how}: {error}"))?;
        }
        for mode in MODES {
            same_as_plain(mode, tempfile::tempdir()?.path(), &words)
                .map_err(|error| format!("{mode}, {how}: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_handler_that_has_interrupted_malloc_may_end_the_process() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("no_malloc", dir.path(), &[])?;
    for how in ["maps", "calls"] {
        let words = [text(&program), how];
        let work = dir.path().join("work");
        let by_engines = ["reader-thread", "managed"].map(|engine| mapped(engine, &work, &words));
        for mut command in by_engines.into_iter().chain(MODES.map(|mode| under(mode, &work, &words))) {
            fs::create_dir(&work)?;
            let output = command.current_dir(&work).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{command:?}: {said}");
            // The fourth page had a store in memory.
            let data = fs::read(work.join("data"))?;
            let expected = if how == "maps" { b's' } else { b'm' };
            assert_eq!((data[4096], data[3 * 4096]), (b'h', expected), "{command:?}");
            fs::remove_dir_all(&work)?;
        }
    }
    Ok(())
}
