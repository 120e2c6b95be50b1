//! The lab's folder of fetched and built files, and the ways to fetch them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The folder, made if need be.
pub(crate) fn lab_folder() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    let folder = target.join("vm");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder.canonicalize()?)
}

/// The repository's root.
pub(crate) fn workspace() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Downloads packages of Debian's and extracts them into a new folder.
pub(crate) fn fetch_packages(names: &[String], root: &Path) -> Result<()> {
    extract(root, |folder| run(Command::new("apt-get").args(["download", "-q"]).args(names).current_dir(folder)))
}

/// Extracts into a new folder what a download leaves in another one, in the order of its names: `base-files` comes before what its
/// links are for.
pub(crate) fn extract(root: &Path, download: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let scratch = tempfile::tempdir_in(lab_folder()?)?;
    download(scratch.path())?;
    let new = scratch.path().join("root");
    let mut packages = entries(scratch.path())?;
    packages.sort();
    for package in packages {
        run(Command::new("dpkg").arg("-x").arg(package).arg(&new))?;
    }
    std::fs::rename(&new, root).with_context(|| format!("moving packages to {}", root.display()))
}

/// The numbers in a name: what versions are compared by.
pub(crate) fn numbers_in(text: &str) -> Vec<u32> {
    text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// What a folder has.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    read.map(|entry| Ok(entry?.path())).collect()
}

/// Where depmod, modprobe and mkfs are, which others than root may run as well.
pub(crate) fn path_with_sbin() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin"
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}: is it installed?"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// What a command that must succeed prints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}: is it installed?"))?;
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers_in("linux-image-6.1.0-100-amd64") > numbers_in("linux-image-6.1.0-56-amd64"));
    }
}
