//! kill -9 in the middle of writing, and again and again in the middle of recovery.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use operation_log::{FileIdentity, Log, LogOptions, LogState, recover};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const UNDER: &str = "OPERATION_LOG_TEST_UNDER";
const FILES: usize = 12;
const BLOCK: usize = 20_000;

/// This test once more, as a process of its own that does something else.
fn child(test: &str, under: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--exact", test, "--nocapture"]).env(UNDER, under).stdout(Stdio::piped()).spawn()
}

fn content(index: usize) -> Vec<u8> {
    vec![index as u8 | 1; BLOCK]
}

#[test]
fn writes_survive_their_process() -> TestResult {
    if let Some(under) = env::var_os(UNDER) {
        return write_until_killed(Path::new(&under));
    }
    let folder = tempfile::tempdir()?;
    let mut writer = child("kill::writes_survive_their_process", folder.path())?;
    let mut lines = BufReader::new(writer.stdout.take().ok_or("its output is piped")?).lines();
    let mut acknowledged = 0;
    while acknowledged < 150 {
        let line = lines.next().ok_or("the writer has ended")??;
        if let Some(number) = line.strip_prefix("acknowledged ") {
            acknowledged = number.parse()?;
        }
    }
    writer.kill()?;
    writer.wait()?;
    while let Some(Ok(line)) = lines.next() {
        if let Some(number) = line.strip_prefix("acknowledged ").and_then(|number| number.parse().ok()) {
            acknowledged = number;
        }
    }

    // Each recovery gets a little further; the last one runs to its end.
    for delay in 0..12 {
        let mut recoverer = child("kill::recovers_what_it_is_told_to", folder.path())?;
        sleep(Duration::from_millis(3 + delay * 2));
        recoverer.kill()?;
        recoverer.wait()?;
    }
    let logs = recover(folder.path())?.logs;
    assert!(logs.iter().all(|log| matches!(log.state, LogState::Recovered)), "{logs:?}");
    for index in 0..=acknowledged {
        let mut found = vec![0; BLOCK];
        let file = File::open(folder.path().join(format!("{}", index % FILES)))?;
        file.read_exact_at(&mut found, (index / FILES * BLOCK) as u64)?;
        assert!(found == content(index), "write {index} of {acknowledged}");
    }
    Ok(())
}

#[test]
fn recovers_what_it_is_told_to() -> TestResult {
    if let Some(under) = env::var_os(UNDER) {
        recover(Path::new(&under))?;
    }
    Ok(())
}

/// Logs writes, and never brings one into its file.
fn write_until_killed(under: &Path) -> TestResult {
    let log = Log::create(under, LogOptions::new())?;
    let mut files = Vec::new();
    for index in 0..FILES {
        let path = under.join(index.to_string());
        let file = File::create(&path)?;
        files.push(log.file(FileIdentity::of(&file)?, &path)?);
    }
    for index in 0.. {
        let data = content(index);
        let offset = (index / FILES * BLOCK) as u64;
        drop(log.write(files[index % FILES], offset, 0, &[IoSlice::new(&data)])?);
        let mut output = std::io::stdout().lock();
        writeln!(output, "\nacknowledged {index}")?;
        output.flush()?;
    }
    fs::remove_dir_all(under)?;
    Ok(())
}
