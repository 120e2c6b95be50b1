//! One call over and over.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::threads::{Done, together};

const APPEND_BYTES: usize = 4096;

/// A call that each thread makes on files of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallKind {
    /// Make an empty file and close it
    Create,
    /// The same by all threads in one folder
    CreateTogether,
    /// Open a file and close it
    Open,
    /// Append 4 KiB to a file
    Append,
    /// Append 4 KiB and sync them
    AppendFsync,
    /// Rename a file within its folder
    Rename,
    /// Remove an empty file
    Unlink,
}

/// What a thread needs for its calls.
struct Prepared {
    paths: Vec<PathBuf>,
    /// Appends go there.
    file: Option<File>,
}

impl CallKind {
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Create => "create and close",
            CallKind::CreateTogether => "create and close, in one folder",
            CallKind::Open => "open and close",
            CallKind::Append => "append 4 KiB",
            CallKind::AppendFsync => "append 4 KiB and fsync",
            CallKind::Rename => "rename",
            CallKind::Unlink => "unlink",
        }
    }

    fn prepare(self, folder: &Path, thread: u8, count: u32) -> anyhow::Result<Prepared> {
        let of_thread = match self {
            CallKind::CreateTogether => folder.to_owned(),
            _ => folder.join(format!("t{thread}")),
        };
        if self != CallKind::CreateTogether {
            fs::create_dir(&of_thread)?;
        }
        let paths: Vec<PathBuf> = (0..count).map(|number| of_thread.join(format!("t{thread}f{number}"))).collect();
        let mut file = None;
        match self {
            CallKind::Create | CallKind::CreateTogether => {}
            CallKind::Append | CallKind::AppendFsync => file = Some(File::create_new(of_thread.join("appended"))?),
            CallKind::Open | CallKind::Rename | CallKind::Unlink => {
                paths.iter().try_for_each(|path| File::create_new(path).map(drop))?;
            }
        }
        Ok(Prepared { paths, file })
    }

    fn work(self, prepared: &mut Prepared) -> anyhow::Result<u64> {
        let bytes = [0xA5; APPEND_BYTES];
        for path in &prepared.paths {
            match (self, &mut prepared.file) {
                (CallKind::Create | CallKind::CreateTogether, _) => drop(File::create_new(path)?),
                (CallKind::Open, _) => drop(File::open(path)?),
                (CallKind::Rename, _) => fs::rename(path, path.with_extension("new"))?,
                (CallKind::Unlink, _) => fs::remove_file(path)?,
                (CallKind::Append, Some(file)) => file.write_all(&bytes)?,
                (CallKind::AppendFsync, Some(file)) => file.write_all(&bytes).and_then(|()| file.sync_all())?,
                (CallKind::Append | CallKind::AppendFsync, None) => anyhow::bail!("there is no file to append to"),
            }
        }
        Ok(prepared.paths.len() as u64)
    }
}

/// Has each thread make the call so often.
pub fn run(kind: CallKind, folder: &Path, threads: u8, count: u32) -> anyhow::Result<Done> {
    together(threads, |thread| kind.prepare(folder, thread, count), |prepared| kind.work(prepared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_leave_what_they_should() -> anyhow::Result<()> {
        let list = |folder: &Path| -> anyhow::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(folder)? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        };
        for (kind, left) in [
            (CallKind::Create, &["t1f0", "t1f1"][..]),
            (CallKind::Open, &["t1f0", "t1f1"]),
            (CallKind::Rename, &["t1f0.new", "t1f1.new"]),
            (CallKind::Unlink, &[]),
            (CallKind::Append, &["appended"]),
            (CallKind::AppendFsync, &["appended"]),
        ] {
            let folder = tempfile::tempdir()?;
            run(kind, folder.path(), 2, 2)?;
            assert_eq!(list(&folder.path().join("t1"))?, left, "{kind:?}");
            let appended = folder.path().join("t1/appended");
            assert!(!appended.exists() || fs::metadata(&appended)?.len() == 2 * APPEND_BYTES as u64);
        }
        let folder = tempfile::tempdir()?;
        run(CallKind::CreateTogether, folder.path(), 2, 2)?;
        assert_eq!(list(folder.path())?, ["t0f0", "t0f1", "t1f0", "t1f1"]);
        Ok(())
    }
}
