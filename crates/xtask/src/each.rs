//! Tests over guest mode at ring 0, each in a process of its own: of the library, the store, and `vmio run`. A guest that emulation ends is
//! followed by another, which goes on with the next test.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::Machine;
use crate::guest::Guest;
use crate::suite::{ListedTest, build_tests, tests_of};

/// Of the command's tests, the files with programs whose files are mapped.
const OF_THE_COMMAND: [&str; 5] = ["run", "run_postgresql", "run_ring0", "run_ring0_debuggers", "run_ring0_servers"];
/// How many guests may end without a result.
const MOST_GUESTS: usize = 20;

/// Runs all of them, or those whose package, file or test is named; 0 if none has failed. A test that takes longer than `limit` seconds is
/// listed, and is no failure: emulation makes some take hours.
pub(crate) fn run(machine: Machine, limit: u64, wanted: &[String]) -> Result<u8> {
    let built = build_tests()?;
    let mut tests = tests_of(&built)?;
    tests.retain(|test| is_over_ring_0(test) && (wanted.is_empty() || wanted.iter().any(|name| is_named(test, name))));
    ensure!(!tests.is_empty(), "no test has such a name");
    let list: String =
        tests.iter().map(|test| format!("{} {} {}\n", test.package, test.executable, test.name)).collect();
    let guest = Guest::new(machine.for_nested_guests(), None)?;
    for (name, text) in [("list", list.as_str()), ("begun", ""), ("ended", "")] {
        fs::write(guest.out().join(name), text)?;
    }
    let mut script = format!("export LIMIT={limit}\n");
    // The guest has none of the host's variables.
    for (name, value) in std::env::vars().filter(|(name, _)| name.starts_with("VMIO_TEST_") || name == "PROPTEST_CASES")
    {
        script += &format!("export {name}={}\n", shlex::try_quote(&value)?);
    }
    script += "exec tests/vm/each";
    let mut ended_with_guest = 0;
    let status = loop {
        match guest.run(&script) {
            Ok(status) => break status,
            Err(error) if ended_with_guest < MOST_GUESTS => {
                println!("{} has ended with its guest: {error:#}", last_line(&guest.out().join("begun"))?);
                ended_with_guest += 1;
            }
            Err(error) => return Err(error),
        }
    };
    println!("{} tests were to run; {ended_with_guest} ended with their guest", tests.len());
    Ok(status)
}

fn is_over_ring_0(test: &ListedTest) -> bool {
    match test.package {
        "vmio" | "vmio-kv" => !["kernel_engine", "kernel_verify_before_map", "kernel_store"].contains(&test.file()),
        "vmio-cli" => OF_THE_COMMAND.contains(&test.file()),
        _ => false,
    }
}

fn is_named(test: &ListedTest, name: &str) -> bool {
    [test.package, test.file(), &test.name].contains(&name)
}

fn last_line(file: &Path) -> Result<String> {
    Ok(fs::read_to_string(file)?.lines().last().unwrap_or_default().to_owned())
}
