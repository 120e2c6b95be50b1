//! `make install`: the command with everything that belongs to it.

use std::path::Path;
use std::process::Command;

use crate::common::{TestResult, succeeded};

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
        "lib/vmio/libvmio_posix.so",
        "share/zsh/site-functions/_vmio",
        "share/fish/vendor_completions.d/vmio.fish",
    ] {
        assert!(installed.join(file).metadata()?.len() > 100, "{file}");
    }
    // `vmio run` finds its libraries there, and a program that maps nothing runs as ever.
    let mut run = Command::new(installed.join("bin/vmio"));
    let output = run.args(["run", "--cache", "8M", "--under", "."]).args(["--", "echo", "it runs"]).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout == b"it runs\n" || error.contains("may not handle page faults"), "{error}");
    assert!(!installed.join("include").exists(), "the library was not asked for");
    Ok(())
}
