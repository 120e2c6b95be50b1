//! Programs for the guest that are too new for the host, or that it need not have: packages of Debian 13, with the C library that
//! they were built for, extracted once under the target folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::lab::{extract, lab_folder, output, run};

const RELEASE: &str = "trixie";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What guests are to find on their path.
const PROGRAMS: [&str; 3] = ["mkfs.xfs", "rdma", "ibv_rc_pingpong"];

const PACKAGES: [&str; 14] = [
    "libc6",
    // File systems with exchange-range: from 6.10 on.
    "xfsprogs",
    "libblkid1",
    "libinih1",
    "liburcu8t64",
    "libuuid1",
    // Links of soft-RoCE, and bytes over them.
    "iproute2",
    "libcap2",
    "libmnl0",
    "ibverbs-utils",
    "ibverbs-providers",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
];

/// They have no libraries of the host's below them.
const WITH_LIBRARIES: &str = r#"#!/bin/sh
# Runs the program of this name that was extracted beside this folder, with the libraries that came with it.
root=$(dirname "$0")/../root
libraries=$root/usr/lib/x86_64-linux-gnu
for program in "$root/usr/sbin/${0##*/}" "$root/usr/bin/${0##*/}"; do
    [ ! -x "$program" ] || exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$program" "$@"
done
echo "$0: it has not been extracted" >&2
exit 127
"#;

/// The folder `bin` with them, `root` beside it: from an earlier call, or fetched.
pub(crate) fn fetched() -> Result<PathBuf> {
    let folder = folder()?;
    if !folder.exists() {
        eprintln!("fetching programs of Debian {RELEASE}");
        let scratch = tempfile::tempdir_in(lab_folder()?)?;
        let new = scratch.path().join("programs");
        fs::create_dir_all(new.join("bin"))?;
        let apt = Apt::new(scratch.path())?;
        extract(&new.join("root"), |packages| {
            run(apt.get().args(["download", "-q"]).args(PACKAGES).current_dir(packages))
        })?;
        for program in PROGRAMS {
            let file = new.join("bin").join(program);
            fs::write(&file, WITH_LIBRARIES)?;
            fs::set_permissions(&file, Permissions::from_mode(0o755))?;
        }
        fs::rename(new, &folder)?;
    }
    Ok(folder.join("bin"))
}

/// The same if they have been fetched.
pub(crate) fn present() -> Result<Option<PathBuf>> {
    let folder = folder()?;
    Ok(folder.exists().then(|| folder.join("bin")))
}

fn folder() -> Result<PathBuf> {
    Ok(lab_folder()?.join("programs"))
}

/// apt with lists of its own, of another release than the host's.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Fetches the lists into a folder, from the mirror that the host's packages are from.
    fn new(folder: &Path) -> Result<Apt> {
        let mirrors = output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Identifier: Packages",
            "Label: Debian",
        ]))?;
        let mirror = mirrors.lines().next().context("apt knows no mirror of Debian's")?;
        let (sources, lists, cache) = (folder.join("sources.list"), folder.join("lists"), folder.join("cache"));
        fs::write(&sources, format!("deb [signed-by={KEYRING}] {mirror} {RELEASE} main\n"))?;
        fs::create_dir_all(lists.join("partial"))?;
        fs::create_dir_all(&cache)?;
        let mut options = vec![
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ];
        for (name, path) in [("Dir::Etc::SourceList", sources), ("Dir::State::Lists", lists), ("Dir::Cache", cache)] {
            options.push(format!("{name}={}", path.display()));
        }
        let apt = Apt { options };
        run(apt.get().args(["update", "-qq"]))?;
        Ok(apt)
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}
