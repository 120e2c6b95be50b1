//! The tests of guest mode at ring 0, in a guest that has KVM of its own.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::Machine;
use crate::guest::Guest;
use crate::lab::workspace;
use crate::suite::{Executable, build};

/// Builds the tests, and has one guest run them, or those that are named; 0 if all is well.
pub(crate) fn run(machine: Machine, wanted: &[String]) -> Result<u8> {
    let built = build(&["test", "--no-run", "--package", "vmio-ring0"])?;
    let tests: Vec<&Executable> = built.iter().filter(|built| built.is_test()).collect();
    let mut list = String::new();
    for name in wanted {
        tests.iter().find(|test| test.name() == name).with_context(|| format!("no test binary is called {name}"))?;
    }
    for test in tests.iter().filter(|test| wanted.is_empty() || wanted.iter().any(|name| test.name() == name)) {
        list += &format!("{} {}\n", test.name(), test.path());
    }
    ensure!(!list.is_empty(), "there are no tests");
    let guest = Guest::new(machine.for_nested_guests(), None)?;
    fs::write(guest.out().join("tests"), list)?;
    let depth = std::env::var("VMIO_TEST_DEPTH").unwrap_or_default();
    let script = workspace().join("tests/vm/ring0").canonicalize().context("finding tests/vm/ring0")?;
    guest.run(&format!(
        "export VMIO_TEST_DEPTH={}\nexec {}",
        shlex::try_quote(&depth)?,
        shlex::try_quote(&script.to_string_lossy())?
    ))
}
