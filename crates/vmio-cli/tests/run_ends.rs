//! `vmio run` of programs that end, or go on, otherwise than by the end of `main`.

mod common;

use std::fs;

use common::TestResult;
use common::modes::{same_as_plain, same_output};
use common::programs::{compiled, mapped, plain, text};

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
