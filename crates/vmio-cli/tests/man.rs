//! `vmio man`: a page for each command, which formatters understand.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{TestResult, refused, subcommands, succeeded, vmio};

/// Formats the page as text, by the first formatter that is installed.
fn rendered(page: &Path) -> Result<Option<String>, Box<dyn Error>> {
    for (program, arguments) in [("mandoc", &["-T", "utf8"][..]), ("man", &["-l"])] {
        let mut formatter = Command::new(program);
        // Plain, and wide enough for each phrase to stay on one line.
        formatter.args(arguments).arg(page).env("MANWIDTH", "200").env("MANPAGER", "cat").env("TERM", "dumb");
        match formatter.output() {
            Ok(output) => {
                assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
                return Ok(Some(without_overstrike(&String::from_utf8(output.stdout)?)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Removes overstrikes: formatters print a bold letter as the letter, a backspace, and the letter again.
fn without_overstrike(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        if letter == '\u{8}' {
            plain.pop();
        } else {
            plain.push(letter);
        }
    }
    plain
}

#[test]
fn every_command_has_a_page_with_its_examples() -> TestResult {
    let dir = tempfile::tempdir()?;
    let pages = dir.path().join("share/man1");
    succeeded(vmio().args(["man", "--dir"]).arg(&pages))?;

    let mut names = vec!["vmio".to_owned()];
    names.extend(subcommands(&[])?.iter().map(|name| format!("vmio-{name}")));
    names.extend(subcommands(&["bench"])?.iter().map(|name| format!("vmio-bench-{name}")));
    names.extend(subcommands(&["journal"])?.iter().map(|name| format!("vmio-journal-{name}")));
    names.extend(subcommands(&["kv"])?.iter().map(|name| format!("vmio-kv-{name}")));
    names.extend(subcommands(&["pmfs"])?.iter().map(|name| format!("vmio-pmfs-{name}")));
    assert!(names.len() > 10, "{names:?}");
    assert_eq!(fs::read_dir(&pages)?.count(), names.len(), "a page too many, or one missing, of {names:?}");
    for name in names {
        let path = pages.join(format!("{name}.1"));
        let page = fs::read_to_string(&path)?;
        assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{name}: {page}");
        assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
        assert!(page.contains(".SH EXAMPLES\n.nf\n  vmio"), "{name}: {page}");
        if let Some(text) = rendered(&path)? {
            assert!(text.contains("NAME") && text.contains("EXAMPLES"), "{name}: {text}");
        }
    }
    Ok(())
}

#[test]
fn examples_keep_their_lines() -> TestResult {
    let dir = tempfile::tempdir()?;
    succeeded(vmio().args(["man", "--dir"]).arg(dir.path()))?;
    let Some(text) = rendered(&dir.path().join("vmio-bench-map.1"))? else {
        test_depth::skipped("neither mandoc nor man is installed");
        return Ok(());
    };
    let example = "  vmio bench map --size 2G --dir /data --cache 512M --pattern uniform --op read --threads 1,2,8\n";
    assert!(text.contains(example), "{text}");
    assert!(text.contains("--breakdown"), "{text}");
    Ok(())
}

#[test]
fn without_a_folder_the_main_page_is_printed() -> TestResult {
    let page = succeeded(vmio().arg("man"))?;
    assert!(page.contains(".TH vmio 1"), "{page}");
    for name in subcommands(&[])? {
        assert!(page.contains(&format!("vmio\\-{name}(1)")), "{name} is missing in {page}");
    }
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    fs::write(&file, "")?;
    refused(vmio().args(["man", "--dir"]).arg(&file), "cannot make the folder")
}
