//! The lock by which recoveries of one log wait for each other.
//!
//! A recovery holds the lock of the log's owner, too. With that lock alone, a second recovery would take the owner for alive, and its
//! caller would use files during their replay.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{FlockOperation, flock};

/// The locked byte, far behind all that a log has. No owner ever locks it.
const BYTE: i64 = 1 << 62;

/// Held by a recovery of a log, and by a preview. After a wait for it the log may be gone.
#[must_use = "others recover the log once this is dropped"]
pub(crate) struct RecoveryLock<'a>(&'a File);

impl<'a> RecoveryLock<'a> {
    /// Waits for other recoveries of the log. The file must be open for writing.
    pub(crate) fn wait_for(file: &'a File) -> io::Result<Self> {
        set(file, libc::F_WRLCK)?;
        Ok(RecoveryLock(file))
    }
}

impl Drop for RecoveryLock<'_> {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that was forked meanwhile has it open, too. The owner's lock goes first, or a recovery
        // that waits here would find it held.
        let unlocked = flock(self.0, FlockOperation::Unlock).map_err(io::Error::from);
        if let Err(error) = unlocked.and_then(|()| set(self.0, libc::F_UNLCK)) {
            tracing::warn!(%error, "other recoveries of an operation log wait until this process ends");
        }
    }
}

/// Locks or unlocks the byte. The lock belongs to the open file, not to the process: threads wait for each other, too.
fn set(file: &File, kind: libc::c_int) -> io::Result<()> {
    let mut request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: BYTE,
        l_len: 1,
        l_pid: 0,
    };
    loop {
        // SAFETY: the command reads and writes one `flock`, which is ours.
        #[allow(unsafe_code)]
        let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw mut request) };
        if status != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::io::IoSlice;
    use std::path::{Path, PathBuf};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::folder::try_lock;
    use crate::{FileIdentity, Log, LogOptions, LogState, preview, recover};

    /// A log with an operation for a file, whose process is dead.
    fn dead_log(under: &Path) -> (PathBuf, File) {
        let path = under.join("file");
        let log = Log::create(under, LogOptions::new().capacity_bytes(64 << 10)).unwrap();
        let number = log.file(FileIdentity::of(File::create(&path).unwrap()).unwrap(), &path).unwrap();
        drop(log.write(number, 0, 0, &[IoSlice::new(b"logged")]).unwrap());
        let path = log.path().to_owned();
        drop(log);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        (path, file)
    }

    /// Otherwise its caller would use files that the first recovery has not brought up to date yet, and lose its writes to them.
    #[test]
    fn a_recovery_waits_for_one_that_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = dead_log(folder.path());
        let first = RecoveryLock::wait_for(&file).unwrap();
        assert!(try_lock(&file).unwrap());
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            for second in [recover, preview] {
                let (sender, under) = (sender.clone(), folder.path());
                scope.spawn(move || sender.send(second(under).unwrap().logs.len()).unwrap());
            }
            let early = receiver.recv_timeout(Duration::from_millis(300));
            fs::remove_file(&path).unwrap();
            drop(first);
            assert!(early.is_err(), "it did not wait");
            assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [0, 0], "the log is gone");
        });
    }

    #[test]
    fn a_child_that_was_forked_meanwhile_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (_, file) = dead_log(folder.path());
        let first = RecoveryLock::wait_for(&file).unwrap();
        assert!(try_lock(&file).unwrap());
        // As a child has it: the same open file.
        let _of_child = file.try_clone().unwrap();
        drop(first);
        drop(file);
        assert!(matches!(recover(folder.path()).unwrap().logs[0].state, LogState::Recovered));
        assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"logged");
    }
}
