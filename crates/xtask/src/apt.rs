//! apt with its own package lists: newer Debian releases than the host's, from the host's mirror, without touching installed packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::lab::{entries, numbers_in, output, run};

pub(crate) const DEBIAN_13: &str = "trixie";
/// Newer kernels for it.
pub(crate) const DEBIAN_13_BACKPORTS: &str = "trixie-backports";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

pub(crate) struct Apt {
    options: Vec<String>,
    cache: PathBuf,
}

impl Apt {
    /// Fetches the lists of some releases into a folder.
    pub(crate) fn new(folder: &Path, releases: &[&str]) -> Result<Apt> {
        let mirrors = output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Identifier: Packages",
            "Label: Debian",
        ]))?;
        let mirror = mirrors.lines().next().context("apt knows no mirror of Debian's")?;
        let at = |name: &str| folder.join(name);
        let sources = releases.iter().map(|release| format!("deb [signed-by={KEYRING}] {mirror} {release} main\n"));
        fs::write(at("sources.list"), sources.collect::<String>())?;
        fs::write(at("status"), "")?;
        fs::create_dir_all(at("lists/partial"))?;
        fs::create_dir_all(at("cache/archives/partial"))?;
        let mut options = vec![
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // Others than root may not take the lock of what is installed.
            "Debug::NoLocking=true".to_owned(),
        ];
        for (name, path) in [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::State::Lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
        ] {
            options.push(format!("{name}={}", path.display()));
        }
        let apt = Apt { options, cache: at("cache") };
        run(apt.program("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    /// The package with the highest version in its name, of those whose name matches.
    pub(crate) fn newest(&self, pattern: &str) -> Result<String> {
        let found = output(self.program("apt-cache").args(["search", "--names-only", pattern]))?;
        let names = found.lines().filter_map(|line| line.split_whitespace().next());
        let newest = names.max_by_key(|name| numbers_in(name));
        newest.map(str::to_owned).with_context(|| format!("Debian has no package {pattern}"))
    }

    /// Downloads packages into a folder.
    pub(crate) fn download(&self, names: &[String], folder: &Path) -> Result<()> {
        run(self.program("apt-get").args(["download", "-q"]).args(names).current_dir(folder))
    }

    /// The same with all that they depend on, as if nothing were installed.
    pub(crate) fn download_all(&self, names: &[String], folder: &Path) -> Result<()> {
        let mut install = self.program("apt-get");
        install.args(["install", "-y", "-qq", "--no-install-recommends", "--download-only"]);
        run(install.args(names))?;
        for file in entries(&self.cache.join("archives"))? {
            if file.extension().is_some_and(|end| end == "deb") {
                fs::rename(&file, folder.join(file.file_name().unwrap_or_default()))?;
            }
        }
        Ok(())
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}
