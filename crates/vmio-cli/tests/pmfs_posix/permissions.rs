//! Calls of a user without rights, in folders and on files of different owners and modes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use super::{Answers, CALLS, GROUP, USER, Who, compare, file, folder, owned, run_as, said, tree};
use crate::common::TestResult;

/// Modes and owners of the folder that the call's path is in.
const FOLDERS: [(u32, u32); 11] = [
    (0o755, 0),
    (0o777, 0),
    (0o1777, 0),
    (0o1777, USER),
    (0o666, 0),
    (0o711, 0),
    (0o733, 0),
    (0o700, USER),
    (0o500, USER),
    (0o600, USER),
    (0o070, GROUP),
];
/// Those of what the path names.
const FILES: [(u32, u32); 5] = [(0o644, 0), (0o600, 0), (0o666, 0), (0o644, USER), (0o060, GROUP)];

/// What the path names.
#[derive(Clone, Copy, Debug)]
enum Named {
    Nothing,
    File(u32, u32),
    Folder(u32, u32),
}

fn table(root: &Path) -> Answers {
    let named =
        FILES.iter().flat_map(|(bits, owner)| [Named::File(*bits, *owner), Named::Folder(*bits | 0o111, *owner)]);
    let mut answers = Answers::new();
    for (number, named) in [Named::Nothing].into_iter().chain(named).enumerate() {
        // A third of them meets each folder and each file.
        for (bits, owner) in FOLDERS.into_iter().skip(number % test_depth::pick(3, 1)).step_by(test_depth::pick(3, 1)) {
            let case = root.join("case");
            let path = case.join("in/path");
            let make = || {
                folder(&case, 0o755, 0);
                folder(&case.join("in"), 0o755, 0);
                match named {
                    Named::Nothing => {}
                    Named::File(bits, owner) => file(&path, bits, owner),
                    Named::Folder(bits, owner) => folder(&path, bits, owner),
                }
                folder(&case.join("beside"), 0o777, 0);
                file(&case.join("beside/there"), 0o666, USER);
                folder(&case.join("beside/folder"), 0o777, USER);
                owned(&case.join("in"), bits, owner);
            };
            make();
            let before = tree(&case);
            for (name, call) in CALLS {
                let answer = said(run_as(Who::User, || call(&path)));
                let after = tree(&case);
                if before != after {
                    fs::remove_dir_all(&case).unwrap();
                    make();
                }
                let what = format!("{name}, {named:?} in a folder {bits:o} of {owner}");
                answers.insert(what, format!("{answer}: {after}"));
            }
            fs::remove_dir_all(&case).unwrap();
        }
    }
    answers
}

#[test]
fn a_user_may_do_what_she_may_do_on_another_file_system() -> TestResult {
    compare(table)
}
