//! The root folder in which a module for a newer kernel than the host's is built: the kernel's headers with their compiler and C library.
//! Building there takes no privileges, since it uses user namespaces.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::apt::{Apt, DEBIAN_13, DEBIAN_13_BACKPORTS};
use crate::kernel::{Kernel, Origin, Series};
use crate::lab::{extract, lab_folder};
use crate::ubuntu;

/// Beside the headers: what a kernel's makefiles call. The first has the links that others' paths go through; the library is
/// that of a program which comes with the headers.
const PACKAGES: [&str; 15] = [
    "base-files",
    "binutils",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gcc-14",
    "grep",
    "libelf1t64",
    "make",
    "mawk",
    "perl",
    "python3",
    "sed",
    "sparse",
];

/// What all of them are built with, whatever the kernel was.
pub(crate) const COMPILER: &str = "gcc-14";

/// Of a root: all that it has of the host.
const ENTER: &str = r#"mount --bind /dev/null "$0/dev/null" && mount --rbind /proc "$0/proc" && exec chroot "$0" "$@""#;

pub(crate) struct BuildRoot {
    root: PathBuf,
}

impl BuildRoot {
    /// That for a kernel, in a folder of the lab: from an earlier call, or fetched.
    pub(crate) fn of(kernel: &Kernel, series: Series) -> Result<BuildRoot> {
        let build = BuildRoot { root: lab_folder()?.join(format!("{}-build-root", series.name())) };
        if !build.within(&build.headers(kernel)).exists() {
            if build.root.exists() {
                fs::remove_dir_all(&build.root)?;
            }
            eprintln!("fetching the headers of Linux {}, and a compiler for it", kernel.release);
            let scratch = tempfile::tempdir_in(lab_folder()?)?;
            let mut names = PACKAGES.map(str::to_owned).to_vec();
            let (releases, of_ubuntu): (&[&str], &[_]) = match series.origin() {
                Origin::Ubuntu(kernel) => (&[DEBIAN_13], kernel.headers),
                _ => {
                    names.push(format!("linux-headers-{}", kernel.release));
                    (&[DEBIAN_13, DEBIAN_13_BACKPORTS], &[])
                }
            };
            let apt = Apt::new(scratch.path(), releases)?;
            let new = scratch.path().join("root");
            extract(&new, |folder| {
                apt.download_all(&names, folder)?;
                ubuntu::download(of_ubuntu, folder)
            })?;
            // What installing would do.
            symlink("mawk", new.join("usr/bin/awk"))?;
            File::create(new.join("dev/null"))?;
            fs::rename(&new, &build.root)?;
        }
        let can_enter = build.command("true").output()?.status.success();
        ensure!(can_enter, "building for Linux {} takes user namespaces, or root: unshare(1) may not", kernel.release);
        Ok(build)
    }

    /// The folder that `make -C` takes there.
    pub(crate) fn headers(&self, kernel: &Kernel) -> PathBuf {
        Path::new("/usr/src").join(format!("linux-headers-{}", kernel.release))
    }

    /// Where the host has a path of the root's.
    pub(crate) fn within(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Runs a program of the root's there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", ENTER]).arg(&self.root).arg(program);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LANG", "C").env_remove("TMPDIR");
        command
    }
}
