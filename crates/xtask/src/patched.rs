//! The kernel module with a patch: without one of its parts, to measure its effect, or with a bug that its tests must find.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::kernel::Series;
use crate::lab::{entries, run};
use crate::module;

/// A file that says in its first lines what it does, and then what differs.
pub(crate) struct Patch {
    file: PathBuf,
    text: String,
}

impl Patch {
    /// Those of a folder beside the module, by name.
    pub(crate) fn all(folder: &str) -> Result<Vec<Patch>> {
        let mut files = entries(&module::sources().join(folder))?;
        files.sort();
        files.into_iter().map(|file| Ok(Patch { text: fs::read_to_string(&file)?, file })).collect()
    }

    pub(crate) fn name(&self) -> &str {
        self.file.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// What its first lines say, in one that begins with a word and a colon.
    pub(crate) fn says(&self, word: &str) -> Result<&str> {
        let mut lines = self.text.lines().take_while(|line| !line.starts_with("---"));
        let said = lines.find_map(|line| line.strip_prefix(word)?.strip_prefix(": "));
        said.with_context(|| format!("{}: there is no line {word}", self.file.display()))
    }

    /// Builds the module with it for a kernel, and says where it is.
    pub(crate) fn build(&self, series: Series) -> Result<PathBuf> {
        let scratch = tempfile::tempdir()?;
        module::copy_sources(&module::sources(), scratch.path())?;
        self.apply(scratch.path())?;
        module::build_from(series, scratch.path(), &format!("module-{}", self.name()), &[])
    }

    /// Changes sources, which must be those that it was made for.
    fn apply(&self, sources: &Path) -> Result<()> {
        let mut patch = Command::new("patch");
        patch.args(["--quiet", "--force", "--no-backup-if-mismatch", "--strip=1", "--directory"]).arg(sources);
        run(patch.stdin(File::open(&self.file)?)).with_context(|| format!("applying {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_apply_to_the_module_as_it_is() -> Result<()> {
        for patch in [Patch::all("bench/without")?, Patch::all("tests/mutants")?].into_iter().flatten() {
            let scratch = tempfile::tempdir()?;
            module::copy_sources(&module::sources(), scratch.path())?;
            patch.apply(scratch.path())?;
        }
        Ok(())
    }
}
