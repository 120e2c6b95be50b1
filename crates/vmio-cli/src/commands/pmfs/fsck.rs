//! `vmio pmfs fsck`: what is wrong with a medium, and its repair.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use vmio_pmfs::{Access, Fault, Repaired, Report, check, repair};

use super::open;

pub const EXAMPLES: &str = "\
Examples:
  vmio pmfs fsck image
  vmio pmfs fsck --repair image      repair it, and print each repair and what is left
  vmio pmfs fsck --json image | jq '.faults[]'

Without --repair it sees the file system as the next mount would find it, and changes nothing.

--repair asks nothing, does what a mount does, and repairs what other structures prove: a superblock by its copy; entries of inodes that are free,
or of another kind; counts of links; files without a name, which go to lost+found by their number. Of files with the same blocks one keeps them,
and the others get copies. What cannot be proved stays, and is printed: `vmio pmfs dump` shows it. Copy the medium first if its contents matter.

Exit status, as that of e2fsck: 0 if the file system is sound; 1 if all faults were repaired; 4 if faults are left; 8 if it could not be checked;
2 for a wrong command line.";

/// The medium to check.
#[derive(Args)]
pub struct FsckArgs {
    /// The file or device
    medium: PathBuf,
    /// Repair what is provable
    #[arg(long)]
    repair: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// The file system was not sound, or is not known to be: the statuses of e2fsck.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotSound {
    /// The status that the command ends with.
    pub status: u8,
    why: String,
}

const REPAIRED: u8 = 1;
const LEFT: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// Runs the command.
pub fn run(args: &FsckArgs) -> anyhow::Result<()> {
    let path = &args.medium;
    let (done, report) = checked(path, args.repair).map_err(|error| NotSound {
        status: NOT_CHECKED,
        why: format!("cannot check {}: {error:#}", path.display()),
    })?;
    let mut output = io::stdout().lock();
    match args.json {
        true => writeln!(output, "{}", object(path, &done, &report))?,
        false => print(&mut output, path, &done, &report)?,
    }
    output.flush()?;
    let path = path.display();
    let not_sound = |status, why| Err(NotSound { status, why }.into());
    match (report.faults.len(), done.len()) {
        (0, 0) => Ok(()),
        (0, 1) => not_sound(REPAIRED, format!("{path} had 1 fault, which is repaired")),
        (0, repaired) => not_sound(REPAIRED, format!("{path} had {repaired} faults, which are repaired")),
        (1, _) => not_sound(LEFT, format!("{path} has 1 fault")),
        (faults, _) => not_sound(LEFT, format!("{path} has {faults} faults")),
    }
}

/// The faults that are no more, and what a check finds.
fn checked(path: &Path, wants_repair: bool) -> anyhow::Result<(Vec<Fault>, Report)> {
    if !wants_repair {
        return Ok((Vec::new(), check(open(path, Access::Read)?)?));
    }
    let Repaired { done, transactions, appends, orphans, report } = repair(open(path, Access::Write)?)?;
    // A mount does the same.
    if transactions > 0 || appends > 0 || orphans > 0 {
        tracing::info!(transactions, appends, orphans, "rolled back, made longer, and deleted");
    }
    Ok((done, report))
}

fn object(path: &Path, done: &[Fault], report: &Report) -> Value {
    let all = |faults: &[Fault]| {
        let faults = faults.iter().map(|fault| json!({ "at": fault.at, "what": fault.what }));
        faults.collect::<Vec<_>>()
    };
    json!({
        "medium": path.to_string_lossy(),
        "files": report.census.files,
        "directories": report.census.directories,
        "blocks": report.census.blocks,
        "orphans": report.census.orphans,
        "unfinished_transactions": report.unfinished,
        "appended_files": report.appends,
        "repaired": all(done),
        "faults": all(&report.faults),
    })
}

fn print(output: &mut impl Write, path: &Path, done: &[Fault], report: &Report) -> io::Result<()> {
    for fault in done {
        writeln!(output, "repaired  at byte {}: {}", fault.at, fault.what)?;
    }
    for fault in &report.faults {
        writeln!(output, "fault  at byte {}: {}", fault.at, fault.what)?;
    }
    if report.unfinished > 0 {
        writeln!(output, "open   {} transactions, which the next mount rolls back", report.unfinished)?;
    }
    if report.appends > 0 {
        writeln!(output, "open   appends to {} files, which the next mount makes longer", report.appends)?;
    }
    let census = report.census;
    if census.orphans > 0 {
        writeln!(output, "open   {} deleted files, whose space the next mount frees", census.orphans)?;
    }
    let state = if report.is_sound() { "sound" } else { "DAMAGED" };
    let (files, directories) = (census.files, census.directories);
    writeln!(output, "{}: {state}, {files} files, {directories} folders, {} blocks", path.display(), census.blocks)
}
