//! `vmio run` of programs that duplicate, replace and close descriptors of files whose reads and writes take no system calls. They do the
//! same as in a plain run, even if the call fails, or if it comes from a child with its parent's memory.

use std::error::Error;
use std::process::Output;

use crate::common::TestResult;
use crate::common::modes::{same_as_plain, served};
use crate::common::programs::{compiled, text};

const MODES: [&str; 6] = ["posix", "posix --cache 8M", "sync", "sync --cache 8M", "strict", "strict --cache 8M"];

/// Runs a case of the program in each mode, and compares it with a plain run.
fn same_in_all_modes(case: &str) -> Result<Vec<Output>, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let program = compiled("descriptors", dir.path(), &["-Wno-unused-result"])?;
    let run = |mode: &&str| -> Result<Output, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        Ok(same_as_plain(mode, dir.path(), &[text(&program), case]).map_err(|error| format!("{mode}: {error}"))?)
    };
    MODES.iter().map(run).collect()
}

#[test]
fn a_descriptor_that_is_not_replaced_stays_a_duplicate() -> TestResult {
    same_in_all_modes("dup2").map(drop)
}

#[test]
fn descriptors_that_are_not_closed_together_stay_duplicates() -> TestResult {
    same_in_all_modes("close_range").map(drop)
}

#[test]
fn a_duplicate_with_a_large_number_is_one() -> TestResult {
    same_in_all_modes("high").map(drop)
}

#[test]
fn a_child_before_exec_takes_nothing_from_its_parent() -> TestResult {
    // In mode strict.
    for output in &same_in_all_modes("vfork")?[4..] {
        let said = String::from_utf8_lossy(&output.stdout);
        let wanted = said.lines().last().and_then(|line| line.strip_suffix(" writes")).ok_or("it says nothing")?;
        assert_eq!(served(output, "writes_logged"), wanted.parse::<u64>()?, "{said}");
    }
    Ok(())
}

#[test]
fn what_has_the_number_of_a_file_that_was_closed_unseen_is_not_that_file() -> TestResult {
    same_in_all_modes("makers").map(drop)
}

#[test]
fn a_program_that_says_whom_signals_of_a_file_go_to_lives_on() -> TestResult {
    same_in_all_modes("owner").map(drop)
}
