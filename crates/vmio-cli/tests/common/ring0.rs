//! Programs in the virtual machine of their process: `vmio run --engine ring0`.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use super::vmio;

/// The command that runs a program in the machine, with a report.
pub fn under(folder: &Path, cache: &str) -> Command {
    under_with(&[], folder, cache)
}

/// The same with further options.
pub fn under_with(options: &[&str], folder: &Path, cache: &str) -> Command {
    let mut command = vmio();
    command.args(["run", "--engine", "ring0", "--cache", cache, "--stats", "--json"]).args(options);
    command.arg("--under").arg(folder).arg("--");
    command
}

/// Has a command use ring 3 where the host emulates ring 0. False, saying why, where there is no guest mode. In the lab, where VMIO_TEST_RING0 is
/// set, nothing but ring 0 will do.
pub fn chooses_level(command: &mut Command, folder: &Path) -> Result<bool, Box<dyn Error>> {
    let tried = under(folder, "16M").arg("true").output()?;
    let error = String::from_utf8_lossy(&tried.stderr);
    if std::env::var_os("VMIO_TEST_RING0").is_some() {
        assert_eq!(error, "", "there is no ring 0");
    }
    if error.contains("guest mode is not available") {
        test_depth::skipped(error.trim());
        return Ok(false);
    }
    if error.contains("emulates ring 0") {
        command.env("VMIO_RING0_LEVEL", "3");
    }
    Ok(true)
}

/// Whether threads of a process have been in a machine: each has a virtual processor there.
pub fn has_been_inside(process: u32) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(format!("/proc/{process}/fd"))? {
        // The process may have closed it by now.
        let file = std::fs::read_link(entry?.path());
        if file.is_ok_and(|file| file.to_string_lossy().contains("kvm-vcpu")) {
            return Ok(true);
        }
    }
    Ok(false)
}
