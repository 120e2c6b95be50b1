//! `make install`: the command with what belongs to it.

mod common;

use std::path::Path;
use std::process::Command;

use common::{TestResult, succeeded};

#[test]
fn the_command_is_installed_with_its_pages_and_completions() -> TestResult {
    let root = tempfile::tempdir()?;
    let built = Path::new(env!("CARGO_BIN_EXE_vmio")).parent().ok_or("the command stands in no folder")?;
    let mut make = Command::new("make");
    make.args(["install", "PARTS=command", "PREFIX=/usr"]).arg(format!("DESTDIR={}", root.path().display()));
    make.arg(format!("BUILT={}", built.display())).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    succeeded(make.env_remove("MAKEFLAGS"))?;

    let installed = root.path().join("usr");
    assert!(succeeded(Command::new(installed.join("bin/vmio")).arg("--version"))?.starts_with("vmio "));
    for file in [
        "share/man/man1/vmio.1",
        "share/man/man1/vmio-bench-map.1",
        "share/bash-completion/completions/vmio",
        "share/zsh/site-functions/_vmio",
        "share/fish/vendor_completions.d/vmio.fish",
    ] {
        assert!(installed.join(file).metadata()?.len() > 100, "{file}");
    }
    assert!(!installed.join("include").exists(), "the library was not asked for");
    Ok(())
}
