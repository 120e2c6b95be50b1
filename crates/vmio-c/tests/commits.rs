//! A program in C that commits, killed at any time.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::support::{Installed, TestResult, installed, succeeded, test_source};

/// The program's message where atomic mappings are not available.
const UNSUPPORTED: i32 = 77;
/// Counters between two commits.
const STORES: u64 = 160;
const KILLS: u32 = 12;

/// The program, with its journal and files.
struct Committer<'a> {
    library: &'a Installed,
    program: PathBuf,
    files: [PathBuf; 3],
}

impl Committer<'_> {
    fn command(&self, mode: &str) -> Command {
        let mut command = self.library.command(&self.program);
        command.arg(mode).args(&self.files).stdin(Stdio::null());
        command
    }

    /// The newest counter in both files, which agree.
    fn verified(&self) -> Result<u64, Box<dyn std::error::Error>> {
        Ok(succeeded(&mut self.command("verify"))?.trim_end().parse()?)
    }

    /// Runs it, and kills it so long after its first commits; the newest counter that it has acknowledged.
    fn killed_after(&self, delay: Duration) -> Result<u64, Box<dyn std::error::Error>> {
        let mut child = self.command("run").stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let mut acknowledged = 0;
        for (commits, line) in (1..).zip(lines) {
            acknowledged = line?.parse()?;
            if commits == 3 {
                thread::sleep(delay);
                // SIGKILL. Its earlier output is still in the pipe.
                child.kill()?;
            }
        }
        child.wait()?;
        Ok(acknowledged)
    }
}

#[test]
fn a_killed_program_leaves_both_files_at_its_last_commit() -> TestResult {
    let library = Installed::new()?;
    let compiler = *installed(&["gcc", "clang"]).first().ok_or("there is no compiler")?;
    let program = library.compile(compiler, &test_source("commit_loop.c"), &["-std=c11"])?;
    let files = ["journal", "a", "b"].map(|name| library.scratch(name));
    let committer = Committer { library: &library, program, files };
    let created = committer.command("create").output()?;
    if created.status.code() == Some(UNSUPPORTED) {
        test_depth::skipped("the managed engine has no atomic mappings");
        return Ok(());
    }
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    assert_eq!(committer.verified()?, 0);
    let mut last = 0;
    for kill in 0..KILLS {
        // At any point of a commit and of the stores between two.
        let random = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos();
        let delay = Duration::from_micros(u64::from(random / 1000 % 30_000));
        let acknowledged = committer.killed_after(delay)?;
        let found = committer.verified()?;
        let context = format!("kill {kill}, after {delay:?}: {found} is there, {acknowledged} was acknowledged");
        assert!(acknowledged > last, "it made no progress: {context}");
        assert!(found == acknowledged || found == acknowledged + STORES, "{context}");
        last = found;
    }
    // The journal is needed no more: the files alone have it all.
    assert_eq!(newest_in(&committer.files[1])?, last);
    assert_eq!(newest_in(&committer.files[2])?, last);
    Ok(())
}

/// The largest word at the beginning of a page of a file.
fn newest_in(file: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let bytes = std::fs::read(file)?;
    let word = |page: &[u8]| page.iter().take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    bytes.chunks_exact(4096).map(word).max().ok_or_else(|| format!("{name} is empty").into())
}
