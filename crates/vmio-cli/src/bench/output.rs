//! Where results go: text for people on standard output, JSON where asked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

/// Where the JSON goes.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Write the results as a JSON array to this file, or to standard output (-) in place of text
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints text, unless standard output is for JSON.
    pub fn text(&self, text: &str) {
        if !self.json_on_stdout() {
            println!("{text}");
        }
    }

    /// Writes the results where they were asked for.
    pub fn results<T: Serialize>(&self, results: &[T]) -> anyhow::Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let json = serde_json::to_string_pretty(results)?;
        if self.json_on_stdout() {
            println!("{json}");
        } else {
            fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}
