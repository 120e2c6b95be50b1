//! The destination of results: text for people on standard output, JSON if asked for.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::report_file::ReportFile;
use crate::standard_output::print_line;

/// The options that direct the results.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Write the results as a JSON array to this file, or to standard output (-) in place of text
    #[arg(long, value_name = "OUT", value_parser = JsonOutput::parse)]
    json: Option<JsonOutput>,
}

#[derive(Clone, Debug)]
enum JsonOutput {
    StandardOutput,
    File(ReportFile),
}

impl JsonOutput {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "-" { Ok(Self::StandardOutput) } else { ReportFile::parse(text).map(Self::File) }
    }
}

impl OutputArgs {
    /// Prints text, unless standard output is for JSON.
    pub fn text(&self, text: &str) -> anyhow::Result<()> {
        if self.json_on_stdout() { Ok(()) } else { print_line(text) }
    }

    /// Writes the results to their destination, if the user asked for JSON.
    pub fn results<T: Serialize>(&self, results: &[T]) -> anyhow::Result<()> {
        self.results_from(results, &[])
    }

    /// The same for results from some files, which they must not replace.
    pub fn results_from<T: Serialize>(&self, results: &[T], inputs: &[&Path]) -> anyhow::Result<()> {
        let json = |results| serde_json::to_string_pretty(results).context("cannot write JSON");
        match &self.json {
            None => Ok(()),
            Some(JsonOutput::StandardOutput) => print_line(&json(results)?),
            Some(JsonOutput::File(file)) => file.write_text_from(&(json(results)? + "\n"), inputs),
        }
    }

    fn json_on_stdout(&self) -> bool {
        matches!(self.json, Some(JsonOutput::StandardOutput))
    }
}
