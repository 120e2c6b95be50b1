//! Bringing operations into their file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, chmod, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{Error, Result};
use crate::identity::FileIdentity;
use crate::scan::{Contents, EntryKind, FileWork, Window};

/// Opens a file for replay, if it is still the intended one.
pub(crate) fn open(path: &Path, identity: FileIdentity) -> Result<File> {
    let opened = match for_stores(path) {
        Ok(file) => check_same(file, identity),
        Err(Errno::ACCESS) => own(path, identity).and_then(|own| Ok(own_for_stores(&own)?)),
        Err(error) => Err(error.into()),
    };
    opened.map_err(|source| Error::File { action: "opening", path: path.to_owned(), source })
}

/// Fails if [`open`] would. Changes nothing.
pub(crate) fn check(path: &Path, identity: FileIdentity) -> Result<()> {
    let checked = match for_stores(path) {
        Ok(file) => check_same(file, identity).map(drop),
        Err(Errno::ACCESS) => own(path, identity).map(drop),
        Err(error) => Err(error.into()),
    };
    checked.map_err(|source| Error::File { action: "opening", path: path.to_owned(), source })
}

fn for_stores(path: &Path) -> Result<File, Errno> {
    // Without a wait for what took its name meanwhile, such as a pipe.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn check_same<File: AsFd>(file: File, identity: FileIdentity) -> io::Result<File> {
    match FileIdentity::of(&file)? == identity {
        true => Ok(file),
        false => Err(io::Error::other("another file has taken its name just now")),
    }
}

/// A file of this user's own, whose mode alone denies the write. The user had the file open when the mode changed, or has changed it, as
/// git does with its objects. The descriptor serves only to find the file.
fn own(path: &Path, identity: FileIdentity) -> io::Result<OwnedFd> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let found = check_same(found, identity)?;
    if fstat(&found)?.st_uid == geteuid().as_raw() { Ok(found) } else { Err(Errno::ACCESS.into()) }
}

/// Opens the file by a mode that lets its owner write, which it has for that moment alone.
fn own_for_stores(own: &OwnedFd) -> Result<File, Errno> {
    let link = format!("/proc/self/fd/{}", own.as_raw_fd());
    let mode = Mode::from_raw_mode(fstat(own)?.st_mode);
    chmod(&link, mode | Mode::WUSR)?;
    let opened = for_stores(Path::new(&link));
    chmod(&link, mode)?;
    opened
}

/// Brings the operations of one file into it, in their order, durably. Doing it again changes nothing.
pub(crate) fn replay(log: &File, contents: &Contents, work: &FileWork, file: &File, path: &Path) -> Result<()> {
    let failed = |action| move |source| Error::File { action, path: path.to_owned(), source };
    let mut window = Window::new(log, contents.file_bytes);
    let mut len_bytes = file.metadata().map_err(failed("looking at"))?.len();
    for entry in work.writes.iter().map(|index| &contents.entries[*index]) {
        let EntryKind::Write { offset, len_before } = entry.kind else { continue };
        let data = window.get(entry.data_position(), entry.data_bytes as usize);
        let data = data.and_then(|data| data.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        let data = data.map_err(failed("reading from the log what belongs to"))?;
        if len_bytes < len_before {
            file.set_len(len_before).map_err(failed("lengthening"))?;
        }
        file.write_all_at(data, offset).map_err(failed("writing"))?;
        len_bytes = len_bytes.max(len_before).max(offset + data.len() as u64);
    }
    file.sync_data().map_err(failed("flushing"))
}
