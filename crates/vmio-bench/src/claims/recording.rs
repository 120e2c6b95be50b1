//! What a measurement has said, as it is kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;
use vmio_measure::{child, process};
use vmio_report::surroundings;

use super::plan::Measurement;
use crate::machine::Machine;

/// Where the figures are, beside the page.
pub const FOLDER: &str = "figures";

/// A file of figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Recording {
    #[serde(skip)]
    name: String,
    /// As somebody would type it; a folder is `DIR`.
    pub command: String,
    pub date: String,
    pub machine: Machine,
    /// The JSON of vmio-bench, as it is.
    pub runs: Vec<Value>,
}

impl Recording {
    /// Measures, by this program.
    pub fn take(measurement: &Measurement) -> Result<Recording> {
        let itself = child::itself()?;
        let mut arguments: Vec<String> = measurement.arguments.split(' ').map(str::to_owned).collect();
        let mut command = format!("vmio-bench {}", arguments.join(" "));
        let folder = measurement.needs_folder.then(new_folder).transpose()?;
        if let Some(folder) = &folder {
            command += " --dir DIR";
            arguments.extend(["--dir".to_owned(), folder.path().display().to_string()]);
        }
        arguments.extend(["--json".to_owned(), "-".to_owned()]);
        // Zram devices and memory cgroups are root's.
        let is_root = process::is_root();
        let mut program = Command::new(if is_root { itself.as_os_str() } else { "sudo".as_ref() });
        if !is_root {
            program.arg("-n").arg(&itself);
        }
        let said = program.args(&arguments).stderr(Stdio::inherit()).output().context("running vmio-bench")?;
        if !said.status.success() {
            bail!("vmio-bench ended with {}", said.status);
        }
        let runs = serde_json::from_slice(&said.stdout).context("what vmio-bench said is no JSON")?;
        let name = measurement.name.to_owned();
        Ok(Recording { name, command, date: surroundings::today(), machine: Machine::this()?, runs })
    }

    /// Keeps it in a folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        let path = folder.join(format!("{}.json", self.name));
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// On the disk that programs are built on.
fn new_folder() -> Result<TempDir> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    tempfile::tempdir_in(&target).with_context(|| format!("cannot make a folder in {}", target.display()))
}

/// All that are kept, by name.
pub fn all(folder: &Path) -> Result<BTreeMap<String, Recording>> {
    let mut recordings = BTreeMap::new();
    let Ok(files) = fs::read_dir(folder) else { return Ok(recordings) };
    for file in files {
        let path = file?.path();
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut recording: Recording =
            serde_json::from_slice(&text).with_context(|| format!("parsing {}", path.display()))?;
        recording.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        recordings.insert(recording.name.clone(), recording);
    }
    Ok(recordings)
}
