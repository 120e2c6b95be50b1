//! A debug kernel, which finds bugs in its own code and in the module's. No distribution ships one, so it is built from the source of Debian's
//! kernel with exactly the options of `tests/vm/debug.config`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::lab::{entries, fetch_packages, lab_folder, output, run, workspace};

const PACKAGE: &str = "linux-source-6.12";
const OPTIONS: &str = "debug.config";

/// What it is built in; modules are built against it.
pub(crate) fn build_folder() -> Result<PathBuf> {
    Ok(lab_folder()?.join("6.12-debug-build"))
}

/// Builds it, and puts it into a new folder, as a package would.
pub(crate) fn build(root: &Path) -> Result<()> {
    let (source, folder) = (source()?, build_folder()?);
    fs::create_dir_all(&folder)?;
    let options = options_file()?;
    let make = |targets: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(&source).arg(format!("O={}", folder.display()));
        make.arg(format!("-j{}", thread::available_parallelism().map_or(1, usize::from))).args(targets);
        make
    };
    run(make(&["allnoconfig"]).env("KCONFIG_ALLCONFIG", &options))?;
    check_taken(&options, &folder.join(".config"))?;
    eprintln!("building Linux with checks of its own code: this takes half an hour or so");
    run(&mut make(&["bzImage", "modules"]))?;
    run(make(&["modules_install"]).env("INSTALL_MOD_PATH", root))?;
    let release = output(&mut make(&["kernelrelease"]))?;
    let boot = root.join("boot");
    fs::create_dir_all(&boot)?;
    fs::copy(&options, boot.join(OPTIONS))?;
    let image = folder.join("arch/x86/boot/bzImage");
    let copied = fs::copy(&image, boot.join(format!("vmlinuz-{}", release.trim())));
    copied.map(drop).with_context(|| format!("copying {}", image.display()))
}

/// Whether the kernel in a folder was built with today's options.
pub(crate) fn is_current(root: &Path) -> Result<bool> {
    Ok(fs::read(root.join("boot").join(OPTIONS)).ok() == Some(fs::read(options_file()?)?))
}

fn options_file() -> Result<PathBuf> {
    Ok(workspace().join("tests/vm").join(OPTIONS).canonicalize()?)
}

/// Options that lack others are left out without a word.
fn check_taken(wanted: &Path, taken: &Path) -> Result<()> {
    let (wanted, taken) = (fs::read_to_string(wanted)?, fs::read_to_string(taken)?);
    for line in wanted.lines().filter(|line| line.starts_with("CONFIG")) {
        ensure!(taken.lines().any(|taken| taken == line), "{OPTIONS}: the kernel does not take {line}");
    }
    Ok(())
}

/// The source, from an earlier call or from Debian.
fn source() -> Result<PathBuf> {
    let source = lab_folder()?.join("6.12-debug-source");
    if !source.exists() {
        let scratch = tempfile::tempdir_in(lab_folder()?)?;
        let package = scratch.path().join("package");
        fetch_packages(&[PACKAGE.to_owned()], &package)?;
        let is_archive = |path: &PathBuf| path.to_string_lossy().contains(&format!("/{PACKAGE}.tar"));
        let archive = entries(&package.join("usr/src"))?.into_iter().find(is_archive);
        let archive = archive.with_context(|| format!("{PACKAGE} has no archive"))?;
        let new = scratch.path().join("source");
        fs::create_dir(&new)?;
        run(Command::new("tar").arg("-xf").arg(archive).args(["--strip-components", "1", "-C"]).arg(&new))?;
        fs::rename(new, &source)?;
    }
    Ok(source)
}
