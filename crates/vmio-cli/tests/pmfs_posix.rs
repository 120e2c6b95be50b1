//! System calls on a mounted vmio-pmfs beside the same calls on ext4 in the temporary folder: errors, permissions, modes, times.
//!
//! Each table runs on both, and the answers are compared.

#![allow(clippy::unwrap_used)]

mod modes;
mod paths;
mod permissions;
mod times;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::common::TestResult;
use crate::pmfs::{Mounted, can_mount, fsck, is_on_ext4, made};

/// A user without rights, and a group that she is in beside her own.
const USER: u32 = 65_534;
const GROUP: u32 = 4321;

/// An answer in words.
type Answers = BTreeMap<String, String>;

/// A call on a path.
type Call = (&'static str, fn(&Path) -> Result<(), Errno>);

fn mode(mode: u32) -> Mode {
    Mode::from_raw_mode(mode)
}

fn open(path: &Path, flags: OFlags) -> Result<(), Errno> {
    rustix::fs::open(path, flags, mode(0o644)).map(drop)
}

/// A path beside this one, which is not there.
fn beside(path: &Path) -> PathBuf {
    let case = path.ancestors().find(|above| above.join("beside").is_dir());
    case.map_or_else(|| path.with_file_name("new"), |case| case.join("beside/new"))
}

/// A path of a file beside this one.
fn file_beside(path: &Path) -> PathBuf {
    beside(path).with_file_name("there")
}

fn times(seconds: i64) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: 7 };
    Timestamps { last_access: time, last_modification: time }
}

fn now() -> Timestamps {
    let time = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
    Timestamps { last_access: time, last_modification: time }
}

fn truncate(path: &Path, to: u64) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty())?;
    rustix::fs::ftruncate(file, to)
}

fn device() -> u64 {
    rustix::fs::makedev(1, 3)
}

/// The calls that take a path.
const CALLS: &[Call] = &[
    ("stat", |path| rustix::fs::stat(path).map(drop)),
    ("lstat", |path| rustix::fs::lstat(path).map(drop)),
    ("readlink", |path| rustix::fs::readlink(path, Vec::new()).map(drop)),
    ("access", |path| rustix::fs::access(path, rustix::fs::Access::READ_OK)),
    ("open", |path| open(path, OFlags::RDONLY | OFlags::NONBLOCK)),
    ("open for writing", |path| open(path, OFlags::RDWR | OFlags::NONBLOCK)),
    ("open without following", |path| open(path, OFlags::NOFOLLOW | OFlags::NONBLOCK)),
    ("open of a folder", |path| open(path, OFlags::DIRECTORY | OFlags::NONBLOCK)),
    ("creat", |path| open(path, OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NONBLOCK)),
    ("creat of a new one", |path| open(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NONBLOCK)),
    ("truncate", |path| truncate(path, 3)),
    ("mkdir", |path| rustix::fs::mkdir(path, mode(0o755))),
    ("rmdir", |path| rustix::fs::rmdir(path)),
    ("unlink", |path| rustix::fs::unlink(path)),
    ("link from", |path| rustix::fs::link(path, beside(path))),
    ("link to", |path| rustix::fs::link(file_beside(path), path)),
    ("symlink", |path| rustix::fs::symlink("there", path)),
    ("symlink to it", |path| rustix::fs::symlink(path, beside(path))),
    ("rename from", |path| rustix::fs::rename(path, beside(path))),
    ("rename to", |path| rustix::fs::rename(file_beside(path), path)),
    ("rename of a folder to", |path| rustix::fs::rename(beside(path).with_file_name("folder"), path)),
    ("rename to itself", |path| rustix::fs::rename(path, path)),
    ("rename to elsewhere", |path| rustix::fs::rename(path, "/proc/vmio-pmfs")),
    ("link to elsewhere", |path| rustix::fs::link(path, "/proc/vmio-pmfs")),
    ("chmod", |path| rustix::fs::chmod(path, mode(0o600))),
    ("chown to the group", |path| rustix::fs::chownat(CWD, path, None, Some(Gid::from_raw(GROUP)), AtFlags::empty())),
    ("chown to another group", |path| rustix::fs::chownat(CWD, path, None, Some(Gid::from_raw(7)), AtFlags::empty())),
    ("chown to the user", |path| {
        rustix::fs::chownat(CWD, path, Some(Uid::from_raw(USER)), None, AtFlags::SYMLINK_NOFOLLOW)
    }),
    ("utimensat", |path| rustix::fs::utimensat(CWD, path, &times(1000), AtFlags::empty())),
    ("utimensat now", |path| rustix::fs::utimensat(CWD, path, &now(), AtFlags::SYMLINK_NOFOLLOW)),
    ("mkfifo", |path| rustix::fs::mknodat(CWD, path, FileType::Fifo, mode(0o644), 0)),
    ("mknod of a file", |path| rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode(0o644), 0)),
    ("mknod of a socket", |path| rustix::fs::mknodat(CWD, path, FileType::Socket, mode(0o644), 0)),
    ("mknod of a device", |path| rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, mode(0o644), device())),
];

fn said(answer: Result<(), Errno>) -> String {
    match answer {
        Ok(()) => "done".to_owned(),
        Err(errno) => format!("{errno:?}"),
    }
}

/// All that is in a folder, with what all file systems have alike. How long a folder is, is each one's own.
fn tree(folder: &Path) -> String {
    let mut lines = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let size = if found.is_dir() { 0 } else { found.len() };
        let name = path.strip_prefix(folder).unwrap_or(&path);
        let (mode, links, uid, gid) = (found.mode(), found.nlink(), found.uid(), found.gid());
        let device = if found.file_type().is_char_device() { found.rdev() } else { 0 };
        lines.push(format!("{} {mode:o} {links} {uid} {gid} {size} {device}", name.display()));
        if found.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    lines.sort();
    lines.join("; ")
}

/// A user as a thread of this program can be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    /// The user [`USER`], in the group [`GROUP`], too.
    User,
}

/// Runs calls as a user. The thread is root afterwards.
fn run_as<T>(who: Who, calls: impl FnOnce() -> T) -> T {
    if who == Who::Root {
        return calls();
    }
    become_user(&[GROUP], USER);
    let answer = calls();
    become_user(&[], 0);
    answer
}

/// Has this thread alone go on as a user. It keeps root as its saved user, by which it comes back.
fn become_user(groups: &[u32], user: u32) {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    if user == 0 {
        set_thread_res_uid(uid, uid, uid).unwrap();
    }
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(gid, gid, Gid::ROOT).unwrap();
    if user != 0 {
        set_thread_res_uid(uid, uid, Uid::ROOT).unwrap();
    }
}

/// Writes a file with a mode and an owner.
fn file(path: &Path, bits: u32, owner: u32) {
    fs::File::create(path).and_then(|mut file| file.write_all(b"text")).unwrap();
    owned(path, bits, owner);
}

fn folder(path: &Path, bits: u32, owner: u32) {
    fs::create_dir(path).unwrap();
    owned(path, bits, owner);
}

fn owned(path: &Path, bits: u32, owner: u32) {
    std::os::unix::fs::chown(path, Some(owner), Some(owner)).unwrap();
    rustix::fs::chmod(path, mode(bits)).unwrap();
}

/// Runs a table on both file systems and compares the answers.
fn compare(table: impl Fn(&Path) -> Answers) -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    if !is_on_ext4(dir.path()) {
        return Ok(());
    }
    rustix::fs::chmod(dir.path(), mode(0o755))?;
    let (image, mount, other) = (made(dir.path())?, dir.path().join("mounted"), dir.path().join("other"));
    let mounted = Mounted::new(&image, &mount)?;
    // The path lengths are the same.
    let (ours, theirs) = (mount.join("case"), other.join("casecc"));
    fs::create_dir(&ours)?;
    fs::create_dir_all(&theirs)?;
    let (got, expected) = (table(&ours), table(&theirs));
    let differences: Vec<String> = expected
        .iter()
        .filter_map(|(what, expected)| {
            let got = got.get(what).map_or("nothing", |got| got);
            (got != expected).then(|| format!("{what}:\n  got      {got}\n  expected {expected}"))
        })
        .collect();
    let differing = differences.len();
    assert!(differences.is_empty(), "{differing} of {}:\n{}", expected.len(), differences.join("\n"));
    assert_eq!(got.len(), expected.len());
    mounted.unmount()?;
    fsck(&image)
}
