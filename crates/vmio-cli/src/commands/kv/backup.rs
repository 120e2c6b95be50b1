//! `vmio kv backup` and `vmio kv restore`.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use vmio_kv::{BackupCounts, Db, Options};
use vmio_report::new_file::NewFile;
use vmio_report::progress::with_rate;
use vmio_report::size::format_size;

/// Writes a backup to a file that appears once it is complete and durable, or to standard output for `-`.
pub fn backup(db: &Db, store: &Path, file: &Path, output: &mut impl Write) -> anyhow::Result<()> {
    let progress = Progress::start();
    if file == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!("a backup is not text: name a file, or send it through a pipe");
        }
        db.backup(opened(io::stdout().as_fd())?, |counts| progress.show(counts))?;
        return Ok(());
    }
    let new = NewFile::create(file, &[store])?.remove_if_interrupted()?;
    let counts = db.backup(new.file(), |counts| progress.show(counts))?;
    new.keep()?;
    drop(progress);
    Ok(writeln!(output, "{}", in_words(&counts))?)
}

/// Makes a store of a backup in a file, or from standard input for `-`.
pub fn restore(file: &Path, store: &Path, options: Options, output: &mut impl Write) -> anyhow::Result<()> {
    let input = match file == Path::new("-") {
        true => opened(io::stdin().as_fd())?,
        false => File::open(file).with_context(|| format!("cannot read {}", file.display()))?,
    };
    let progress = Progress::start();
    let counts = vmio_kv::restore(input, store, options, |counts| progress.show(counts))
        .with_context(|| format!("{} was not made", store.display()))?;
    drop(progress);
    Ok(writeln!(output, "{}", in_words(&counts))?)
}

/// A standard stream without its buffer.
fn opened(stream: BorrowedFd<'_>) -> io::Result<File> {
    Ok(File::from(stream.try_clone_to_owned()?))
}

fn in_words(counts: &BackupCounts) -> String {
    let noun = |count: u64, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let (keys, keyspaces) = (noun(counts.records, "key"), noun(counts.keyspaces, "keyspace"));
    format!("{keys} of {keyspaces}, {}", format_size(counts.stream_bytes))
}

/// A line on the terminal; nothing is shown when standard error is not one.
struct Progress(ProgressBar);

impl Progress {
    fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{human_pos} keys, {per_s}") {
            bar.set_style(with_rate(style));
        }
        Progress(bar)
    }

    fn show(&self, counts: &BackupCounts) {
        self.0.set_position(counts.records);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
