//! The present places of a log's files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::error::{Error, Result};
use crate::folder::FOLDER_NAME;
use crate::identity::FileIdentity;

/// Looks for files below a folder, by their identity alone.
pub(crate) struct Search {
    missing: BTreeSet<FileIdentity>,
    pub(crate) found: BTreeMap<FileIdentity, PathBuf>,
    /// The first folder that could not be read: missing files may be there.
    unread: Option<(PathBuf, io::Error)>,
}

impl Search {
    /// Walks the tree below `under` until all are found.
    pub(crate) fn of(missing: BTreeSet<FileIdentity>, under: &Path) -> Self {
        let mut search = Search { missing, found: BTreeMap::new(), unread: None };
        let mut folders = vec![under.to_owned()];
        while let Some(folder) = folders.pop() {
            if search.missing.is_empty() {
                break;
            }
            if let Err(error) = search.look_into(&folder, &mut folders) {
                // A folder that cannot be passed through holds nothing that this user could open, such as lost+found.
                let is_open = rustix::fs::access(&folder, Access::EXEC_OK).is_ok();
                if error.kind() != io::ErrorKind::NotFound && is_open {
                    search.unread.get_or_insert((folder, error));
                }
            }
        }
        search
    }

    /// Fails if a file that was not found may still be there.
    pub(crate) fn check_complete(&mut self, path: &Path) -> Result<()> {
        let Some((folder, source)) = self.unread.take() else { return Ok(()) };
        Err(Error::SearchIncomplete { path: path.to_owned(), folder, source })
    }

    fn look_into(&mut self, folder: &Path, folders: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && entry.file_name() != FOLDER_NAME {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Some(identity) = FileIdentity::at_itself(&entry.path())?
                && self.missing.remove(&identity)
            {
                self.found.insert(identity, entry.path());
            }
        }
        Ok(())
    }
}
