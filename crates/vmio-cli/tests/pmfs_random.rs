//! Random calls of a program on a mounted vmio-pmfs, beside the same calls on the file system of the temporary folder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::common::TestResult;
use crate::pmfs::{Mounted, can_mount, fsck, is_on_ext4, made};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{
    CWD, FallocateFlags, RenameFlags, XattrFlags, fallocate, getxattr, listxattr, removexattr, renameat_with, setxattr,
};
use rustix::io::Errno;

const XATTRS: [&str; 3] = ["user.one", "user.two", "user.a-longer-name-of-an-attribute"];

const NAMES: [&str; 15] = [
    "a",
    "b",
    "c",
    "one/a",
    "one/b",
    "one/c",
    "one/two/a",
    "one/two/b",
    "one/two/c",
    "three/a",
    "three/b",
    "one",
    "three",
    "one/two",
    "a-name-of-more-than-forty-eight-bytes-which-needs-two-places-of-a-block",
];

/// The same calls, on one of the two file systems.
struct Program {
    root: PathBuf,
    random: SmallRng,
    open: BTreeMap<&'static str, File>,
}

/// An answer, in words that are the same on all file systems.
type Answer = Result<String, Option<i32>>;

fn answer<T: std::fmt::Debug>(result: io::Result<T>) -> Answer {
    result.map(|value| format!("{value:?}")).map_err(|error| error.raw_os_error())
}

impl Program {
    fn new(root: PathBuf, seed: u64) -> io::Result<Program> {
        fs::create_dir(&root)?;
        Ok(Program { root, random: SmallRng::seed_from_u64(seed), open: BTreeMap::new() })
    }

    /// Makes one call, and returns it with its answer.
    fn step(&mut self) -> (String, Answer) {
        let mut name = || NAMES[self.random.random_range(0..NAMES.len())];
        let (one, other) = (name(), name());
        let (at, len) = (self.random.random_range(0..80_000), self.random.random_range(1..30_000));
        let (path, to) = (self.root.join(one), self.root.join(other));
        let write = |options: &mut OpenOptions| {
            let file = options.create(true).mode(0o640).open(&path)?;
            file.write_at(&vec![len as u8; len], at)
        };
        let call = self.random.random_range(0..20);
        let said = match call {
            0 => answer(fs::create_dir(&path)),
            1 => answer(fs::remove_dir(&path)),
            2 => answer(fs::remove_file(&path)),
            3 => answer(fs::rename(&path, &to)),
            4 => answer(fs::hard_link(&path, &to)),
            5 => answer(symlink(other, &path)),
            6 | 7 => answer(write(OpenOptions::new().write(true))),
            8 => answer(write(OpenOptions::new().append(true))),
            9 => answer(OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(at))),
            10 => answer(path.parent().map_or(Ok(Vec::new()), names)),
            11 => answer(attributes(&path).map(|found| (found, xattrs(&path)))),
            12 => answer(fs::read(&path).map(|bytes| crc32fast::hash(&bytes))),
            13 => answer(fs::set_permissions(&path, Permissions::from_mode(0o400 + (at % 0o400) as u32))),
            14 => answer(set_times(&path, at)),
            15 => answer(exchange(&path, &to)),
            16 => answer(Ok(setxattr(&path, XATTRS[len % 3], &[len as u8; 50], XattrFlags::empty()))),
            17 => answer(Ok(removexattr(&path, XATTRS[len % 3]))),
            18 => answer(punch(&path, at, len)),
            _ => match self.open.remove(one) {
                Some(file) => answer(read_open(&file)),
                None => answer(File::open(&path).map(|file| _ = self.open.insert(one, file))),
            },
        };
        (format!("{call} {one} {other} {at} {len}"), said)
    }
}

fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// The attributes that all file systems have alike. How long a folder is, and what links it counts, is each one's own.
fn attributes(path: &Path) -> io::Result<(bool, bool, u32, u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    let is_folder = found.is_dir();
    let (links, size) = if is_folder { (0, 0) } else { (found.nlink(), found.len()) };
    Ok((is_folder, found.file_type().is_fifo(), found.mode(), links, size))
}

fn set_times(path: &Path, at: u64) -> io::Result<(i64, i64)> {
    let time = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    File::open(path)?.set_times(FileTimes::new().set_accessed(time(at)).set_modified(time(at * 7)))?;
    let found = fs::metadata(path)?;
    Ok((found.atime(), found.mtime()))
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

fn punch(path: &Path, at: u64, len: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    Ok(fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len as u64)?)
}

/// The attributes that users give a folder or file.
fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
    let mut names = [0; 200];
    let bytes = listxattr(path, &mut names)?;
    let mut found = BTreeMap::new();
    for name in names[..bytes].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = [0; 100];
        let bytes = getxattr(path, name, &mut value)?;
        found.insert(name.to_vec(), value[..bytes].to_vec());
    }
    Ok(found)
}

fn read_open(file: &File) -> io::Result<(u64, Vec<u8>)> {
    let found = file.metadata()?;
    if found.is_dir() {
        return Ok((0, Vec::new()));
    }
    let mut bytes = vec![0; 100];
    let read = file.read_at(&mut bytes, 50)?;
    bytes.truncate(read);
    Ok((found.nlink(), bytes))
}

#[test]
fn programs_get_the_same_answers_as_from_another_file_system() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    if !is_on_ext4(dir.path()) {
        return Ok(());
    }
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    for seed in test_depth::seeds(3, 100) {
        let mounted = Mounted::new(&image, &folder)?;
        let mut ours = Program::new(folder.join(format!("{seed}")), seed)?;
        let mut other = Program::new(dir.path().join(format!("{seed}")), seed)?;
        for step in 0..1500 {
            let (expected, got) = (other.step(), ours.step());
            assert_eq!(got, expected, "seed {seed}, step {step}");
        }
        drop((ours, other));
        mounted.unmount()?;
        fsck(&image)?;
    }
    Ok(())
}
