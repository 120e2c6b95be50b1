//! A process for other commands to watch: a `vmio cat`, which stands still whenever nobody reads its output.

use std::error::Error;
use std::fs;
use std::io::{Read, copy, sink};
use std::process::{Child, ChildStdout, Stdio};

use super::{TestResult, patterned, vmio};

/// The length of the file.
pub const FILE_BYTES: usize = 24 << 20;

/// A `vmio cat` of a file three times its cache, and the file.
pub struct Cat {
    /// The process.
    pub child: Child,
    output: ChildStdout,
    _file: tempfile::NamedTempFile,
}

impl Cat {
    /// Starts it, and waits until its cache is at work.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(&file, patterned(FILE_BYTES))?;
        let mut child = vmio().args(["cat", "--cache", "8M"]).arg(file.path()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("its output is piped")?;
        let mut cat = Self { child, output, _file: file };
        match cat.read(1 << 20) {
            Ok(()) => Ok(cat),
            Err(error) => Err(format!("{error}: the process has ended with {}", cat.child.wait()?).into()),
        }
    }

    /// The number of the process.
    pub fn id(&self) -> String {
        self.child.id().to_string()
    }

    /// Reads some of its output.
    pub fn read(&mut self, bytes: usize) -> TestResult {
        Ok(self.output.read_exact(&mut vec![0; bytes])?)
    }

    /// Reads the rest, and waits for the end.
    pub fn finish(&mut self) -> TestResult {
        copy(&mut self.output, &mut sink())?;
        let status = self.child.wait()?;
        assert!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        // After `finish` there is nothing left to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
