//! The QEMU that runs guests: Debian 13's, extracted once into the target folder with its C library. Every host then has the same one, and one
//! that runs a guest's guest at ring 0 right (tests/vm/README.md).

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::apt::{Apt, DEBIAN_13};
use crate::lab::{extract, lab_folder};

/// Its program, libraries and firmware.
pub(crate) struct Emulator {
    root: PathBuf,
}

impl Emulator {
    /// From an earlier call, or fetched.
    pub(crate) fn fetched() -> Result<Emulator> {
        let root = lab_folder()?.join("qemu");
        if !root.exists() {
            eprintln!("fetching QEMU of Debian 13");
            let scratch = tempfile::tempdir_in(lab_folder()?)?;
            let apt = Apt::new(scratch.path(), &[DEBIAN_13])?;
            extract(&root, |packages| apt.download_all(&["qemu-system-x86".to_owned()], packages))?;
        }
        Ok(Emulator { root })
    }

    /// Its program, for another one that starts it.
    pub(crate) fn added_to<'c>(&self, starter: &'c mut Command) -> &'c mut Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        starter.arg(libraries.join("ld-linux-x86-64.so.2")).arg("--library-path").arg(libraries);
        starter.arg(self.root.join("usr/bin/qemu-system-x86_64"));
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            starter.arg("-L").arg(self.root.join(firmware));
        }
        starter
    }
}
