//! What pages are made of: tables, targets, the machine, the commands.

use std::path::Path;
use std::{fs, thread};

use anyhow::{Context, Result};
use vmio_report::{machine, surroundings};

use crate::figure::{DASH, times};
use crate::targets;

/// A table in Markdown; columns of text are to the left, the others to the right.
pub fn table(head: &[&str], rows: &[Vec<String>], text_columns: &[usize]) -> String {
    let rule = (0..head.len()).map(|column| if text_columns.contains(&column) { "---" } else { "--:" });
    let line = |cells: Vec<&str>| format!("| {} |", cells.join(" | "));
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    [line(head.to_vec()), line(rule.collect())].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// What is asked of a figure.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// This or more, to two digits after the point.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Wanted {
    /// Whether a figure is what is wanted.
    pub fn holds(self, measured: f64) -> bool {
        match self {
            Self::AtLeast(wanted) => targets::reaches(measured, wanted),
            Self::AtMost(wanted) => measured <= wanted,
        }
    }
}

/// A row of the table of targets: what is asked, what was measured, and whether it holds.
pub fn target(what: impl Into<String>, measured: Option<f64>, wanted: Wanted) -> Vec<String> {
    target_shown(what, measured, wanted, times)
}

/// The same with figures that are shown otherwise than ratios are.
pub fn target_shown(
    what: impl Into<String>,
    measured: Option<f64>,
    wanted: Wanted,
    show: impl Fn(f64) -> String,
) -> Vec<String> {
    let (sign, bound) = match wanted {
        Wanted::AtLeast(bound) => ("≥", bound),
        Wanted::AtMost(bound) => ("≤", bound),
    };
    let verdict = match measured {
        None => "not measured".to_owned(),
        Some(measured) if wanted.holds(measured) => "met".to_owned(),
        Some(_) if bound == 0.0 => "**missed**".to_owned(),
        Some(measured) => format!("**missed** ({:.2} of the target)", measured / bound),
    };
    let measured = measured.map_or_else(|| DASH.to_owned(), &show);
    vec![what.into(), format!("{sign} {}", show(bound)), measured, verdict]
}

/// The table that such rows make.
pub fn targets_table(rows: &[Vec<String>]) -> String {
    table(&["target", "wanted", "measured", "verdict"], rows, &[0, 3])
}

/// Where and when it was measured, and what else belongs there.
pub fn machine_table(more: &[(&str, &str)]) -> Result<String> {
    let gib = machine::memory_bytes().unwrap_or_default() as f64 / (1_u64 << 30) as f64;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("asking for the kernel")?;
    let facts = [
        ("CPU", machine::processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned())),
        ("cores", thread::available_parallelism()?.to_string()),
        ("memory", format!("{gib:.1} GiB")),
        ("kernel", format!("Linux {}", kernel.trim())),
        ("date", surroundings::today()),
    ];
    let more = more.iter().map(|&(name, value)| (name, value.to_owned()));
    let rows: Vec<_> = facts.into_iter().chain(more).map(|(name, value)| vec![name.to_owned(), value]).collect();
    Ok(table(&["machine", ""], &rows, &[0, 1]))
}

/// The commands in a file, one a line; none without a file.
pub fn read_commands(path: Option<&Path>) -> Result<Vec<String>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// What was run, with DIR for the folder `hide`.
pub fn commands_section(commands: &[String], hide: Option<&str>) -> String {
    let shown = commands.iter().map(|command| match hide {
        Some(folder) if !folder.is_empty() => command.replace(folder, "DIR"),
        _ => command.clone(),
    });
    let lines: Vec<_> = ["```sh".to_owned()].into_iter().chain(shown).chain(["```".to_owned()]).collect();
    format!("## Commands\n\n{}", lines.join("\n"))
}

/// The parts one below the other, and what comes behind them.
pub fn joined(parts: &[String], tail: &str) -> String {
    parts.join("\n\n") + "\n" + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_by_how_much_it_is_missed() {
        let last = |row: Vec<String>| row.join(" ");
        assert_eq!(last(target("a", Some(1.996), Wanted::AtLeast(2.0))), "a ≥ 2.00 2.00 met");
        assert_eq!(last(target("a", Some(1.5), Wanted::AtLeast(2.0))), "a ≥ 2.00 1.50 **missed** (0.75 of the target)");
        assert_eq!(last(target("a", Some(3.0), Wanted::AtMost(0.0))), "a ≤ 0.000 3.00 **missed**");
        assert_eq!(last(target("a", None, Wanted::AtMost(0.5))), "a ≤ 0.50 – not measured");
    }

    #[test]
    fn the_folder_of_a_run_is_hidden() {
        let commands = ["run --dir a/b".to_owned()];
        assert_eq!(commands_section(&commands, Some("a/b")), "## Commands\n\n```sh\nrun --dir DIR\n```");
        assert_eq!(table(&["a", "b"], &[vec!["1".into(), "2".into()]], &[0]), "| a | b |\n| --- | --: |\n| 1 | 2 |");
    }
}
