//! `vmio journal`: shows what a journal contains, and checks whether it can be opened.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use vmio::Access;
use vmio::backing::FileBacking;
use vmio::journal::{InspectedFile, Inspection, Record, RecordKind};
use vmio_report::size::format_size;

const EXAMPLES: &str = "\
Examples:
  vmio journal inspect data.journal
  vmio journal verify --json data.journal";
const INSPECT_EXAMPLES: &str = "\
Examples:
  vmio journal inspect data.journal
  vmio journal inspect --json data.journal | jq '.records[] | select(.kind == \"commit\")'";
const VERIFY_EXAMPLES: &str = "\
Examples:
  vmio journal verify data.journal && echo \"opens as its last commit\"
  vmio journal verify --json data.journal

Fails if the journal is damaged. A torn record behind the last commit, which a crash may leave, is not damage.";

/// Inspect or verify the journal of failure-atomic commits
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct JournalArgs {
    #[command(subcommand)]
    command: JournalCommand,
}

#[derive(Subcommand)]
enum JournalCommand {
    /// Print the header, files and records of a journal that no process has open
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(JournalFileArgs),
    /// Check every record, and print what opening the journal would recover, without changing anything
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(JournalFileArgs),
}

#[derive(Args)]
struct JournalFileArgs {
    /// The journal's file
    journal: PathBuf,
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs `vmio journal`.
pub fn run(args: &JournalArgs) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    match &args.command {
        JournalCommand::Inspect(args) => {
            let inspection = look_into(&args.journal)?;
            if args.json {
                let mut object = summary(&inspection);
                object["records"] = inspection.records.iter().map(record_object).collect();
                writeln!(output, "{object}")?;
            } else {
                write_summary(&mut output, &inspection)?;
                write_records(&mut output, &inspection.records)?;
            }
        }
        JournalCommand::Verify(args) => {
            let inspection = look_into(&args.journal)?;
            match args.json {
                true => writeln!(output, "{}", summary(&inspection))?,
                false => write_summary(&mut output, &inspection)?,
            }
            output.flush()?;
            if let Some(offset) = inspection.damaged_at {
                bail!("{} is damaged at byte {offset}", args.journal.display());
            }
        }
    }
    output.flush()?;
    Ok(())
}

fn look_into(path: &Path) -> vmio::Result<Inspection> {
    Inspection::of(FileBacking::open(path, Access::ReadOnly)?)
}

fn write_summary(output: &mut impl Write, journal: &Inspection) -> io::Result<()> {
    let Inspection { version, uuid, incarnation, .. } = journal;
    writeln!(output, "journal    {uuid}, format {version}, opened {incarnation} times")?;
    writeln!(output, "log        {}", format_size(journal.capacity_bytes))?;
    for file in &journal.files {
        writeln!(output, "file       {}{}", file.path, changes_of(file))?;
    }
    writeln!(output, "committed  {} (the files hold {})", journal.last_commit, journal.applied_commit)?;
    writeln!(output, "to replay  {} commits, {} pages", journal.commits, journal.pages)?;
    writeln!(output, "to forget  {} behind the last commit", format_size(journal.bytes_discarded))?;
    match (journal.damaged_at, journal.torn_at) {
        (Some(offset), _) => writeln!(output, "state      DAMAGED at byte {offset}: durable commits are lost"),
        (None, Some(offset)) => writeln!(output, "state      sound; a crash tore the record at byte {offset}"),
        (None, None) => writeln!(output, "state      sound"),
    }
}

fn changes_of(file: &InspectedFile) -> String {
    match file.len {
        Some(len) => format!(": {} pages to replay, {len} bytes long", file.pages),
        None => String::new(),
    }
}

fn write_records(output: &mut impl Write, records: &[Record]) -> io::Result<()> {
    if !records.is_empty() {
        writeln!(output, "\n{:>14}  {:<7} {:>10} {:>6}", "byte", "record", "commit", "pages")?;
    }
    for record in records {
        let Record { offset, commit, pages, .. } = record;
        writeln!(output, "{offset:>14}  {:<7} {commit:>10} {pages:>6}", kind(record.kind))?;
    }
    Ok(())
}

fn summary(journal: &Inspection) -> Value {
    let file = |file: &InspectedFile| {
        json!({
            "path": file.path,
            "device": file.identity.map(|identity| identity.device),
            "inode": file.identity.map(|identity| identity.inode),
            "pages_to_replay": file.pages,
            "committed_bytes": file.len,
        })
    };
    json!({
        "uuid": journal.uuid,
        "version": journal.version,
        "incarnation": journal.incarnation,
        "capacity_bytes": journal.capacity_bytes,
        "files": journal.files.iter().map(file).collect::<Vec<_>>(),
        "applied_commit": journal.applied_commit,
        "last_commit": journal.last_commit,
        "commits_to_replay": journal.commits,
        "pages_to_replay": journal.pages,
        "bytes_to_forget": journal.bytes_discarded,
        "torn_at": journal.torn_at,
        "damaged_at": journal.damaged_at,
    })
}

fn record_object(record: &Record) -> Value {
    json!({ "offset": record.offset, "kind": kind(record.kind), "commit": record.commit, "pages": record.pages })
}

fn kind(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Spill => "spill",
        RecordKind::Batch => "batch",
        RecordKind::Commit => "commit",
        RecordKind::Void => "void",
        RecordKind::Delta => "delta",
    }
}
