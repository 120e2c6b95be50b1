//! A program that reports its progress, and is stopped in the middle.

use std::error::Error;
use std::io::{BufRead, BufReader, Seek, read_to_string};
use std::process::{Child, Command, Stdio};

use super::TestResult;

/// Waits until a writer has reported `writes` writes, interrupts it, and kills it. Returns the last number that it reported.
pub fn interrupted(
    mut command: Command,
    writes: u64,
    interrupt: impl FnOnce(&mut Child) -> TestResult,
) -> Result<u64, Box<dyn Error>> {
    let mut said = tempfile::tempfile()?;
    let mut writer = command.stdout(Stdio::piped()).stderr(said.try_clone()?).spawn()?;
    let mut lines = BufReader::new(writer.stdout.take().ok_or("it is piped")?).lines();
    let mut last = 0;
    while last < writes {
        let Some(line) = lines.next() else {
            let status = writer.wait()?;
            said.rewind()?;
            return Err(format!("the writer has ended, {status}: {}", read_to_string(said)?).into());
        };
        last = line?.parse()?;
    }
    let outcome = interrupt(&mut writer);
    let _ = writer.kill();
    writer.wait()?;
    outcome?;
    // The writer has not reported a line that was cut short.
    Ok(lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).last().unwrap_or(last))
}
