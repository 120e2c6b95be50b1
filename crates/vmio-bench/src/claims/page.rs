//! The page: what was claimed, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::claim::Finding;
use super::plan::MEASUREMENTS;
use super::recording::Recording;
use crate::figure::grouped;

const HEAD: &str = "\
# What is claimed, and what is measured

Written by `make bench`, from the JSON in [figures](figures); a test fails where it says what they do not. A ratio is how many times
better vmio is than the peer beside it in the same run: larger is better, 1 is equal. Papers measured on their own machines, with more
cores and other devices: their figures stand here for what was promised, not for comparison. zram is a device in memory, of 2 to 4 µs a page;
one run each, on a machine that may be shared, so that a ratio is good to about a fifth.

![the ratios](ratios.svg)
";

/// What is missed by less than this a run before might have met.
const WITHIN_NOISE: f64 = 0.95;

/// Markdown.
pub fn render(findings: &[Finding], recordings: &BTreeMap<String, Recording>) -> String {
    let mut page = HEAD.to_owned();
    let mut system = "";
    for finding in findings {
        if finding.claim.system != system {
            system = finding.claim.system;
            let _ = write!(
                page,
                "\n## {system}\n\n| measured | peer | the paper | vmio | peer | ratio | wanted | |\n|---|---|---|--:|--:|--:|--:|---|\n"
            );
        }
        let claim = finding.claim;
        let ratio = finding.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
        let verdict = match finding.ratio {
            _ if finding.is_met() => "met",
            Some(ratio) if ratio >= WITHIN_NOISE * finding.claim.wanted => "not reached, within noise",
            _ => "**not reached**",
        };
        let with_unit = |value| format!("{} {}", figure(value), finding.unit());
        let (ours, theirs) = (with_unit(finding.ours), with_unit(finding.theirs));
        let (ours, theirs) = (ours.trim_end(), theirs.trim_end());
        let _ = writeln!(
            page,
            "| {} ([{m}](#{m})) | {} | {} | {ours} | {theirs} | {ratio} | {} | {verdict} |",
            claim.what,
            claim.peer,
            claim.paper,
            claim.wanted,
            m = claim.measurement
        );
    }
    page += "\n## What is not reached, and why\n\n";
    let missed: Vec<_> = findings.iter().filter(|finding| !finding.is_met()).collect();
    if missed.is_empty() {
        page += "Nothing of what is wanted above.\n";
    }
    for finding in missed {
        let claim = finding.claim;
        let _ = write!(page, "- {}: {}, beside {}: {}.", claim.system, claim.what, claim.peer, claim.explained);
        if let Some(copy) = finding.copy {
            let (copy, theirs) = (figure(copy), figure(finding.theirs));
            let _ = write!(
                page,
                " In this run the copy alone took {copy} of {} ns, and the peer {theirs}.",
                figure(finding.ours)
            );
        }
        page.push('\n');
    }
    page += "\n## How\n\nA folder `DIR` was on the machine's disk. What has no row above is for pages of its own: [units.md](units.md), [map.md](map.md), [pmfs.md](pmfs.md), \
             [posix.md](../posix.md).\n";
    for measurement in MEASUREMENTS {
        if let Some(Recording { command, date, .. }) = recordings.get(measurement.name) {
            let name = measurement.name;
            let _ = write!(page, "\n### {name}\n\n`{command}`: {date} ([figures](figures/{name}.json)).\n");
        }
    }
    page += "\n## Where\n\n";
    let machines: BTreeSet<_> = recordings.values().map(|recording| recording.machine.describe()).collect();
    machines.iter().fold(page, |page, machine| page + "- " + machine + ".\n")
}

/// Three digits that mean something, with separators.
fn figure(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 || large == 0.0 => 0,
        middle if middle >= 10.0 => 1,
        middle if middle >= 1.0 => 2,
        _ => 3,
    };
    grouped(&format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn figures_have_three_digits_that_mean_something() {
        let said = [0.0, 0.1234, 1.236, 23.45, 123.6, 1_234_567.8].map(super::figure);
        assert_eq!(said, ["0", "0.123", "1.24", "23.4", "124", "1,234,568"]);
    }
}
