//! Each call on each kind of path.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Answers, CALLS, Who, compare, file, folder, run_as, said, tree};
use crate::common::TestResult;

/// The paths, seen from a folder that has one of each kind.
fn paths() -> Vec<(&'static str, String)> {
    let owned = |path: &str| path.to_owned();
    vec![
        ("nothing", owned("none")),
        ("a file", owned("file")),
        ("an empty folder", owned("folder")),
        ("a folder", owned("full")),
        ("a link to a file", owned("link")),
        ("a link to a folder", owned("tofolder")),
        ("a link to nothing", owned("dangling")),
        ("a link to itself", owned("loop")),
        ("a pipe", owned("fifo")),
        ("a file in a file", owned("file/inner")),
        ("a file in a folder", owned("full/inner")),
        ("a file in nothing", owned("none/inner")),
        ("a file in a loop", owned("loop/inner")),
        ("a file through a link", owned("tofolder/inner")),
        ("a folder with a slash", owned("folder/")),
        ("a file with a slash", owned("file/")),
        ("nothing with a slash", owned("none/")),
        ("a link to a folder with a slash", owned("tofolder/")),
        ("a folder's dot", owned("folder/.")),
        ("a folder's dots", owned("full/..")),
        ("a file's dot", owned("file/.")),
        ("the longest name", "n".repeat(255)),
        ("a name that is too long", "n".repeat(256)),
        ("a name in one that is too long", format!("{}/inner", "n".repeat(256))),
        ("a path that is too long", "folder/../".repeat(500)),
    ]
}

fn fixture(at: &Path) {
    folder(at, 0o755, 0);
    file(&at.join("file"), 0o644, 0);
    folder(&at.join("folder"), 0o755, 0);
    folder(&at.join("full"), 0o755, 0);
    file(&at.join("full/inner"), 0o644, 0);
    for (link, target) in [("link", "file"), ("tofolder", "folder"), ("dangling", "none"), ("loop", "loop")] {
        symlink(target, at.join(link)).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), rustix::fs::FileType::Fifo, super::mode(0o644), 0).unwrap();
    folder(&at.join("beside"), 0o755, 0);
    file(&at.join("beside/there"), 0o644, 0);
    folder(&at.join("beside/folder"), 0o755, 0);
}

fn table(root: &Path) -> Answers {
    let mut answers = Answers::new();
    let case = root.join("case");
    fixture(&case);
    let before = tree(&case);
    for (what, path) in paths() {
        for (name, call) in CALLS {
            let joined = [case.as_os_str(), path.as_ref()].join("/".as_ref());
            let answer = said(run_as(Who::Root, || call(Path::new(&joined))));
            let after = tree(&case);
            if after != before {
                fs::remove_dir_all(&case).unwrap();
                fixture(&case);
            }
            answers.insert(format!("{name}, {what}"), format!("{answer}: {after}"));
        }
    }
    answers
}

#[test]
fn each_call_answers_each_kind_of_path_as_another_file_system_does() -> TestResult {
    compare(table)
}

/// A program that runs is not written to.
#[test]
fn a_program_that_runs_is_busy() -> TestResult {
    compare(|root| {
        let program = root.join("sleep");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut running = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let busy = test_depth::comes_true(|| fs::File::options().write(true).open(&program).is_err());
        let answers = ["open for writing", "truncate", "open", "rename from"].map(|name| {
            let (_, call) = CALLS.iter().find(|(call, _)| *call == name).unwrap();
            (name.to_owned(), said(call(&program)))
        });
        running.kill().unwrap();
        running.wait().unwrap();
        answers.into_iter().chain([("it is busy".to_owned(), format!("{busy:?}"))]).collect()
    })
}
