//! The times that calls change.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use super::{Answers, compare, folder, mode};
use crate::common::TestResult;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, RenameFlags, Timespec, Timestamps, XattrFlags};

type Call = (&'static str, fn(&Path) -> std::io::Result<()>);

/// The paths whose times are looked at.
const WATCHED: [&str; 6] = [".", "file", "second", "folder", "folder/inner", "link"];

fn opened(at: &Path, name: &str) -> std::io::Result<fs::File> {
    fs::File::options().read(true).write(true).open(at.join(name))
}

fn fallocate(at: &Path, flags: FallocateFlags, offset: u64, bytes: u64) -> std::io::Result<()> {
    Ok(rustix::fs::fallocate(opened(at, "file")?, flags, offset, bytes)?)
}

/// Calls in a folder.
const CALLS: [Call; 39] = [
    ("stat", |at| fs::metadata(at.join("file")).map(drop)),
    ("open", |at| opened(at, "file").map(drop)),
    ("write", |at| opened(at, "file")?.write_all_at(b"T", 0)),
    ("write of nothing", |at| opened(at, "file")?.write_at(b"", 0).map(drop)),
    ("append", |at| opened(at, "file")?.write_all_at(b"T", 4)),
    ("truncate", |at| opened(at, "file")?.set_len(1)),
    ("truncate to the same", |at| opened(at, "file")?.set_len(4)),
    ("O_TRUNC", |at| fs::File::create(at.join("file")).map(drop)),
    ("O_TRUNC of an empty file", |at| fs::File::create(at.join("folder/inner")).map(drop)),
    ("O_CREAT of a new file", |at| fs::File::create(at.join("new")).map(drop)),
    ("O_CREAT of an old file", |at| fs::File::options().append(true).create(true).open(at.join("file")).map(drop)),
    ("O_EXCL of an old file", |at| fs::File::create_new(at.join("file")).map(drop)),
    ("mkdir", |at| fs::create_dir(at.join("new"))),
    ("mkdir that fails", |at| fs::create_dir(at.join("file"))),
    ("mkfifo", |at| Ok(rustix::fs::mknodat(CWD, at.join("new"), FileType::Fifo, mode(0o600), 0)?)),
    ("symlink", |at| symlink("file", at.join("new"))),
    ("link", |at| fs::hard_link(at.join("file"), at.join("folder/new"))),
    ("link that fails", |at| fs::hard_link(at.join("file"), at.join("second"))),
    ("unlink of one of two", |at| fs::remove_file(at.join("second"))),
    ("unlink", |at| fs::remove_file(at.join("folder/inner"))),
    ("unlink that fails", |at| fs::remove_file(at.join("none"))),
    ("rmdir", |at| fs::remove_dir(at.join("empty"))),
    ("rmdir that fails", |at| fs::remove_dir(at.join("folder"))),
    ("rename", |at| fs::rename(at.join("file"), at.join("new"))),
    ("rename into a folder", |at| fs::rename(at.join("second"), at.join("folder/new"))),
    ("rename over a file", |at| fs::rename(at.join("folder/inner"), at.join("file"))),
    ("rename of a folder", |at| fs::rename(at.join("folder"), at.join("empty/new"))),
    ("rename to the same file", |at| fs::rename(at.join("file"), at.join("second"))),
    ("rename that fails", |at| fs::rename(at.join("none"), at.join("file"))),
    ("exchange", |at| {
        let (one, other) = (at.join("file"), at.join("folder/inner"));
        Ok(rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }),
    ("chmod", |at| Ok(rustix::fs::chmod(at.join("file"), mode(0o600))?)),
    ("chmod to the same", |at| Ok(rustix::fs::chmod(at.join("file"), mode(0o644))?)),
    ("chown", |at| std::os::unix::fs::chown(at.join("file"), Some(5), Some(5))),
    ("lchown", |at| std::os::unix::fs::lchown(at.join("link"), Some(5), Some(5))),
    ("setxattr", |at| Ok(rustix::fs::setxattr(at.join("file"), "user.one", b"1", XattrFlags::empty())?)),
    ("removexattr", |at| Ok(rustix::fs::removexattr(at.join("folder"), "user.there")?)),
    ("fallocate", |at| fallocate(at, FallocateFlags::empty(), 0, 100)),
    ("reserve", |at| fallocate(at, FallocateFlags::KEEP_SIZE, 0, 100_000)),
    ("punch", |at| fallocate(at, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 2)),
];

/// The times of modification and change, of a path that may have gone.
fn seen(at: &Path, name: &str) -> Option<[(i64, i64); 2]> {
    let found = fs::symlink_metadata(at.join(name)).ok()?;
    Some([(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())])
}

#[test]
fn calls_change_the_times_that_they_change_on_another_file_system() -> TestResult {
    compare(|root| {
        let fixture = |name: &str| {
            let at = root.join(name);
            folder(&at, 0o755, 0);
            fs::write(at.join("file"), "text").unwrap();
            fs::hard_link(at.join("file"), at.join("second")).unwrap();
            folder(&at.join("folder"), 0o755, 0);
            _ = rustix::fs::setxattr(at.join("folder"), "user.there", b"1", XattrFlags::empty());
            fs::write(at.join("folder/inner"), "").unwrap();
            folder(&at.join("empty"), 0o755, 0);
            symlink("file", at.join("link")).unwrap();
            // Two files that change their names have the same time.
            for path in ["file", "folder/inner"] {
                rustix::fs::utimensat(CWD, at.join(path), &super::times(1000), AtFlags::empty()).unwrap();
            }
            at
        };
        let folders: Vec<_> = CALLS.iter().map(|(name, _)| fixture(name)).collect();
        // The kernel's clock for files ticks every few milliseconds.
        std::thread::sleep(Duration::from_millis(30));
        let mut answers = Answers::new();
        for ((name, call), at) in CALLS.iter().zip(&folders) {
            let before = WATCHED.map(|path| seen(at, path));
            let answer = call(at).map_err(|error| error.raw_os_error());
            let after = WATCHED.map(|path| seen(at, path));
            let changes: Vec<String> = WATCHED
                .iter()
                .zip(before.into_iter().zip(after))
                .filter_map(|(path, (before, after))| {
                    let (Some([m, c]), Some([new_m, new_c])) = (before, after) else {
                        return Some(format!("{path} is gone"));
                    };
                    (m != new_m || c != new_c).then(|| format!("{path} m {} c {}", m != new_m, c != new_c))
                })
                .collect();
            answers.insert((*name).to_owned(), format!("{answer:?} {changes:?}"));
        }
        answers
    })
}

/// Fractions of seconds before 1970, and times that one of both does not have.
#[test]
fn times_that_programs_set_come_back() -> TestResult {
    compare(|root| {
        let mut answers = Answers::new();
        let path = root.join("file");
        fs::write(&path, "text").unwrap();
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = [
            (time(0, 0), time(0, 1)),
            (time(5, 999_999_999), time(1 << 31, 3)),
            (time(-1, 0), time(-1, 500_000_000)),
            (time(-2, 1), time(-1_000_000_000, 999_999_999)),
            (time(7, 7), time(0, libc::UTIME_OMIT)),
            (time(0, libc::UTIME_OMIT), time(8, 8)),
            (time(0, 1_000_000_000), time(0, 0)),
        ];
        for (last_access, last_modification) in times {
            let times = Timestamps { last_access, last_modification };
            let answer = rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty());
            let found = fs::metadata(&path).unwrap();
            let found = [(found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec())];
            answers.insert(format!("{times:?}"), format!("{answer:?} {found:?}"));
        }
        answers
    })
}
