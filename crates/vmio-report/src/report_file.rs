//! `--report` and similar options: a file to look at and to pass on. A path that cannot be written is an error before the work, not after
//! it.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::new_file::{NewFile, folder_of};

/// A file to write, in a folder that exists.
#[derive(Clone, Debug)]
pub struct ReportFile {
    path: PathBuf,
}

impl ReportFile {
    /// Parses a path from the command line. Refuses it if its folder is missing, or if it is itself a folder.
    pub fn parse(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        folder_of(&path)?;
        if path.is_dir() || path.file_name().is_none() {
            return Err(format!("{} is a folder: add the name of a file, such as map.html", path.display()));
        }
        Ok(Self { path })
    }

    /// Whether its name asks for a drawing.
    pub fn is_svg(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the report.
    pub fn write_text(&self, text: &str) -> anyhow::Result<()> {
        self.write_text_from(text, &[])
    }

    /// The same for a report on some files, which it must not replace.
    pub fn write_text_from(&self, text: &str, inputs: &[&Path]) -> anyhow::Result<()> {
        let report = NewFile::create(&self.path, inputs)?;
        report.file().write_all(text.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        report.keep()
    }

    /// The message to the user after the report is written.
    pub fn notice(&self) -> String {
        format!("the report is in {}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_cannot_be_written_are_refused_before_the_runs() {
        for path in ["map.html", "./map.svg", "/map"] {
            assert!(ReportFile::parse(path).is_ok(), "{path}");
        }
        for (path, advice) in
            [("absent/map.html", "no folder absent"), (".", "is a folder"), ("/", "is a folder"), ("", "is a folder")]
        {
            let error = ReportFile::parse(path).expect_err(path);
            assert!(error.contains(advice), "{path}: {error}");
        }
    }
}
