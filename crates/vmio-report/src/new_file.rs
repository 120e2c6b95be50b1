//! A file that appears under its name only when it is complete.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, bail};
use tempfile::NamedTempFile;

use crate::cleanup::Cleanup;

/// A file that is being written. Until [`Self::keep`] a former file of that name stays as it is.
pub struct NewFile {
    destination: PathBuf,
    content: Content,
    on_interrupt: Option<Cleanup>,
}

enum Content {
    /// In a file beside it, which gets the name later.
    Beside(NamedTempFile),
    /// In place, for a device or a pipe.
    InPlace(File),
}

impl NewFile {
    /// Begins a file, which must be none of `inputs`, since the command has yet to read them. It gets the rights of the file that it
    /// replaces, or else those that the umask leaves.
    pub fn create(destination: &Path, inputs: &[&Path]) -> anyhow::Result<Self> {
        Self::create_with(destination, inputs, None)
    }

    /// The same, for this user alone until its owner changes its rights: nobody else can open it before.
    pub fn create_private(destination: &Path, inputs: &[&Path]) -> anyhow::Result<Self> {
        Self::create_with(destination, inputs, Some(0o600))
    }

    fn create_with(destination: &Path, inputs: &[&Path], mode: Option<u32>) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", destination.display());
        let old = fs::metadata(destination).ok();
        if let Some(old) = &old {
            refuse_inputs(destination, old, inputs)?;
            if old.is_dir() {
                bail!("{} is a folder: add the name of a file", destination.display());
            }
            if !old.is_file() {
                let file = OpenOptions::new().write(true).open(destination).with_context(cannot)?;
                let content = Content::InPlace(file);
                return Ok(NewFile { destination: destination.to_owned(), content, on_interrupt: None });
            }
        }
        // A link stays; the file that it leads to is replaced.
        let destination = fs::canonicalize(destination).unwrap_or_else(|_| destination.to_owned());
        let folder = folder_of(&destination).map_err(Error::msg)?;
        let mode = mode.unwrap_or_else(|| old.map_or(0o666, |old| old.permissions().mode() & 0o777));
        let temporary = tempfile::Builder::new().permissions(Permissions::from_mode(mode)).tempfile_in(folder);
        let temporary = temporary.with_context(|| format!("cannot create a file in {}", folder.display()))?;
        Ok(NewFile { destination, content: Content::Beside(temporary), on_interrupt: None })
    }

    /// The open file to write to.
    pub fn file(&self) -> &File {
        match &self.content {
            Content::Beside(temporary) => temporary.as_file(),
            Content::InPlace(file) => file,
        }
    }

    /// The path of the file for now.
    pub fn path(&self) -> &Path {
        match &self.content {
            Content::Beside(temporary) => temporary.path(),
            Content::InPlace(_) => &self.destination,
        }
    }

    /// Removes it if the command is interrupted; for commands that do not do that themselves.
    pub fn remove_if_interrupted(mut self) -> anyhow::Result<Self> {
        if let Content::Beside(temporary) = &self.content {
            let path = temporary.path().to_owned();
            self.on_interrupt = Some(Cleanup::register(move || drop(fs::remove_file(path)))?);
        }
        Ok(self)
    }

    /// Gives it its name, durably.
    pub fn keep(self) -> anyhow::Result<()> {
        let Content::Beside(temporary) = self.content else { return Ok(()) };
        let shown = self.destination.display();
        temporary.as_file().sync_all().with_context(|| format!("cannot write {shown}"))?;
        let folder = folder_of(&self.destination).map_err(Error::msg)?;
        temporary.persist(&self.destination).with_context(|| format!("cannot give {shown} its name"))?;
        if let Some(on_interrupt) = self.on_interrupt {
            on_interrupt.disarm();
        }
        File::open(folder).and_then(|folder| folder.sync_all()).with_context(|| {
            format!("{shown} is complete, but its name may not survive a crash: cannot sync {}", folder.display())
        })
    }
}

fn refuse_inputs(destination: &Path, old: &Metadata, inputs: &[&Path]) -> anyhow::Result<()> {
    let is_it = |input: &&&Path| {
        // A device may be both input and output: text written to a terminal does not replace its input.
        let same = fs::metadata(input).is_ok_and(|input| (input.dev(), input.ino()) == (old.dev(), old.ino()));
        same && !std::os::unix::fs::FileTypeExt::is_char_device(&old.file_type())
    };
    match inputs.iter().find(is_it) {
        Some(input) => bail!("{} and {} are the same file", input.display(), destination.display()),
        None => Ok(()),
    }
}

/// The folder of a file to write. It has to exist.
pub fn folder_of(file: &Path) -> Result<&Path, String> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(format!("there is no folder {}: create it or choose another", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_old_one_stays_until_the_new_one_is_complete() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        fs::write(&path, "old")?;
        fs::set_permissions(&path, Permissions::from_mode(0o640))?;
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link)?;
        let left = NewFile::create(&link, &[])?;
        left.file().write_all(b"new")?;
        drop(left);
        assert_eq!(fs::read(&path)?, b"old");
        let kept = NewFile::create(&link, &[])?;
        kept.file().write_all(b"new")?;
        kept.keep()?;
        assert_eq!(fs::read(&path)?, b"new");
        assert!(fs::symlink_metadata(&link)?.is_symlink());
        assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path())?.count(), 2, "nothing is left beside");
        Ok(())
    }

    #[test]
    fn a_private_one_is_nobody_elses_whatever_was_there() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        fs::write(&path, "old")?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        let mode = |file: &NewFile| file.file().metadata().map(|metadata| metadata.permissions().mode() & 0o777);
        assert_eq!(mode(&NewFile::create_private(&path, &[])?)?, 0o600);
        assert_eq!(mode(&NewFile::create(&path, &[])?)?, 0o644);
        Ok(())
    }

    #[test]
    fn what_is_read_is_not_written_over() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        fs::write(&path, "precious")?;
        fs::hard_link(&path, folder.path().join("other name"))?;
        let refused = NewFile::create(&folder.path().join("other name"), &[&path]).err();
        assert!(refused.is_some_and(|error| error.to_string().contains("are the same file")));
        NewFile::create(Path::new("/dev/null"), &[Path::new("/dev/null")])?.keep()
    }
}
