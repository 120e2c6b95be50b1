//! `cargo xtask bench`: everything that a machine of two cores can measure, in one go, and the page that says what came of it.

mod claims;
mod machine;
mod page;
mod plan;
mod plot;
mod recording;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};

use recording::Recording;

/// Where the page is, with its plot and its figures.
const FOLDER: &str = "docs/benchmarks";

/// Runs the measurements, or those of these names; keeps what they say as JSON, and renders the page anew.
pub fn run(root: &Path, names: &[String]) -> Result<()> {
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
        println!("==> {number} of {}, {minutes} min gone: vmio {}", chosen.len(), measurement.arguments);
        match Recording::take(root, measurement) {
            Ok(recording) => recording.save(&folder(root))?,
            Err(error) => {
                println!("    failed: {error:#}");
                failed.push(measurement.name);
            }
        }
    }
    render(root)?;
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
pub fn render(root: &Path) -> Result<()> {
    for (file, text) in rendered(root)? {
        std::fs::write(root.join(&file), text)?;
        println!("==> wrote {file}");
    }
    Ok(())
}

/// The files that follow from the figures: what a page says and its figures do not hold is seen by comparing.
pub fn rendered(root: &Path) -> Result<Vec<(String, String)>> {
    let recordings = recording::all(&folder(root))?;
    let findings = claims::findings(&recordings);
    Ok(vec![
        (format!("{FOLDER}/README.md"), page::render(&findings, &recordings)),
        (format!("{FOLDER}/ratios.svg"), plot::draw(&findings)?),
    ])
}

fn folder(root: &Path) -> PathBuf {
    root.join(FOLDER).join("figures")
}
