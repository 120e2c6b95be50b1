//! `vmio run` of programs that close, replace and open files without the C library's names: by its `syscall`, as libuv does, or by
//! instructions of their own. The files must have all of vmio's bytes, and no call may get its answer from another file.

use crate::common::TestResult;
use crate::common::modes::same_as_plain;
use crate::common::programs::{compiled, text};

const MODES: [&str; 6] = ["posix", "posix --cache 8M", "sync", "sync --cache 8M", "strict", "strict --cache 8M"];

/// Runs the program in all modes with each kind of work on a first file, each way to close that, and each way to open the second.
fn same_in_all_modes(hows: &[&str], closes: &[&str], opens: &[&str]) -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("raw_calls", dir.path(), &[])?;
    for mode in MODES {
        // If the kernel has all bytes, vmio verifies descriptors once a clock tick.
        let pause_us = if matches!(mode, "posix" | "sync") { "30000" } else { "0" };
        for how in hows {
            for close in closes {
                for open in opens {
                    let dir = tempfile::tempdir()?;
                    let output = same_as_plain(mode, dir.path(), &[text(&program), ".", how, close, open, pause_us])
                        .map_err(|error| format!("{mode}: {how} by {close}, opened by {open}: {error}"))?;
                    let said = String::from_utf8_lossy(&output.stdout);
                    assert!(
                        said.ends_with("0 and 0 pages are wrong\n"),
                        "{mode}: {how} by {close}, opened by {open}: {said}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn files_that_are_closed_by_syscall_keep_what_was_written() -> TestResult {
    same_in_all_modes(&["close"], &["syscall"], &["library", "syscall", "instruction"])
}

#[test]
fn so_do_files_that_are_closed_by_instructions_of_the_programs_own() -> TestResult {
    same_in_all_modes(&["close"], &["instruction"], &["library", "syscall", "instruction"])
}

#[test]
fn a_descriptor_that_is_replaced_is_the_other_file() -> TestResult {
    same_in_all_modes(&["replace"], &["syscall", "instruction"], &["library", "instruction"])
}

#[test]
fn descriptors_that_are_closed_together_keep_what_was_written() -> TestResult {
    same_in_all_modes(&["range"], &["library", "syscall"], &["library", "instruction"])
}

#[test]
fn a_child_by_clone_is_one_by_fork() -> TestResult {
    same_in_all_modes(&["fork"], &["library", "syscall"], &["library"])
}

#[test]
fn a_lock_ends_with_its_descriptor() -> TestResult {
    same_in_all_modes(&["lock"], &["library", "syscall", "instruction"], &["library"])
}
