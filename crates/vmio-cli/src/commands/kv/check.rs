//! `vmio kv check`: verifies a volume.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use serde_json::{Value, json};
use vmio_kv::{Finding, Options, Report};
use vmio_report::size::format_size;

use super::steps::Steps;

/// Checks a volume and prints the report; fails if anything is wrong.
pub fn check(output: &mut impl Write, path: &Path, memory_bytes: u64, json: bool) -> anyhow::Result<()> {
    let steps = Steps::start();
    let report = vmio_kv::check(path, &Options::new().memory_bytes(memory_bytes), |event| steps.show(&event))?;
    drop(steps);
    if json {
        writeln!(output, "{}", object(&report))?;
    } else {
        write_report(output, &report)?;
    }
    output.flush()?;
    if !report.is_clean() {
        bail!("{} is damaged: {} problems", report.volume, report.problem_count);
    }
    Ok(())
}

fn write_report(output: &mut impl Write, report: &Report) -> std::io::Result<()> {
    for note in &report.notes {
        writeln!(output, "note: {note}")?;
    }
    for problem in &report.problems {
        writeln!(output, "wrong: {problem}")?;
    }
    let left_out = report.problem_count - report.problems.len() as u64;
    if left_out > 0 {
        writeln!(output, "wrong: and {left_out} more")?;
    }
    writeln!(output, "units      {} of {} allocation units taken", report.units_taken, report.units)?;
    writeln!(output, "segments   {}", report.segments)?;
    writeln!(output, "log        {} records in {} chunks", report.records, report.chunks)?;
    writeln!(output, "keyspaces  {} with {} trees of {} nodes", report.keyspaces, report.trees, report.nodes)?;
    writeln!(output, "entries    {}, of them {} superseded", report.entries, report.superseded_entries)?;
    writeln!(output, "leaked     {}", format_size(report.leaked_blocks * 4096))?;
    writeln!(output, "problems   {}", report.problem_count)
}

fn object(report: &Report) -> Value {
    let finding =
        |finding: &Finding| json!({ "structure": finding.structure, "offset": finding.offset, "what": finding.what });
    json!({
        "volume": report.volume,
        "problem_count": report.problem_count,
        "problems": report.problems.iter().map(finding).collect::<Vec<_>>(),
        "notes": report.notes.iter().map(finding).collect::<Vec<_>>(),
        "leaked_blocks": report.leaked_blocks,
        "leaked_chunks": report.leaked_chunks,
        "segments": report.segments,
        "units": report.units,
        "units_taken": report.units_taken,
        "keyspaces": report.keyspaces,
        "trees": report.trees,
        "nodes": report.nodes,
        "entries": report.entries,
        "superseded_entries": report.superseded_entries,
        "chunks": report.chunks,
        "records": report.records,
        "record_bytes": report.record_bytes,
    })
}
