//! `vmio run` of programs whose forked children use the numbers of their parents' descriptors for other files: vmio leaves these alone.

use crate::common::TestResult;
use crate::common::modes;
use crate::common::modes::same_output;
use crate::common::programs::{compiled, mapped, plain, text};

#[test]
fn what_has_the_number_of_a_mapped_file_in_a_child_is_not_that_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("reused_numbers", dir.path(), &[])?;
    for case in ["map", "locked"] {
        let [without, with] = ["without", "with"].map(|name| dir.path().join(format!("{name}-{case}")));
        std::fs::create_dir(&without)?;
        std::fs::create_dir(&with)?;
        let words = [text(&program), case];
        let mut command = mapped("managed", &with, &words);
        let output = same_output(plain(&words).current_dir(&without), command.current_dir(&with))?;
        let said = String::from_utf8_lossy(&output.stderr);
        // A message names the mapped file, and no other.
        assert_eq!(said.contains("data was made shorter"), case == "map", "{case}: {said}");
        assert!(!said.contains("other"), "{case}: {said}");
    }
    Ok(())
}

#[test]
fn a_child_may_have_the_numbers_of_the_caches_descriptors() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("reused_numbers", dir.path(), &[])?;
    for mode in ["posix", "posix --cache 8M", "strict --cache 8M"] {
        let dir = tempfile::tempdir()?;
        modes::same_as_plain(mode, dir.path(), &[text(&program), "calls"])
            .map_err(|error| format!("{mode}: {error}"))?;
    }
    Ok(())
}
