//! Programs in C and C++, built against what `make install` installs, with each compiler that is there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Installed, TestResult, example, installed, succeeded, test_source, write_text};

const C: &[&str] = &["-std=c11"];
const COMPILERS: &[&str] = &["gcc", "clang"];

/// The words of a text several times as long as its cache.
const LINES: usize = 400_000;
const CACHE_BYTES: &str = "8388608";

fn append(installed: &Installed, program: &Path, log: &Path, runner: &[&str]) -> TestResult {
    let run = |records: &str, engine: Option<&str>| {
        let words: Vec<_> = runner.iter().map(std::convert::AsRef::as_ref).chain([program.as_os_str()]).collect();
        let mut command = installed.command(words[0]);
        succeeded(command.args(&words[1..]).arg(log).arg(records).args(engine))
    };
    let engine = if runner.is_empty() { None } else { Some("managed") };
    assert_eq!(run("5000", engine)?, "found 0, appended 5000\n");
    assert_eq!(run("250", engine)?, "found 5000, appended 250\n");
    // As bytes: 256 a record, whose number comes first.
    let bytes = fs::read(log)?;
    let number =
        |record: usize| bytes[(record - 1) * 256..][..8].iter().rev().fold(0, |sum, byte| sum * 256 + u64::from(*byte));
    assert_eq!((number(1), number(5250), number(5251)), (1, 5250, 0));
    Ok(())
}

#[test]
fn the_log_is_appended_to_and_found_again() -> TestResult {
    let library = Installed::new()?;
    for compiler in installed(COMPILERS) {
        let program = library.compile(compiler, &example("log_append.c"), C)?;
        append(&library, &program, &library.scratch(&format!("log-{compiler}")), &[])?;
    }
    Ok(())
}

#[test]
fn a_file_larger_than_the_cache_is_read_by_threads() -> TestResult {
    let library = Installed::new()?;
    let text = library.scratch("text");
    write_text(&text, LINES)?;
    let expected = format!("{} words in {} bytes\nwithin the cache\n", LINES * 7, LINES * 64);
    for compiler in installed(COMPILERS) {
        let program = library.compile(compiler, &example("word_count.c"), C)?;
        for threads in ["1", "5"] {
            let count = succeeded(library.command(&program).arg(&text).args([CACHE_BYTES, threads]))?;
            assert_eq!(count, expected, "{compiler}, {threads} threads");
        }
    }
    Ok(())
}

/// The sanitizer has handlers of its own for SIGBUS and SIGSEGV, and looks for leaks at the end. gcc brings it along.
#[test]
fn the_examples_run_under_address_sanitizer() -> TestResult {
    let Some(compiler) = installed(&["gcc"]).pop() else { return Ok(()) };
    let library = Installed::new()?;
    let text = library.scratch("text");
    write_text(&text, LINES)?;
    let flags = &["-std=c11", "-fsanitize=address", "-fno-omit-frame-pointer"];
    let count = library.compile(compiler, &example("word_count.c"), flags)?;
    let counted = succeeded(library.command(&count).arg(&text).args([CACHE_BYTES, "3"]))?;
    assert!(counted.starts_with(&format!("{} words", LINES * 7)), "{counted}");
    let log = library.compile(compiler, &example("log_append.c"), flags)?;
    append(&library, &log, &library.scratch("log"), &[])
}

/// Valgrind runs one thread at a time and knows no userfaultfd, so it takes the managed engine.
#[test]
fn an_example_runs_under_valgrind() -> TestResult {
    let Some(valgrind) = installed(&["valgrind"]).pop() else { return Ok(()) };
    let library = Installed::new()?;
    let program = library.compile("cc", &example("log_append.c"), C)?;
    let runner = [valgrind, "-q", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"];
    append(&library, &program, &library.scratch("log"), &runner)
}

#[test]
fn errors_are_codes_with_a_message() -> TestResult {
    let library = Installed::new()?;
    for compiler in installed(COMPILERS) {
        let program = library.compile(compiler, &test_source("errors.c"), C)?;
        let folder = library.scratch(&format!("files-{compiler}"));
        fs::create_dir(&folder)?;
        assert_eq!(succeeded(library.command(&program).arg(&folder))?, "0 failures\n");
    }
    Ok(())
}

#[test]
fn mappings_keep_their_floors_and_their_ceilings() -> TestResult {
    let library = Installed::new()?;
    for compiler in installed(COMPILERS) {
        let program = library.compile(compiler, &test_source("budgets.c"), C)?;
        let folder = library.scratch(&format!("mapped-{compiler}"));
        fs::create_dir(&folder)?;
        assert_eq!(succeeded(library.command(&program).arg(&folder))?, "0 failures\n");
    }
    Ok(())
}

#[test]
fn the_header_is_cpp() -> TestResult {
    let library = Installed::new()?;
    for compiler in installed(&["g++", "clang++"]) {
        let program = library.compile(compiler, &test_source("from_cpp.cpp"), &["-std=c++11"])?;
        assert_eq!(succeeded(&mut library.command(program))?, "success\n", "{compiler}");
    }
    Ok(())
}

#[test]
fn the_manual_page_compiles_and_formats() -> TestResult {
    let library = Installed::new()?;
    let page = library.path("share/man/man3/vmio.3");
    let text = fs::read_to_string(&page)?;
    let (_, example) = text.split_once(".Bd -literal\n").ok_or("no example")?;
    let (example, _) = example.split_once(".Ed\n").ok_or("the example does not end")?;
    let source = library.scratch("example.c");
    fs::write(&source, example.replace("\\e", "\\"))?;
    for compiler in installed(COMPILERS) {
        let program = library.compile(compiler, &source, C)?;
        let file = library.scratch(&format!("starts-{compiler}"));
        for start in ["start 1\n", "start 2\n"] {
            assert_eq!(succeeded(library.command(&program).arg(&file))?, start);
        }
    }
    let stub = fs::read_to_string(library.path("share/man/man3/vmio_open.3"))?;
    assert_eq!(stub, ".so man3/vmio.3\n");
    for formatter in installed(&["mandoc"]) {
        succeeded(Command::new(formatter).args(["-T", "lint", "-W", "error"]).arg(&page))?;
    }
    Ok(())
}
