//! Kernels: distributions' kernels, downloaded and extracted once into the target folder, and one that is built from source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, DEBIAN_13_BACKPORTS};
use crate::debug_kernel;
use crate::lab::{entries, extract, fetch_packages, lab_folder, numbers_in, output, path_with_sbin, run};
use crate::ubuntu::{self, UbuntuKernel};

/// A series of kernels.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Series {
    /// As in Ubuntu 22.04
    #[value(name = "5.15")]
    Linux5_15,
    /// As in Debian 12
    #[value(name = "6.1")]
    Linux6_1,
    /// As in Ubuntu 24.04, with its first kernel
    #[value(name = "6.8")]
    Linux6_8,
    /// As in Ubuntu 24.04, with a later kernel
    #[value(name = "6.11")]
    Linux6_11,
    /// As in Debian 13
    #[value(name = "6.12")]
    Linux6_12,
    /// The same, built from source with debugging checks (tests/vm/debug.config); the build takes about half an hour
    #[value(name = "6.12-debug")]
    Linux6_12Debug,
    /// As in Ubuntu 24.04, with a later kernel
    #[value(name = "6.14")]
    Linux6_14,
    /// As in Ubuntu 24.04, with a still later kernel
    #[value(name = "6.17")]
    Linux6_17,
    /// The newest backported to Debian 13
    Newest,
}

impl Series {
    /// The version, such as 6.1.
    pub(crate) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Where it comes from.
    pub(crate) fn origin(self) -> Origin {
        match self {
            Series::Linux5_15 => Origin::Ubuntu(&ubuntu::LINUX_5_15),
            Series::Linux6_1 => Origin::Debian12(r"^linux-image-6\.1\.0-[0-9]+-amd64-unsigned$"),
            Series::Linux6_8 => Origin::Ubuntu(&ubuntu::LINUX_6_8),
            Series::Linux6_11 => Origin::Ubuntu(&ubuntu::LINUX_6_11),
            Series::Linux6_12 => Origin::Debian12(r"^linux-image-6\.12\.[0-9]+\+deb1[23]-amd64-unsigned$"),
            Series::Linux6_12Debug => Origin::Source,
            Series::Linux6_14 => Origin::Ubuntu(&ubuntu::LINUX_6_14),
            Series::Linux6_17 => Origin::Ubuntu(&ubuntu::LINUX_6_17),
            Series::Newest => Origin::Debian13Backports,
        }
    }
}

/// Where kernels come from.
pub(crate) enum Origin {
    /// The newest of Debian 12's packages with such a name.
    Debian12(&'static str),
    Debian13Backports,
    Ubuntu(&'static UbuntuKernel),
    /// Built here.
    Source,
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
            match series.origin() {
                Origin::Debian12(pattern) => fetch_newest(pattern, &new)?,
                Origin::Debian13Backports => fetch_of_backports(&new)?,
                Origin::Ubuntu(kernel) => extract(&new, |folder| ubuntu::download(&kernel.image, folder))?,
                Origin::Source => debug_kernel::build(&new)?,
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

/// Downloads the newest of Debian's kernels whose name matches, and extracts it into a new folder.
fn fetch_newest(pattern: &str, root: &Path) -> Result<()> {
    let found = output(Command::new("apt-cache").args(["search", "--names-only", pattern]))?;
    let names = found.lines().filter_map(|line| line.split_whitespace().next());
    let newest = names.max_by_key(|name| numbers_in(name)).with_context(|| {
        format!("apt knows no package {pattern}: run `apt-get update`, on Debian 12 with its security updates")
    })?;
    fetch_packages(&[newest.to_owned()], root)
}

/// The same for the newest of Debian 13's backports, whose packages are cut otherwise: the image is among the modules.
fn fetch_of_backports(root: &Path) -> Result<()> {
    const IMAGE: &str = "linux-binary-unsigned-";
    let scratch = tempfile::tempdir_in(lab_folder()?)?;
    let apt = Apt::new(scratch.path(), &[DEBIAN_13_BACKPORTS])?;
    let image = apt.newest(&format!(r"^{IMAGE}[0-9.]+\+deb13-amd64$"))?;
    let release = image.trim_start_matches(IMAGE);
    let packages = [IMAGE, "linux-modules-", "linux-base-"].map(|package| format!("{package}{release}"));
    let new = scratch.path().join("root");
    extract(&new, |folder| apt.download(&packages, folder))?;
    fs::rename(new.join("usr/lib"), new.join("lib"))?;
    fs::create_dir(new.join("boot"))?;
    let image = new.join("lib/modules").join(release).join("vmlinuz.unsigned");
    fs::rename(image, new.join("boot").join(format!("vmlinuz-{release}")))?;
    fs::rename(new, root).context("moving the kernel")
}

fn release_in(root: &Path) -> Result<String> {
    let folders = entries(&root.join("lib/modules"))?;
    let [folder] = &folders[..] else { bail!("{} kernels in {}: delete it", folders.len(), root.display()) };
    Ok(folder.file_name().unwrap_or_default().to_string_lossy().into_owned())
}
