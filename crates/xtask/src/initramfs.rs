//! The guest's initramfs: busybox, the kernel modules that reach the host's files, and `tests/vm/init`.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::kernel::Kernel;
use crate::lab::{run, workspace};

/// To mount the host's files; init loads all others from there.
const MODULES: [&str; 3] = ["virtio_pci", "9pnet_virtio", "9p"];
const BUSYBOX: &str = "/bin/busybox";

/// Writes the archive into a folder.
pub(crate) fn write(kernel: &Kernel, folder: &Path) -> Result<()> {
    let root = folder.join("initramfs");
    fs::create_dir_all(root.join("bin"))?;
    fs::create_dir(root.join("modules"))?;
    fs::copy(BUSYBOX, root.join("bin/busybox")).context("copying /bin/busybox: install busybox-static")?;
    fs::copy(workspace().join("tests/vm/init"), root.join("init"))?;
    fs::set_permissions(root.join("init"), Permissions::from_mode(0o755))?;
    let mut loaded = Vec::new();
    for name in MODULES {
        for file in kernel.modules(name)? {
            if !loaded.contains(&file) {
                // The shell sorts them by name.
                let copy = root.join(format!("modules/{:02}.ko", loaded.len()));
                match file.extension().and_then(OsStr::to_str) {
                    Some("xz") => run(Command::new("xz").arg("-dc").arg(&file).stdout(File::create(copy)?))?,
                    Some("zst") => run(Command::new("zstd").arg("-dc").arg(&file).stdout(File::create(copy)?))?,
                    _ => fs::copy(&file, copy).map(drop)?,
                }
                loaded.push(file);
            }
        }
    }
    let archive = "find . | cpio --quiet --owner 0:0 -o -H newc >../initramfs.cpio";
    run(Command::new("sh").args(["-c", archive]).current_dir(&root))
}
