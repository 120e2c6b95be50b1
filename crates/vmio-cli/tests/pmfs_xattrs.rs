//! Extended attributes of files on a mounted vmio-pmfs, beside those of the temporary folder's file system.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{TestResult, succeeded};
use crate::pmfs::{Mounted, can_mount, fsck, is_on_ext4, made};
use rustix::fs::{XattrFlags, getxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

const ALIGNED: &str = "user.vmio.aligned";

type Answer<T = ()> = Result<T, Errno>;

/// The answers to calls, mistakes among them.
fn answers(folder: &Path) -> (Vec<Answer>, Vec<Answer<usize>>, Answer<Vec<u8>>) {
    let (file, link) = (folder.join("file"), folder.join("link"));
    fs::write(&file, "text").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let none = XattrFlags::empty();
    let long = format!("user.{}", "x".repeat(250));
    let too_long = format!("user.{}", "x".repeat(251));
    let done = vec![
        setxattr(&file, "user.one", b"first", none),
        setxattr(&file, "user.one", b"second", XattrFlags::CREATE),
        setxattr(&file, "user.one", b"second", XattrFlags::REPLACE),
        setxattr(&file, "user.none", b"", XattrFlags::REPLACE),
        setxattr(&file, "user.empty", b"", XattrFlags::CREATE),
        setxattr(&file, "trusted.one", &[7; 300], none),
        setxattr(&file, "security.vmio", b"label", none),
        setxattr(&file, "other.one", b"", none),
        setxattr(&file, "one", b"", none),
        setxattr(&file, "user.", b"", none),
        setxattr(&file, "user.large", &vec![0; 5000], none),
        setxattr(&file, "user.larger", &vec![0; 70_000], none),
        setxattr(&file, long.as_str(), b"1", none),
        setxattr(&file, too_long.as_str(), b"1", none),
        setxattr(folder, "user.folder", b"1", none),
        lsetxattr(&link, "user.link", b"1", none),
        lsetxattr(&link, "trusted.link", b"1", none),
        removexattr(&file, "user.none"),
        removexattr(&file, "user.empty"),
        removexattr(&file, "user.empty"),
    ];
    let get = |name: &str, room: usize| getxattr(&file, name, &mut vec![0; room][..]);
    let lengths =
        vec![get("user.one", 0), get("user.one", 3), get("user.one", 100), get("user.none", 100), get("one", 100)];
    let mut names = vec![0; 1000];
    let listed = listxattr(&file, &mut names[..]).map(|bytes| {
        let mut names: Vec<&[u8]> = names[..bytes].split_inclusive(|byte| *byte == 0).collect();
        names.sort_unstable();
        names.concat()
    });
    (done, lengths, listed)
}

#[test]
fn attributes_are_as_on_another_file_system() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder, other) = (made(dir.path())?, dir.path().join("mounted"), dir.path().join("other"));
    fs::create_dir(&other)?;
    if !is_on_ext4(&other) {
        return Ok(());
    }
    let mounted = Mounted::new(&image, &folder)?;
    let (ours, others) = (answers(&folder), answers(&other));
    assert_eq!(ours, others);
    // The kernel would not heed what an opaque list says.
    let acl = setxattr(folder.join("file"), "system.posix_acl_access", &[2, 0, 0, 0], XattrFlags::empty());
    assert_eq!(acl, Err(Errno::OPNOTSUPP));
    mounted.unmount()?;
    fsck(&image)?;
    let mounted = Mounted::new(&image, &folder)?;
    let mut value = [0; 10];
    assert_eq!(getxattr(folder.join("file"), "user.one", &mut value)?, 6);
    assert_eq!(&value[..6], b"second");
    mounted.unmount()
}

#[test]
fn copies_keep_the_alignment_wish() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let wishes = |path: &str| {
        let mut value = [0; 10];
        match getxattr(folder.join(path), ALIGNED, &mut value) {
            Ok(1) => value[0] == b'1',
            Err(Errno::NODATA) => false,
            answer => panic!("{path}: {answer:?}"),
        }
    };
    fs::create_dir_all(folder.join("one"))?;
    setxattr(folder.join("one"), ALIGNED, b"1", XattrFlags::empty())?;
    assert_eq!(setxattr(folder.join("one"), ALIGNED, b"yes", XattrFlags::empty()), Err(Errno::INVAL));
    fs::write(folder.join("one/file"), "text")?;
    fs::create_dir(folder.join("one/inner"))?;
    fs::write(folder.join("plain"), "text")?;
    assert!(wishes("one/file") && wishes("one/inner") && !wishes("plain"));
    succeeded(Command::new("cp").arg("-a").arg(folder.join("one")).arg(folder.join("copy")))?;
    assert!(wishes("copy") && wishes("copy/file") && wishes("copy/inner"));
    succeeded(Command::new("cp").arg(folder.join("one/file")).arg(folder.join("without")))?;
    assert!(!wishes("without"));
    if Command::new("rsync").arg("--version").output().is_ok() {
        succeeded(Command::new("rsync").arg("-aX").arg(folder.join("one/")).arg(folder.join("synced")))?;
        assert!(wishes("synced/file") && wishes("synced/inner"));
        succeeded(Command::new("rsync").arg("-a").arg(folder.join("one/file")).arg(folder.join("plain")))?;
    }
    mounted.unmount()?;
    fsck(&image)?;
    let mounted = Mounted::new(&image, &folder)?;
    let mut value = [0; 10];
    assert_eq!(getxattr(folder.join("copy/file"), ALIGNED, &mut value), Ok(1));
    mounted.unmount()
}

/// As other file systems do it, also when root writes.
#[test]
fn a_program_that_was_changed_has_no_capabilities() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let program = folder.join("program");
    // Version 2 of vfs_cap_data: CAP_NET_RAW is permitted.
    let capability = [0, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let changes: [&dyn Fn() -> std::io::Result<()>; 3] = [
        &|| std::os::unix::fs::FileExt::write_all_at(&fs::File::options().write(true).open(&program)?, b"T", 0),
        &|| fs::File::options().write(true).open(&program)?.set_len(2),
        &|| std::os::unix::fs::chown(&program, Some(1), None),
    ];
    fs::write(&program, "text")?;
    for (number, change) in changes.into_iter().enumerate() {
        setxattr(&program, "security.capability", &capability, XattrFlags::empty())?;
        assert!(getxattr(&program, "security.capability", &mut [0; 30]).is_ok());
        change()?;
        let after = getxattr(&program, "security.capability", &mut [0; 30]);
        assert_eq!(after, Err(Errno::NODATA), "change {number}");
    }
    mounted.unmount()?;
    fsck(&image)
}
