//! `vmio run --heap`: programs whose heap is larger than the cache do the same as without.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::programs::{compiled, has, leave_out, plain, text};
use common::{TestResult, refused, succeeded, vmio};

/// The command that runs a program with its heap in a file of a folder.
fn with_heap(folder: &Path, program: &[&str]) -> Command {
    let mut command = vmio();
    command.args(["run", "--cache", "16M", "--heap-size", "1G", "--heap"]).arg(folder.join("heap"));
    command.arg("--").args(program);
    command
}

/// A program prints the same with it, and leaves no file.
fn same_as_plain(program: &[&str]) -> TestResult {
    let folder = tempfile::tempdir()?;
    let expected = succeeded(&mut plain(program))?;
    assert!(succeeded(&mut with_heap(folder.path(), program))? == expected, "{program:?} prints something else");
    assert_eq!(fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}

#[test]
fn threads_and_forked_processes_have_their_heap() -> TestResult {
    let folder = tempfile::tempdir()?;
    let program = compiled("heap", folder.path(), &[])?;
    same_as_plain(&[text(&program)])
}

#[test]
fn sort_of_more_than_the_cache() -> TestResult {
    let folder = tempfile::tempdir()?;
    let lines = (0..400_000_u64).map(|line| format!("{:020} {line}\n", line.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let input = folder.path().join("lines");
    fs::write(&input, lines.collect::<String>())?;
    same_as_plain(&["sort", "-S", "64M", text(&input)])
}

#[test]
fn a_python_dictionary_of_more_than_the_cache() -> TestResult {
    if !has("python3") {
        return leave_out("there is no python3");
    }
    // Its own allocator maps memory itself.
    same_as_plain(&[
        "env",
        "PYTHONMALLOC=malloc",
        "python3",
        "-c",
        "d = {i: str(i) for i in range(400000)}; print(len(d), sum(map(len, d.values())))",
    ])
}

#[test]
fn a_file_that_is_there_is_left_as_it_is() -> TestResult {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("heap"), "precious")?;
    refused(&mut with_heap(folder.path(), &["true"]), "name one that is not there")?;
    assert_eq!(fs::read(folder.path().join("heap"))?, b"precious");
    Ok(())
}

#[test]
fn a_heap_without_room_is_refused() -> TestResult {
    let folder = tempfile::tempdir()?;
    let mut command = vmio();
    command.args(["run", "--cache", "16M", "--heap-size", "1M", "--heap"]).arg(folder.path().join("heap"));
    refused(command.args(["--", "true"]), "--heap-size")
}
