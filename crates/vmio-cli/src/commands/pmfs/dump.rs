//! `vmio pmfs dump`: the structures of a medium, also of a damaged one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use vmio_pmfs::{
    Access, BLOCK_BYTES, EntryFound, ExtentFound, Fault, Inspection, JournalFound, Kind, Medium, Said, SlotFound,
    Superblock,
};
use vmio_report::size::format_size;

use super::{open, uuid};

pub const EXAMPLES: &str = "\
Examples:
  vmio pmfs dump image               the superblock and its copy, the areas, slots of files that grow, and free space by the length of its runs
  vmio pmfs dump image /folder/file  an inode: its fields and extents; the entries of a folder
  vmio pmfs dump image --inode 66
  vmio pmfs dump image --journals    the entries of all journals
  vmio pmfs dump --json image /folder | jq -r '.entries[].name'

It changes nothing, and works where the file system does not mount: damaged structures are shown, with their faults. Numbers behind an
`at` are bytes of the medium. It shows the medium as it is; --recovered shows it as the next mount would find it: a file is as long as its slot says.";

/// The structures to look at.
#[derive(Args)]
pub struct DumpArgs {
    /// The file or device
    medium: PathBuf,
    /// Show this file or folder: a path from the root of the file system
    path: Option<PathBuf>,
    /// Show the inode of this number
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["path", "journals"])]
    inode: Option<u64>,
    /// Show the journals
    #[arg(long, conflicts_with = "path")]
    journals: bool,
    /// Show the medium as the next mount would find it: without transactions that a crash has cut short, and with what was appended durably
    #[arg(long)]
    recovered: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &DumpArgs) -> anyhow::Result<()> {
    let cannot = || format!("cannot look into {}", args.medium.display());
    let medium = open(&args.medium, Access::Read).with_context(cannot)?;
    let (mut human, object) = (Vec::new(), &mut Value::Null);
    let shown = show(args, medium, &mut human, object);
    let mut output = io::stdout().lock();
    match args.json {
        true if object.is_null() => {}
        true => writeln!(output, "{object}")?,
        false => output.write_all(&human)?,
    }
    output.flush()?;
    shown.with_context(cannot)
}

fn show(args: &DumpArgs, medium: Arc<dyn Medium>, output: &mut Vec<u8>, object: &mut Value) -> anyhow::Result<()> {
    let is_whole = args.path.is_none() && args.inode.is_none() && !args.journals;
    if is_whole {
        *object = json!({ "superblocks": superblocks(&*medium, output)? });
    }
    let inspection = match args.recovered {
        true => Inspection::recovered(medium),
        false => Inspection::new(medium),
    }?;
    if args.journals {
        *object = json!({ "journals": journals(&inspection, output)? });
    } else if is_whole {
        object["areas"] = areas(&inspection, output)?;
        object["slots"] = slots(&inspection.slots(), output)?;
        object["free"] = free(&inspection, output)?;
    } else {
        let ino = match (&args.path, args.inode) {
            (Some(path), _) => inspection.find(path.as_os_str().as_bytes()).with_context(|| place(path))?,
            (None, number) => number.unwrap_or_default(),
        };
        *object = inode(&inspection, ino, output)?;
    }
    Ok(())
}

fn place(path: &Path) -> String {
    format!("{} is not found", path.display())
}

fn superblocks(medium: &dyn Medium, output: &mut Vec<u8>) -> io::Result<Value> {
    let mut all = Vec::new();
    for ((at, read), name) in Superblock::both(medium).into_iter().zip(["superblock", "its copy"]) {
        all.push(match read {
            Ok(superblock) => {
                let geometry = superblock.geometry;
                writeln!(
                    output,
                    "{name:<10}  at {at}: UUID {}, {} blocks, {} areas, {} inodes an area, {} blocks a journal, {} of saved data",
                    uuid(&superblock),
                    geometry.blocks,
                    geometry.areas,
                    geometry.inodes,
                    geometry.journal_blocks,
                    geometry.save_blocks,
                )?;
                json!({
                    "at": at,
                    "uuid": uuid(&superblock),
                    "blocks": geometry.blocks,
                    "areas": geometry.areas,
                    "inodes_an_area": geometry.inodes,
                    "journal_blocks": geometry.journal_blocks,
                    "save_blocks": geometry.save_blocks,
                })
            }
            Err(error) => {
                writeln!(output, "{name:<10}  at {at}: UNUSABLE: {error}")?;
                json!({ "at": at, "fault": error.to_string() })
            }
        });
    }
    Ok(Value::from(all))
}

fn areas(inspection: &Inspection, output: &mut Vec<u8>) -> io::Result<Value> {
    let mut all = Vec::new();
    for (number, area) in inspection.areas().into_iter().enumerate() {
        let shown = |bytes: &Range<u64>| format!("{}..{}", bytes.start, bytes.end);
        writeln!(
            output,
            "area {number:<5}  at {}: journal {}, saved data {}, slots {}, inodes {} to {} {}, pool {}",
            shown(&area.bytes),
            shown(&area.journal),
            shown(&area.saves),
            shown(&area.slots),
            area.numbers.start,
            area.numbers.end - 1,
            shown(&area.inodes),
            shown(&area.pool),
        )?;
        let range = |bytes: &Range<u64>| json!([bytes.start, bytes.end]);
        all.push(json!({
            "bytes": range(&area.bytes),
            "journal": range(&area.journal),
            "saved_data": range(&area.saves),
            "slots": range(&area.slots),
            "inode_table": range(&area.inodes),
            "inodes": range(&area.numbers),
            "pool": range(&area.pool),
        }));
    }
    Ok(Value::from(all))
}

/// The slots of growing files that say something.
fn slots(found: &[SlotFound], output: &mut Vec<u8>) -> io::Result<Value> {
    let mut all = Vec::new();
    for SlotFound { at, ino, generation, length, is_closed, reserved, fault } in found {
        let closed = if *is_closed { ", closed" } else { "" };
        let Range { start, end } = reserved;
        writeln!(
            output,
            "slot        at {at}: inode {ino}, generation {generation}, grows to {length} bytes in blocks {start} to {end}{closed}"
        )?;
        if let Some(fault) = fault {
            writeln!(output, "fault       at {at}: {fault}")?;
        }
        all.push(json!({
            "at": at, "inode": ino, "generation": generation, "length": length, "is_closed": is_closed,
            "reserved": [start, end], "fault": fault,
        }));
    }
    Ok(Value::from(all))
}

/// Free space by the length of its runs: how many there are of 1 block, of 2 and 3, of 4 to 7, and so on.
fn free(inspection: &Inspection, output: &mut Vec<u8>) -> io::Result<Value> {
    let (runs, faults) = inspection.free_runs();
    let mut by_length: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for run in &runs {
        let blocks = run.end - run.start;
        let sum = by_length.entry(blocks.ilog2()).or_default();
        *sum = (sum.0 + 1, sum.1 + blocks);
    }
    let mut all = Vec::new();
    for (power, (runs, blocks)) in by_length {
        let (least, most) = (1_u64 << power, (2_u64 << power) - 1);
        let size = format_size(blocks * BLOCK_BYTES);
        writeln!(output, "free        {runs} runs of {least} to {most} blocks: {blocks} blocks, {size}")?;
        all.push(json!({ "least": least, "most": most, "runs": runs, "blocks": blocks }));
    }
    if !faults.is_empty() {
        writeln!(output, "Inodes that cannot be read may have some of these blocks:")?;
    }
    Ok(json!({ "runs_by_length": all, "unreadable": show_faults(&faults, output)? }))
}

fn show_faults(faults: &[Fault], output: &mut Vec<u8>) -> io::Result<Value> {
    let mut all = Vec::new();
    for fault in faults {
        writeln!(output, "fault       at {}: {}", fault.at, fault.what)?;
        all.push(json!({ "at": fault.at, "what": fault.what }));
    }
    Ok(Value::from(all))
}

fn journals(inspection: &Inspection, output: &mut Vec<u8>) -> io::Result<Value> {
    let mut all = Vec::new();
    for (area, JournalFound { at, places, entries, newest }) in inspection.journals().into_iter().enumerate() {
        let state = match newest {
            None => "nothing has begun".to_owned(),
            Some((number, true)) => format!("transaction {number} is the newest, and is over"),
            Some((number, false)) => format!("transaction {number} is UNFINISHED"),
        };
        writeln!(output, "journal {area:<2}  at {at}: {} entries in {places} places; {state}", entries.len())?;
        let mut lines = Vec::new();
        for (place, lap, transaction, said) in entries {
            let (name, said, value) = match said {
                Said::Start => ("START", String::new(), Value::Null),
                Said::Commit => ("COMMIT", String::new(), Value::Null),
                Said::Old { at, bytes, old } => {
                    let old: String = old[..bytes.into()].iter().map(|byte| format!("{byte:02x}")).collect();
                    ("DATA", format!(" at {at}: {bytes} bytes were {old}"), json!({ "at": at, "old": old }))
                }
                Said::Saved { at, from, bytes } => {
                    let value = json!({ "at": at, "saved_at": from, "bytes": bytes });
                    ("SAVED", format!(" at {at}: {bytes} bytes are saved at {from}"), value)
                }
            };
            writeln!(output, "  place {place:<5}  lap {lap:<5}  transaction {transaction}: {name}{said}")?;
            lines.push(json!({ "place": place, "lap": lap, "transaction": transaction, "kind": name, "about": value }));
        }
        let newest = newest.map(|(number, is_over)| json!({ "transaction": number, "is_over": is_over }));
        all.push(json!({ "at": at, "places": places, "newest": newest, "entries": lines }));
    }
    Ok(Value::from(all))
}

fn kind(kind: Option<Kind>, byte: u8) -> String {
    match kind {
        Some(Kind::File) => "file".to_owned(),
        Some(Kind::Directory) => "folder".to_owned(),
        Some(Kind::Symlink) => "symbolic link".to_owned(),
        Some(Kind::Fifo) => "pipe".to_owned(),
        Some(Kind::Socket) => "socket".to_owned(),
        Some(Kind::CharDevice) => "character device".to_owned(),
        Some(Kind::BlockDevice) => "block device".to_owned(),
        None if byte == 0 => "free".to_owned(),
        None => format!("unknown ({byte})"),
    }
}

fn inode(inspection: &Inspection, ino: u64, output: &mut Vec<u8>) -> anyhow::Result<Value> {
    let found = match inspection.inode(ino) {
        Ok(found) => found,
        Err(_) => bail!("there can be no inode {ino}: the last one is {}", last(inspection)),
    };
    let kind_name = kind(found.kind, found.kind_byte);
    writeln!(output, "inode       {ino} at {}: {kind_name}, generation {}", found.at, found.generation)?;
    let mut object = json!({
        "inode": ino, "at": found.at, "kind": kind_name, "kind_byte": found.kind_byte, "generation": found.generation,
    });
    object["faults"] = show_faults(&found.faults, output)?;
    if found.kind_byte == 0 {
        return Ok(object);
    }
    writeln!(output, "size        {}", found.size)?;
    writeln!(
        output,
        "mode        {:#o}, {} links, owner {}, group {}, flags {:#x}",
        found.mode, found.links, found.uid, found.gid, found.flags
    )?;
    let mut times = json!({});
    for (name, time) in [("accessed", found.accessed), ("modified", found.modified), ("changed", found.changed)] {
        writeln!(output, "{name:<10}  {}.{:09} s since 1970", time.seconds, time.nanoseconds)?;
        times[name] = json!({ "seconds": time.seconds, "nanoseconds": time.nanoseconds });
    }
    match found.kind {
        Some(Kind::Directory) => writeln!(output, "parent      {}", found.parent_or_device)?,
        Some(Kind::CharDevice | Kind::BlockDevice) => writeln!(output, "device      {}", found.parent_or_device)?,
        _ => {}
    }
    if let Some(target) = &found.target {
        writeln!(output, "target      {}", text(target))?;
        object["target"] = Value::from(text(target));
    }
    for ExtentFound { at, file_block, blocks, start, aligned_extents } in &found.extents {
        let aligned = match aligned_extents {
            0 => String::new(),
            count => format!(", {count} aligned"),
        };
        writeln!(output, "extent      at {at}: file blocks {file_block} + {blocks} in block {start}{aligned}")?;
    }
    for block in &found.chain {
        writeln!(output, "chain       block {block}")?;
    }
    // A slot says how long the file is with what a process has appended. The next mount makes it so.
    let mut of_file = inspection.slots();
    of_file.retain(|slot| slot.ino == ino);
    object["slots"] = slots(&of_file, output)?;
    if found.attributes != 0 {
        writeln!(output, "attributes  block {}", found.attributes)?;
    }
    for (name, value) in &found.xattrs {
        writeln!(output, "attribute   {}: {} bytes", text(name), value.len())?;
    }
    let more = json!({
        "size": found.size, "mode": found.mode, "links": found.links, "uid": found.uid, "gid": found.gid,
        "flags": found.flags, "times": times, "parent_or_device": found.parent_or_device,
        "chain": found.chain, "attributes_block": found.attributes,
        "attributes": found.xattrs.iter().map(|(name, value)| json!({ "name": text(name), "bytes": value.len() })).collect::<Vec<_>>(),
        "extents": found.extents.iter().map(|extent| json!({
            "at": extent.at, "file_block": extent.file_block, "blocks": extent.blocks, "start": extent.start,
            "aligned_extents": extent.aligned_extents,
        })).collect::<Vec<_>>(),
    });
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
    if found.kind == Some(Kind::Directory) {
        show_entries(inspection, ino, output, &mut object)?;
    }
    Ok(object)
}

fn show_entries(inspection: &Inspection, ino: u64, output: &mut Vec<u8>, object: &mut Value) -> anyhow::Result<()> {
    let (entries, faults) = match inspection.entries(ino) {
        Ok(found) => found,
        // The faults of the inode say why.
        Err(_) => return Ok(writeln!(output, "entries     unknown: the inode is damaged")?),
    };
    let mut all = Vec::new();
    for EntryFound { at, slot, ino, kind: named, name } in &entries {
        let named = kind(Some(*named), 0);
        writeln!(output, "entry       at {at}: slot {slot}, inode {ino}, {named} {}", text(name))?;
        all.push(json!({ "at": at, "slot": slot, "inode": ino, "kind": named, "name": text(name) }));
    }
    object["entries"] = Value::from(all);
    object["entry_faults"] = show_faults(&faults, output)?;
    Ok(())
}

fn last(inspection: &Inspection) -> u64 {
    inspection.superblock().geometry.all_inodes() - 1
}

/// A name as text: bytes that are none are shown as their number.
fn text(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => name.escape_ascii().to_string(),
    }
}
