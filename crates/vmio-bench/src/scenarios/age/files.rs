//! The file systems that are aged: a mounted one by system calls, or the library vmio-pmfs itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use rustix::fs::FallocateFlags;
use serde::Serialize;
use vmio_pmfs::{Access, BLOCK_BYTES, Fs, MappedFile, Medium, New, ROOT};

use super::free_space::FreeSpace;
use super::profile::LARGE_BYTES;

/// The bytes of an append.
const APPEND_BYTES: usize = 64 << 10;

/// Extents that are gathered at once, as the server of a mount does it.
const GATHERED: usize = 64;

/// How large files get their bytes. Small ones have one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Large {
    /// By one fallocate
    Allocate,
    /// By writes of 64 KiB, one behind the other
    Append,
}

/// A file system under age. Folders have the numbers in which they were made; 0 is there.
pub trait Files {
    /// Makes a folder in another one.
    fn make_folder(&mut self, parent: usize, name: &str) -> anyhow::Result<()>;

    /// Makes a file of `bytes` bytes. False if there is no space; then there is no file.
    fn create(&mut self, folder: usize, name: &str, bytes: u64, large: Large) -> anyhow::Result<bool>;

    /// Removes a file.
    fn remove(&mut self, folder: usize, name: &str) -> anyhow::Result<()>;

    /// The bytes that files can have, and how many of them are free.
    fn space(&self) -> anyhow::Result<(u64, u64)>;

    /// What a file system does when it has time. Returns the bytes that it has moved.
    fn idle(&mut self) -> anyhow::Result<u64> {
        Ok(0)
    }

    /// The free space in detail; nothing if the file system cannot say.
    fn free_space(&self) -> anyhow::Result<Option<FreeSpace>>;
}

/// A folder of a mounted file system.
pub struct Mounted {
    folders: Vec<PathBuf>,
    root: File,
    /// The bytes that are written; aligned as direct I/O needs them.
    buffer: Vec<u8>,
    direct: bool,
}

impl Mounted {
    /// A new folder in this one.
    pub fn new(folder: &Path, direct: bool) -> anyhow::Result<Mounted> {
        let inside = folder.join("aged");
        fs::create_dir(&inside).with_context(|| format!("cannot make {}", inside.display()))?;
        let root = File::open(&inside)?;
        Ok(Mounted { folders: vec![inside], root, buffer: vec![0xA5; LARGE_BYTES as usize + 4096], direct })
    }

    fn write(&self, path: &Path, bytes: u64, large: Large) -> io::Result<()> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        let mut file = OpenOptions::new().write(true).create_new(true).custom_flags(flags).open(path)?;
        let from = self.buffer.as_ptr().align_offset(4096);
        if bytes < LARGE_BYTES {
            return file.write_all(&self.buffer[from..from + bytes as usize]);
        }
        match large {
            Large::Allocate => Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?),
            Large::Append => (0..bytes)
                .step_by(APPEND_BYTES)
                .try_for_each(|at| file.write_all(&self.buffer[from..from + APPEND_BYTES.min((bytes - at) as usize)])),
        }
    }
}

impl Files for Mounted {
    fn make_folder(&mut self, parent: usize, name: &str) -> anyhow::Result<()> {
        let folder = self.folders[parent].join(name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        self.folders.push(folder);
        Ok(())
    }

    fn create(&mut self, folder: usize, name: &str, bytes: u64, large: Large) -> anyhow::Result<bool> {
        let path = self.folders[folder].join(name);
        match self.write(&path, bytes, large) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                if path.exists() {
                    fs::remove_file(&path)?;
                }
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }

    fn remove(&mut self, folder: usize, name: &str) -> anyhow::Result<()> {
        let path = self.folders[folder].join(name);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    fn space(&self) -> anyhow::Result<(u64, u64)> {
        let space = rustix::fs::fstatvfs(&self.root)?;
        Ok((space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize))
    }

    fn free_space(&self) -> anyhow::Result<Option<FreeSpace>> {
        rustix::fs::syncfs(&self.root)?;
        FreeSpace::ask(&self.folders[0])
    }
}

/// A file system of vmio-pmfs, without a mount.
pub struct Library {
    fs: Fs,
    folders: Vec<u64>,
    gather: bool,
    buffer: Vec<u8>,
}

impl Library {
    /// The file system of a file or device. It moves blocks when it has time if it is to gather.
    pub fn new(path: &Path, gather: bool) -> anyhow::Result<Library> {
        let medium: Arc<dyn Medium> = Arc::new(MappedFile::open(path, Access::Write)?);
        let fs = Fs::mount(medium)?;
        let inside = fs.create(ROOT, b"aged", New::Directory, 0o755, (0, 0))?.ino;
        Ok(Library { fs, folders: vec![inside], gather, buffer: vec![0xA5; LARGE_BYTES as usize] })
    }

    fn fill(&self, ino: u64, bytes: u64, large: Large) -> vmio_pmfs::Result<()> {
        let step = match large {
            _ if bytes < LARGE_BYTES => LARGE_BYTES as usize,
            Large::Allocate => return self.fs.allocate(ino, 0, bytes),
            Large::Append => APPEND_BYTES,
        };
        let mut at = 0;
        while at < bytes {
            at += self.fs.write(ino, at, &self.buffer[..step.min((bytes - at) as usize)])? as u64;
        }
        Ok(())
    }
}

impl Files for Library {
    fn make_folder(&mut self, parent: usize, name: &str) -> anyhow::Result<()> {
        let made = self.fs.create(self.folders[parent], name.as_bytes(), New::Directory, 0o755, (0, 0))?;
        self.folders.push(made.ino);
        Ok(())
    }

    fn create(&mut self, folder: usize, name: &str, bytes: u64, large: Large) -> anyhow::Result<bool> {
        let folder = self.folders[folder];
        let no_space = |error: &vmio_pmfs::Error| matches!(error.errno(), libc::ENOSPC);
        let made = match self.fs.create(folder, name.as_bytes(), New::File, 0o644, (0, 0)) {
            Err(error) if no_space(&error) => return Ok(false),
            made => made?,
        };
        self.fs.open(made.ino)?;
        let filled = self.fill(made.ino, bytes, large);
        self.fs.close(made.ino)?;
        match filled {
            Err(error) if no_space(&error) => {
                self.fs.unlink(folder, name.as_bytes())?;
                Ok(false)
            }
            filled => Ok(filled.map(|()| true)?),
        }
    }

    fn remove(&mut self, folder: usize, name: &str) -> anyhow::Result<()> {
        Ok(self.fs.unlink(self.folders[folder], name.as_bytes())?)
    }

    fn space(&self) -> anyhow::Result<(u64, u64)> {
        let space = self.fs.space();
        Ok((space.blocks * BLOCK_BYTES, space.free_blocks * BLOCK_BYTES))
    }

    fn idle(&mut self) -> anyhow::Result<u64> {
        let mut moved = 0;
        while self.gather && self.fs.has_many_holes() {
            let gathered = self.fs.gather(GATHERED)?;
            moved += gathered.moved_blocks * BLOCK_BYTES;
            if gathered.extents == 0 {
                break;
            }
        }
        Ok(moved)
    }

    fn free_space(&self) -> anyhow::Result<Option<FreeSpace>> {
        let runs = self.fs.free_runs();
        Ok(Some(FreeSpace::of(runs.into_iter().map(|run| run.start * BLOCK_BYTES..run.end * BLOCK_BYTES))))
    }
}

#[cfg(test)]
mod tests {
    use vmio_pmfs::Geometry;

    use super::*;

    fn use_files(files: &mut dyn Files) -> anyhow::Result<()> {
        let (bytes, free) = files.space()?;
        assert!(free <= bytes && free > 20 << 20);
        files.make_folder(0, "one")?;
        files.make_folder(1, "two")?;
        for (large, size) in [(Large::Allocate, 4096), (Large::Allocate, 3 << 20), (Large::Append, (2 << 20) + 4096)] {
            assert!(files.create(2, &format!("{size}"), size, large)?);
        }
        files.remove(2, "4096")?;
        assert!(files.remove(2, "4096").is_err());
        files.idle()?;
        Ok(())
    }

    #[test]
    fn both_kinds_make_the_same_files() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        use_files(&mut Mounted::new(folder.path(), false)?)?;
        for (name, bytes) in [("3145728", 3_145_728), ("2101248", 2_101_248)] {
            assert_eq!(fs::metadata(folder.path().join("aged/one/two").join(name))?.len(), bytes);
        }
        assert!(Mounted::new(folder.path(), false).is_err(), "a folder is aged once");
        let image = tempfile::NamedTempFile::new()?;
        image.as_file().set_len(64 << 20)?;
        {
            let medium: Arc<dyn Medium> = Arc::new(MappedFile::open(image.path(), Access::Write)?);
            Fs::make(&medium, Geometry::of(medium.len(), 2), false, (0, 0))?;
        }
        let mut library = Library::new(image.path(), true)?;
        use_files(&mut library)?;
        let space = library.free_space()?.unwrap_or_default();
        assert_eq!(space.free_bytes, library.space()?.1);
        assert_eq!(space.aligned_bytes, library.fs.space().aligned_free_blocks * BLOCK_BYTES);
        // A file that does not fit is not there.
        assert!(!library.create(0, "large", 1 << 30, Large::Append)?);
        assert!(library.remove(0, "large").is_err());
        drop(library);
        let fs = Fs::mount(Arc::new(MappedFile::open(image.path(), Access::Read)?))?;
        let mut at = ROOT;
        for name in ["aged", "one", "two"] {
            at = fs.lookup(at, name.as_bytes())?.ino;
        }
        let sizes: Vec<u64> =
            fs.list(at, 0, 9)?.iter().map(|named| fs.attributes(named.ino).map_or(0, |found| found.size)).collect();
        assert_eq!(sizes, [3_145_728, 2_101_248]);
        Ok(())
    }
}
