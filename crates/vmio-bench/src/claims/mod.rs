//! `vmio-bench all`: everything that a machine of two cores can measure, in one go, and the page that says what came of it.

mod claim;
mod page;
mod plan;
mod plot;
mod recording;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use vmio_report::standard_output::print_line;

use recording::Recording;

const EXAMPLES: &str = "\
Examples:
  vmio-bench all                  all measurements, as `make bench` does; an hour
  vmio-bench all hit kv           only these, and the page from their figures and those that are there";

/// Measure all that two cores can, beside the peers, and write docs/benchmarks/README.md anew.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct AllArgs {
    /// Only these measurements
    names: Vec<String>,
    /// Where the page is, with its plot and its figures
    #[arg(long, default_value = FOLDER)]
    folder: PathBuf,
}

/// Where the page is.
pub const FOLDER: &str = "docs/benchmarks";

/// Runs the measurements, or those that are named; keeps what they say as JSON, and renders the page anew.
pub fn run(args: &AllArgs) -> Result<()> {
    let AllArgs { names, folder } = args;
    if let Some(unknown) = names.iter().find(|name| plan::MEASUREMENTS.iter().all(|one| one.name != **name)) {
        let known: Vec<_> = plan::MEASUREMENTS.iter().map(|one| one.name).collect();
        bail!("there is no measurement {unknown}: there are {}", known.join(", "));
    }
    let chosen: Vec<_> =
        plan::MEASUREMENTS.iter().filter(|one| names.is_empty() || names.iter().any(|name| name == one.name)).collect();
    let begun = Instant::now();
    let mut failed = Vec::new();
    for (number, measurement) in (1..).zip(&chosen) {
        let minutes = begun.elapsed().as_secs() / 60;
        let (count, what) = (chosen.len(), measurement.arguments);
        print_line(format!("==> {number} of {count}, {minutes} min gone: vmio-bench {what}"))?;
        match Recording::take(measurement) {
            Ok(recording) => recording.save(&folder.join(recording::FOLDER))?,
            Err(error) => {
                print_line(format!("    failed: {error:#}"))?;
                failed.push(measurement.name);
            }
        }
    }
    render(folder)?;
    if !failed.is_empty() {
        bail!(
            "{} of {} measurements failed, and their figures are the old ones: {}",
            failed.len(),
            chosen.len(),
            failed.join(", ")
        );
    }
    Ok(())
}

/// Writes the page and its plot from the figures that are kept.
pub fn render(folder: &Path) -> Result<()> {
    for (file, text) in rendered(folder)? {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        print_line(format!("==> wrote {}", path.display()))?;
    }
    Ok(())
}

/// The files that follow from the figures.
fn rendered(folder: &Path) -> Result<[(&'static str, String); 2]> {
    let recordings = recording::all(&folder.join(recording::FOLDER))?;
    let findings = claim::findings(&recordings);
    Ok([("README.md", page::render(&findings, &recordings)), ("ratios.svg", plot::draw(&findings)?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the page says and its figures do not hold is seen by comparing.
    #[test]
    fn the_page_says_what_its_figures_hold() -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
        for (file, expected) in rendered(&folder)? {
            let there = fs::read_to_string(folder.join(file)).with_context(|| format!("reading {file}"))?;
            let same = there.lines().zip(expected.lines()).take_while(|(there, expected)| there == expected).count();
            let line = same + 1;
            assert!(
                there == expected,
                "{file}:{line} is not what its figures give: cargo run -p vmio-bench -- render ratios"
            );
        }
        Ok(())
    }

    #[test]
    fn every_claim_has_a_measurement_that_is_planned() -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
        let recordings = recording::all(&folder.join(recording::FOLDER))?;
        let (findings, planned) = (claim::findings(&recordings), plan::MEASUREMENTS.iter().map(|one| one.name));
        let planned: Vec<_> = planned.collect();
        assert!(findings.len() > 20 && findings.iter().all(|finding| planned.contains(&finding.claim.measurement)));
        Ok(())
    }
}
