//! An open journal, behind its handles and its files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backing::{Access, Backing};
use crate::error::{Error, Result};
use crate::journal::checkpoint::spawn;
use crate::journal::commit::{Commit, CommitQueue, NOTHING_MORE, lead_commit};
use crate::journal::core::Core;
use crate::journal::failure::failed_at;
use crate::journal::format::{FILES_MAX, JournaledFile, PATH_BYTES_MAX};
use crate::journal::index::PageIndex;
use crate::journal::joined::Joined;
use crate::sys::fork::Generation;
use crate::sys::signal::SignalsBlocked;
use crate::sys::thread::OwnThread;

/// The journal, its thread, and the queue of its commits.
pub(crate) struct Opened {
    pub(crate) core: Arc<Core>,
    pub(crate) queue: CommitQueue,
    thread: Option<OwnThread>,
}

impl Opened {
    /// Starts the journal's thread.
    pub(crate) fn start(core: Core, generation: Generation) -> Result<Self> {
        let core = Arc::new(core);
        let thread = spawn(Arc::clone(&core)).map_err(Error::system("starting the journal's thread"))?;
        Ok(Opened { core, queue: CommitQueue::new(generation), thread: Some(thread) })
    }

    /// Fails in a forked child.
    pub(crate) fn check_not_forked(&self) -> Result<()> {
        self.core.check_not_forked()
    }

    /// Commits, or waits for a commit that begins after this call.
    pub(crate) fn commit<W>(&self, write: Option<W>) -> Result<u64>
    where
        W: FnOnce(&Commit<'_>) -> Result<()>,
    {
        self.check_not_forked()?;
        self.queue.commit(&self.core, write)
    }

    /// Writes all committed pages into the files.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.check_not_forked()?;
        let (log, checkpoints) = (&self.core.log, &self.core.checkpoints);
        let wanted = log.durable();
        checkpoints.run();
        if checkpoints.applied() >= wanted {
            return Ok(());
        }
        // Of several threads that waited for it, only one gets the reason.
        let unknown = || failed_at(log.ring.device(), "checkpointing")(std::io::ErrorKind::Other.into());
        Err(checkpoints.take_failure().unwrap_or_else(unknown))
    }

    /// Adds a file.
    pub(crate) fn join(&self, data: Box<dyn Backing>) -> Result<Arc<Joined>> {
        let (path, identity) = (data.describe(), data.identity());
        if path.len() > PATH_BYTES_MAX {
            let expected = "a path of at most 960 bytes";
            return Err(Error::BadOption { option: "file of a journal", value: path, expected });
        }
        if data.access() == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: path });
        }
        let index = PageIndex::new(data.len()).map_err(Error::system("reserving the index of a journaled file"))?;
        let _no_commit = self.queue.hold();
        // The commits of the file's earlier time in the journal must be in it before the new time begins. The same goes
        // for other closed files that leave the table.
        let left: Vec<Arc<Joined>> = self.core.files_that_left();
        self.checkpoint()?;
        let _signals = SignalsBlocked::new();
        let mut files = self.core.files();
        files.retain(|joined| !left.iter().any(|left| Arc::ptr_eq(left, joined)));
        let rows = self.core.header().files;
        let same = |row: &JournaledFile| row.path == path && row.identity == identity;
        let known = rows.iter().find(|row| same(row)).map(|row| row.file);
        if files.iter().any(|joined| Some(joined.file) == known) {
            return Err(Error::AlreadyMapped { backing: path, how: "through this journal" });
        }
        // The log has nothing that files which have left still need.
        let mut rows: Vec<JournaledFile> =
            rows.into_iter().filter(|row| files.iter().any(|joined| joined.file == row.file)).collect();
        if rows.len() == FILES_MAX {
            let expected = "one of at most 60 files of a journal: close others, or use a second journal";
            return Err(Error::BadOption { option: "file of a journal", value: path, expected });
        }
        let file = (1..).find(|file| rows.iter().all(|row| row.file != *file)).unwrap_or_default();
        rows.push(JournaledFile { file, path, identity });
        let since = self.core.log.head();
        let joined = Arc::new(Joined::new(file, data, index, since));
        self.core.change_header(|header| header.files = rows)?;
        files.push(Arc::clone(&joined));
        Ok(joined)
    }

    /// Takes a file out of the journal, once the commits that it took part in are in it.
    pub(crate) fn leave(&self, joined: &Arc<Joined>) {
        if !self.core.is_of_this_process() {
            return;
        }
        self.withdraw(joined);
        if let Err(error) = self.checkpoint() {
            tracing::error!(file = joined.data.describe(), %error, "the journal keeps what is committed to a closed file");
            return;
        }
        let _signals = SignalsBlocked::new();
        self.core.files().retain(|other| !Arc::ptr_eq(other, joined));
    }

    /// Keeps a file out of all further commits.
    pub(crate) fn withdraw(&self, joined: &Joined) {
        let _no_other_commit = self.queue.hold();
        joined.is_open.store(false, Ordering::SeqCst);
        joined.set_participant(None);
        // Spilled pages take space in the log until the next commit. If no open file needs one, an empty commit will
        // do.
        let log = &self.core.log;
        if self.core.has_open_files() || log.head() == log.durable() {
            return;
        }
        if let Err(error) = lead_commit(&self.core, NOTHING_MORE) {
            tracing::debug!(%error, "what closed files have spilled takes room in the journal until the next commit");
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A forked child has no thread of the journal, and must not write to it.
        if !self.core.is_of_this_process() {
            return;
        }
        if let Err(error) = self.checkpoint() {
            tracing::error!(%error, "the last checkpoint failed; opening the journal again makes up for it");
        }
        self.core.checkpoints.stop();
        if let Some(thread) = self.thread.take() {
            thread.end("the journal's thread");
        }
        if let Err(error) = self.core.log.ring.device().unlock() {
            tracing::warn!(%error, "unlocking the journal failed");
        }
    }
}
