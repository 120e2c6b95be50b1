//! What the tests of the command share.

use std::error::Error;
use std::process::Command;

/// What a test returns.
pub type TestResult = Result<(), Box<dyn Error>>;

/// The command under test.
pub fn vmio() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vmio"))
}

/// Bytes that repeat at no power of two.
#[allow(dead_code, reason = "not every test file needs it")]
pub fn patterned(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
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
