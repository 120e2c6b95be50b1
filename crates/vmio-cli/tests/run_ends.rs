//! `vmio run` of programs that end, or go on, in other ways than by the end of `main`.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::TestResult;
use crate::common::modes::{same_as_plain, same_output, under};
use crate::common::programs::{compiled, mapped, plain, text};

const MODES: [&str; 4] = ["posix", "posix --cache 8M", "strict", "strict --cache 8M"];

#[test]
fn a_process_ends_with_its_last_thread() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("last_thread", dir.path(), &[])?;
    for how in ["exits", "cancelled", "forked"] {
        let words = [text(&program), how];
        for engine in ["reader-thread", "managed"] {
            let [without, with] = [tempfile::tempdir()?, tempfile::tempdir()?];
            let mut command = mapped(engine, with.path(), &words);
            same_output(plain(&words).current_dir(without.path()), command.current_dir(with.path()))
                .map_err(|error| format!("{engine}, {how}: {error}"))?;
            let name = if how == "forked" { "childs" } else { "data" };
            let stored = [&without, &with].map(|folder| fs::read(folder.path().join(name)));
            assert!(stored[0].as_ref().is_ok_and(|bytes| bytes.starts_with(b"sl")));
            assert_eq!(stored[0].as_ref().ok(), stored[1].as_ref().ok(), "{engine}, {how}");
        }
        for mode in MODES {
            same_as_plain(mode, tempfile::tempdir()?.path(), &words)
                .map_err(|error| format!("{mode}, {how}: {error}"))?;
        }
    }
    Ok(())
}

fn reports(output: &Output) -> Vec<serde_json::Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    let all = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    all.filter(|report| report["served"] != false).collect()
}

/// Runs a command to the end of the daemon, which has the standard output for that long.
fn daemon(mut command: Command, folder: &Path) -> Result<Output, Box<dyn Error>> {
    let output = command.current_dir(folder).output()?;
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the daemon has ended\n", "{command:?}");
    Ok(output)
}

/// The C library's own `daemon` would end the parent without a call that vmio sees.
#[test]
fn the_parent_of_a_daemon_leaves_what_it_has_stored_and_says_what_was_done() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("daemons", dir.path(), &["-Wno-deprecated-declarations"])?;
    let words = [text(&program)];
    let work = dir.path().join("work");
    for command in [plain(&words), mapped("reader-thread", &work, &words), under("strict --cache 8M", &work, &words)] {
        fs::create_dir(&work)?;
        let is_plain = command.get_program() == words[0];
        let output = daemon(command, &work)?;
        let data = fs::read(work.join("data"))?;
        assert_eq!((data[0], data[4096]), (b's', b'w'));
        assert_eq!(reports(&output).len(), if is_plain { 0 } else { 1 });
        fs::remove_dir_all(&work)?;
    }
    Ok(())
}

#[test]
fn what_comes_after_an_exec_that_has_failed_is_told_at_the_end() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("fails_to_become", dir.path(), &[])?;
    for (why, lines) in [("nothing", 1), ("folder", 1), ("unknown", 2)] {
        let work = dir.path().join("work");
        let words = [text(&program), why];
        let commands =
            [(mapped("managed", &work, &words), "files", 2), (under("strict", &work, &words), "writes_logged", 121)];
        for (mut command, what, expected) in commands {
            fs::create_dir(&work)?;
            let output = command.current_dir(&work).output()?;
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            let reports = reports(&output);
            assert_eq!(reports.len(), lines, "{command:?}");
            // The last report has everything.
            assert_eq!(reports.last().map(|report| &report[what]), Some(&expected.into()), "{command:?}");
            fs::remove_dir_all(&work)?;
        }
    }
    Ok(())
}

#[test]
fn a_lock_is_tested_as_by_the_c_library() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("locks", dir.path(), &[])?;
    let words = [text(&program)];
    let mut command = mapped("managed", dir.path(), &words);
    same_output(plain(&words).current_dir(dir.path()), command.current_dir(dir.path()))?;
    Ok(())
}
