//! Kernels: of distributions, downloaded and extracted once, under the target folder; and one that is built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::debug_kernel;
use crate::lab::{entries, extract, fetch_packages, lab_folder, numbers_in, output, path_with_sbin, run};

/// A line of kernels.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Series {
    /// As in Ubuntu 22.04
    #[value(name = "5.15")]
    Linux5_15,
    /// As in Debian 12
    #[value(name = "6.1")]
    Linux6_1,
    /// As in Debian 13
    #[value(name = "6.12")]
    Linux6_12,
    /// The same from its source, with what finds mistakes in kernel code (tests/vm/debug.config): built in half an hour or so
    #[value(name = "6.12-debug")]
    Linux6_12Debug,
}

impl Series {
    /// The version, such as 6.1.
    pub(crate) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A kernel and its modules, extracted.
pub(crate) struct Kernel {
    /// The image that QEMU loads.
    pub(crate) image: PathBuf,
    /// The folder that `modprobe --dirname` takes.
    pub(crate) root: PathBuf,
    /// As `uname -r` will say.
    pub(crate) release: String,
}

/// What debootstrap knows of that release: where its packages are.
const UBUNTU_SCRIPT: &str = "/usr/share/debootstrap/scripts/jammy";

/// Packages that Debian does not have, with their SHA-256. No update ever replaces those of a distribution's first release.
const UBUNTU: [(&str, &str); 2] = [
    (
        "pool/main/l/linux/linux-image-unsigned-5.15.0-25-generic_5.15.0-25.25_amd64.deb",
        "ac69df20790c48217eb1386ef81fd10d3f20a4ede4dab81cc107c65d29549fa0",
    ),
    (
        "pool/main/l/linux/linux-modules-5.15.0-25-generic_5.15.0-25.25_amd64.deb",
        "d0ba4087d9e1d497925b3481d3531fba6c2a852855f8019d73b0b1385aa4da1f",
    ),
];

impl Kernel {
    /// The kernel of a series: from an earlier call, or the newest that there is.
    pub(crate) fn of(series: Series) -> Result<Kernel> {
        let root = lab_folder()?.join(series.name());
        if series == Series::Linux6_12Debug && root.exists() && !debug_kernel::is_current(&root)? {
            fs::remove_dir_all(&root)?;
        }
        if !root.exists() {
            eprintln!("fetching Linux {}", series.name());
            let scratch = tempfile::tempdir_in(lab_folder()?)?;
            let new = scratch.path().join("root");
            match series {
                Series::Linux5_15 => fetch_of_ubuntu(&new)?,
                Series::Linux6_1 => fetch_newest(r"^linux-image-6\.1\.0-[0-9]+-amd64-unsigned$", &new)?,
                Series::Linux6_12 => fetch_newest(r"^linux-image-6\.12\.[0-9]+\+deb1[23]-amd64-unsigned$", &new)?,
                Series::Linux6_12Debug => debug_kernel::build(&new)?,
            }
            let release = release_in(&new)?;
            run(Command::new("depmod").arg("--basedir").arg(&new).arg(release).env("PATH", path_with_sbin()))?;
            std::fs::rename(&new, &root)?;
        }
        let release = release_in(&root)?;
        Ok(Kernel { image: root.join("boot").join(format!("vmlinuz-{release}")), root, release })
    }

    /// The files of a module and of what it needs, in the order in which they are to be loaded.
    pub(crate) fn modules(&self, name: &str) -> Result<Vec<PathBuf>> {
        let mut modprobe = Command::new("modprobe");
        modprobe.args(["--show-depends", "--set-version", &self.release, "--dirname"]).arg(&self.root).arg(name);
        let lines = output(modprobe.env("PATH", path_with_sbin()))?;
        let files = lines.lines().filter_map(|line| line.strip_prefix("insmod "));
        Ok(files.map(|file| PathBuf::from(file.trim())).collect())
    }
}

/// Downloads the packages of Ubuntu's kernel and extracts them into a new folder.
fn fetch_of_ubuntu(root: &Path) -> Result<()> {
    extract(root, |folder| {
        UBUNTU
            .iter()
            .try_for_each(|(path, sum)| download(path, sum, &folder.join(path.rsplit('/').next().unwrap_or(path))))
    })
}

/// The same for the newest of Debian's whose name matches.
fn fetch_newest(pattern: &str, root: &Path) -> Result<()> {
    let found = output(Command::new("apt-cache").args(["search", "--names-only", pattern]))?;
    let names = found.lines().filter_map(|line| line.split_whitespace().next());
    let newest = names.max_by_key(|name| numbers_in(name)).with_context(|| {
        format!("apt knows no package {pattern}: run `apt-get update`, on Debian 12 with its security updates")
    })?;
    fetch_packages(&[newest.to_owned()], root)
}

/// Downloads a file of Ubuntu's from the first of its mirrors that has it.
fn download(path: &str, sum: &str, file: &Path) -> Result<()> {
    let script = std::fs::read_to_string(UBUNTU_SCRIPT);
    let script = script.with_context(|| format!("reading {UBUNTU_SCRIPT}: is debootstrap installed?"))?;
    let mirrors = script.lines().filter_map(|line| line.trim().strip_prefix("default_mirror "));
    for mirror in mirrors {
        let mut helper = Command::new("/usr/lib/apt/apt-helper");
        helper.arg("download-file").arg(format!("{mirror}/{path}")).arg(file).arg(format!("SHA256:{sum}"));
        if run(&mut helper).is_ok() {
            return Ok(());
        }
    }
    bail!("no mirror that debootstrap knows has {path}")
}

fn release_in(root: &Path) -> Result<String> {
    let folders = entries(&root.join("lib/modules"))?;
    let [folder] = &folders[..] else { bail!("{} kernels in {}: delete it", folders.len(), root.display()) };
    Ok(folder.file_name().unwrap_or_default().to_string_lossy().into_owned())
}
