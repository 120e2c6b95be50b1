//! A log whose entries are stored, where the file takes stores.

use std::error::Error;
use std::fs::{self, File};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use operation_log::{DirectFile, FileIdentity, Log, LogOptions, recover};

static STORED: AtomicUsize = AtomicUsize::new(0);

/// Takes all but each third entry: of that it takes the first buffer alone.
struct Moody(File, AtomicUsize);

impl DirectFile for Moody {
    fn store(&self, mut offset: u64, buffers: &[IoSlice<'_>]) -> bool {
        let takes_all = self.1.fetch_add(1, Ordering::Relaxed) % 3 != 2;
        for buffer in buffers.iter().take(if takes_all { usize::MAX } else { 1 }) {
            if self.0.write_all_at(buffer, offset).is_err() {
                return false;
            }
            offset += buffer.len() as u64;
        }
        STORED.fetch_add(usize::from(takes_all), Ordering::Relaxed);
        takes_all
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

fn open(file: BorrowedFd<'_>, bytes: u64) -> Option<Box<dyn DirectFile>> {
    let file = File::from(file.try_clone_to_owned().ok()?);
    assert_eq!(file.metadata().ok()?.len(), bytes, "it has all its space");
    Some(Box::new(Moody(file, AtomicUsize::new(0))))
}

#[test]
fn a_log_of_stores_is_replayed_like_any_other() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data");
    fs::write(&path, "")?;
    let log = Log::create(folder.path(), LogOptions::new().capacity_bytes(256 << 10).directly(open))?;
    assert!(log.direct_descriptor().is_some());
    let number = log.file(FileIdentity::of(File::open(&path)?)?, &path)?;
    let mut expected = Vec::new();
    for n in 0..300_usize {
        let (one, other) = (vec![n as u8; n % 90], vec![!n as u8; 1 + n % 70]);
        let at = expected.len() as u64;
        // It never reaches the file.
        drop(log.write(number, at, at, &[IoSlice::new(&one), IoSlice::new(&other)])?);
        expected.extend(one.into_iter().chain(other));
        if n == 150 {
            log.checkpoint(|_| fs::write(&path, &expected))?;
        }
    }
    // The process dies: its locks end, and nobody closes the log.
    drop(log);
    let logs = recover(folder.path())?.logs;
    assert_eq!((logs.len(), logs[0].files[0].operations), (1, 149));
    assert!(fs::read(&path)? == expected);
    assert_eq!(
        STORED.load(Ordering::Relaxed),
        201,
        "two of three of 300 entries, two introductions with them, and a header"
    );
    Ok(())
}
