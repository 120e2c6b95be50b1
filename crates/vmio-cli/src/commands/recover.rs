//! `vmio recover`: replays the operation logs of dead processes into their files.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use operation_log::{LogState, RecoveredFile, RecoveredLog, Recovery, preview, recover};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  vmio recover --dry-run /data       print what would be written, and to which files
  vmio recover /data && my-database
  vmio recover --json /data | jq '.logs[].files[] | select(.found_at == null)'

The logs are in the subfolder .vmio of DIR. The command leaves logs of running processes alone. It replays a log as a whole, flushes its
files and removes it, or leaves it unchanged. After an interruption, run the command again. Run it as the user whose programs wrote the
logs, and before any program uses the files again: a replay would overwrite later writes.

Exit status: 0 if no log of a dead process remains (or, with --dry-run, would remain), even if files of a log are gone; 1 if a log
remains, or DIR cannot be read; 2 for a wrong command line.";

/// Finish the writes of programs that died in strict mode, from their operation logs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RecoverArgs {
    /// The folder that was given to `vmio run --under`
    #[arg(value_name = "DIR")]
    under: PathBuf,
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Runs `vmio recover`.
pub fn run(args: &RecoverArgs) -> anyhow::Result<()> {
    let act = if args.dry_run { preview } else { recover };
    let recovery = act(&args.under).with_context(|| format!("cannot recover {}", args.under.display()))?;
    let mut output = io::stdout().lock();
    match args.json {
        true => writeln!(output, "{}", object(args, &recovery))?,
        false => write_text(&mut output, args, &recovery)?,
    }
    output.flush()?;
    match recovery.logs.iter().filter(|log| matches!(log.state, LogState::NotReplayed(_))).count() {
        0 => Ok(()),
        1 => bail!("1 log of a dead process remains"),
        left => bail!("{left} logs of dead processes remain"),
    }
}

fn write_text(output: &mut impl Write, args: &RecoverArgs, recovery: &Recovery) -> io::Result<()> {
    if recovery.logs.is_empty() {
        return writeln!(output, "nothing to recover: there is no log under {}", args.under.display());
    }
    for log in &recovery.logs {
        write_log(output, log, args.dry_run)?;
    }
    Ok(())
}

fn write_log(output: &mut impl Write, log: &RecoveredLog, is_dry_run: bool) -> io::Result<()> {
    let state = match &log.state {
        LogState::InUse => "in use by a running process".to_owned(),
        LogState::Recovered if is_dry_run => "to be replayed".to_owned(),
        LogState::Recovered => "replayed and removed".to_owned(),
        LogState::NotReplayed(error) => format!("NOT REPLAYED: {}", chain(error)),
    };
    let owner = log.owner.map_or(String::new(), |owner| format!(" of process {owner}"));
    writeln!(output, "log   {}{owner}: {state}", log.path.display())?;
    // If the log remains, these are the operations that it still has.
    for file in &log.files {
        let RecoveredFile { path, found_at, operations, bytes, .. } = file;
        let now = match found_at {
            None => ", gone: cannot be written".to_owned(),
            Some(now) if now == path => String::new(),
            Some(now) => format!(", now {}", now.display()),
        };
        writeln!(output, "file  {}: {operations} operations, {bytes} bytes{now}", path.display())?;
    }
    if log.torn > 0 {
        writeln!(output, "torn  {} operations that were never acknowledged", log.torn)?;
    }
    Ok(())
}

fn object(args: &RecoverArgs, recovery: &Recovery) -> Value {
    let file = |file: &RecoveredFile| {
        json!({
            "path": file.path.to_string_lossy(),
            "found_at": file.found_at.as_ref().map(|path| path.to_string_lossy()),
            "operations": file.operations,
            "bytes": file.bytes,
        })
    };
    let log = |log: &RecoveredLog| {
        let (state, error) = match &log.state {
            LogState::InUse => ("in use", None),
            LogState::Recovered if args.dry_run => ("to be replayed", None),
            LogState::Recovered => ("replayed", None),
            LogState::NotReplayed(error) => ("not replayed", Some(chain(error))),
        };
        json!({
            "path": log.path.to_string_lossy(),
            "owner": log.owner,
            "state": state,
            "error": error,
            "torn": log.torn,
            "files": log.files.iter().map(file).collect::<Vec<_>>(),
        })
    };
    json!({
        "under": args.under.to_string_lossy(),
        "dry_run": args.dry_run,
        "logs": recovery.logs.iter().map(log).collect::<Vec<_>>(),
    })
}

/// An error with its causes.
fn chain(error: &operation_log::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
