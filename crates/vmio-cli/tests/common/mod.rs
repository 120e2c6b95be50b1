//! The common functions of the command's tests.

pub mod cat;
pub mod disk;
pub mod interruption;
pub mod modes;
pub mod programs;
pub mod redis;
pub mod ring0;

use std::error::Error;
use std::process::Command;

/// The result of a test.
pub type TestResult = Result<(), Box<dyn Error>>;

/// The command under test.
pub fn vmio() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vmio"))
}

/// Bytes that repeat at no power of two.
pub fn patterned(len: usize) -> Vec<u8> {
    // One by one they would take seconds, of files of hundreds of MiB.
    let period: Vec<u8> = (0..251).map(|index| (index * 31 % 251) as u8).collect();
    let mut bytes = period.repeat(len.div_ceil(period.len()));
    bytes.truncate(len);
    bytes
}

/// A folder in memory, where there is one: what is made durable there takes no time.
pub fn dir_in_memory() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Runs a command, which must succeed. Returns its output.
pub fn succeeded(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output()?;
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a command, which must fail and say `message` on standard error.
pub fn refused(command: &mut Command, message: &str) -> TestResult {
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{command:?} succeeded");
    assert!(error.contains(message), "{command:?} said: {error}");
    Ok(())
}

/// The subcommands that `vmio COMMAND --help` lists, without `help` itself.
pub fn subcommands(command: &[&str]) -> Result<Vec<String>, Box<dyn Error>> {
    let help = succeeded(vmio().args(command).arg("--help"))?;
    let list = help.split("Commands:\n").nth(1).ok_or_else(|| format!("no commands in {help}"))?;
    let names =
        list.lines().take_while(|line| line.starts_with("  ")).filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| *name != "help").map(str::to_owned).collect())
}
