//! Bringing operations into their file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};
use crate::identity::FileIdentity;
use crate::scan::{Contents, EntryKind, FileWork, Window};

/// Opens a file for replay, if it is still the one that is meant.
pub(crate) fn open(path: &Path, identity: FileIdentity) -> Result<File> {
    let failed = |source| Error::File { action: "opening", path: path.to_owned(), source };
    // Whatever took its name meanwhile, such as a pipe, is not waited for.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?);
    match FileIdentity::of(&file).map_err(failed)? == identity {
        true => Ok(file),
        false => Err(failed(io::Error::other("another file has taken its name just now"))),
    }
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
