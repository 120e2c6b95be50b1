//! What the tests of the program share.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What a test returns.
pub type TestResult = Result<(), Box<dyn Error>>;

/// The program under test.
pub fn vmio_bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vmio-bench"))
}

/// Another program, where cargo builds it: it is there if its package was built, too.
pub fn beside(program: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_vmio-bench")).with_file_name(program)
}

/// Says why a test is left out; CI has all that the tests need.
pub fn leave_out(why: &str) -> TestResult {
    test_depth::skipped_outside_ci(why);
    Ok(())
}

/// Runs a benchmark with JSON on standard output.
pub fn bench(arguments: &[&str]) -> Result<Vec<Value>, Box<dyn Error>> {
    let json = succeeded(vmio_bench().args(arguments).args(["--json", "-"]))?;
    Ok(serde_json::from_str(&json)?)
}

/// For a command line.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// The command must succeed; what it printed.
pub fn succeeded(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output()?;
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The command must fail and say `message` on standard error.
pub fn refused(command: &mut Command, message: &str) -> TestResult {
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{command:?} succeeded");
    assert!(error.contains(message), "{command:?} said: {error}");
    Ok(())
}
