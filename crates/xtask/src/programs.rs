//! Programs for the guest that the host lacks or has in older versions: packages of Debian 13 with their C library, extracted once into the
//! target folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::Result;

use crate::apt::{Apt, DEBIAN_13};
use crate::lab::{extract, lab_folder};

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
        eprintln!("fetching programs of Debian 13");
        let scratch = tempfile::tempdir_in(lab_folder()?)?;
        let new = scratch.path().join("programs");
        fs::create_dir_all(new.join("bin"))?;
        let apt = Apt::new(scratch.path(), &[DEBIAN_13])?;
        extract(&new.join("root"), |packages| apt.download(&PACKAGES.map(str::to_owned), packages))?;
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
