//! Deliberate bugs in the kernel module, which its tests and the kernel 6.12-debug must find.

use std::fs;

use anyhow::{Context, Result};

use crate::guest::Guest;
use crate::patched::Patch;
use crate::{Machine, module};

/// Where a guest leaves what its kernel says, and what the suite has found of it elsewhere.
const SAID: [&str; 2] = ["kernel.log", "leaks"];

/// Runs the tests that each mutant names, or those mutants that are wanted, in a guest of its own. 0 if all fail, and the kernel says what it
/// was expected to.
pub(crate) fn run(machine: Machine, wanted: &[String]) -> Result<u8> {
    let mut survived = 0;
    for patch in Patch::all("tests/mutants")? {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == patch.name()) {
            continue;
        }
        let expected = patch.says("Expect")?;
        // It is loaded once.
        let mut arguments = vec!["0".to_owned()];
        arguments.extend(patch.says("Tests")?.split(' ').map(str::to_owned));
        let module = patch.build(machine.kernel)?;
        let guest = Guest::new(machine, None)?;
        let ended = guest.run(&module::script("tests", "suite", &[("module", &module)], &arguments, &[])?);
        let found = said(&guest)?.lines().any(|line| line.contains(expected));
        // One that stops the machine is found, too.
        let failed = !matches!(ended, Ok(0));
        let outcome = if failed && found { "found" } else { "NOT FOUND" };
        println!("mutant {}: {outcome}: {expected}", patch.name());
        survived += u8::from(!(failed && found));
    }
    Ok(survived)
}

fn said(guest: &Guest) -> Result<String> {
    let mut text = String::new();
    for name in SAID {
        let file = guest.out().join(name);
        if file.exists() {
            let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            text += &String::from_utf8_lossy(&bytes);
        }
    }
    Ok(text)
}
