//! The library's integration tests on another kernel.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Machine;
use crate::guest::Guest;
use crate::kernel::workspace;

/// Those that are left out unless they are named, and why.
const LEFT_OUT: &[(&[&str], &str)] = &[
    (&["model", "shared_addresses_model", "sparse"], "take more than ten minutes under emulation"),
    (&["commit", "managed", "sync", "units"], "take more than a minute under emulation"),
    (&["reader_thread", "shared_addresses"], "skip themselves before Linux 6.6 and 6.7"),
];

/// Builds the tests, runs them in one guest, and says how each ended; 0 if all is well.
pub(crate) fn run(machine: Machine, wanted: &[String]) -> Result<u8> {
    let mut binaries = test_binaries()?;
    if wanted.is_empty() {
        for (names, reason) in LEFT_OUT {
            println!("left out: {}: {reason}", names.join(", "));
        }
        binaries.retain(|(name, _)| !LEFT_OUT.iter().any(|(names, _)| names.contains(&name.as_str())));
    } else {
        for name in wanted {
            ensure!(binaries.iter().any(|(found, _)| found == name), "no test binary is called {name}");
        }
        binaries.retain(|(name, _)| wanted.contains(name));
    }
    let guest = Guest::new(machine, None)?;
    let script = fs::read_to_string(workspace().join("tests/vm/suite"))?;
    let list: String = binaries.iter().map(|(name, path)| format!("{name} {path}\n")).collect();
    fs::write(guest.out().join("tests"), list)?;
    guest.run(&script)
}

/// The integration tests of the library: names and executables.
fn test_binaries() -> Result<Vec<(String, String)>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--package", "vmio", "--test", "*", "--no-run", "--message-format", "json"]);
    let built = cargo.current_dir(workspace()).stderr(Stdio::inherit()).output().context("running cargo")?;
    ensure!(built.status.success(), "{cargo:?}: {}", built.status);
    let mut binaries = Vec::new();
    for line in String::from_utf8(built.stdout)?.lines() {
        let message: Value = serde_json::from_str(line)?;
        let (name, executable) = (&message["target"]["name"], &message["executable"]);
        if let (true, Some(name), Some(executable)) =
            (message["profile"]["test"] == true, name.as_str(), executable.as_str())
        {
            ensure!(Path::new(executable).is_absolute(), "{executable} is not an absolute path");
            binaries.push((name.to_owned(), executable.to_owned()));
        }
    }
    Ok(binaries)
}
