//! Set-user-ID, set-group-ID, groups that folders hand down.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;

use super::{Answers, GROUP, USER, Who, compare, folder, mode, owned, run_as, said, tree};
use crate::common::TestResult;
use rustix::fs::{CWD, FallocateFlags, FileType, Gid, Uid, XattrFlags};
use rustix::io::Errno;

type Change = (&'static str, fn(&Path) -> std::io::Result<()>);

fn opened(path: &Path) -> std::io::Result<fs::File> {
    fs::File::options().read(true).write(true).open(path)
}

/// Changes of a file, by which it may lose bits of its mode.
const CHANGES: [Change; 13] = [
    ("write", |path| opened(path)?.write_all_at(b"T", 0)),
    ("append", |path| opened(path)?.write_all_at(b"T", 4)),
    ("write of nothing", |path| opened(path)?.write_at(b"", 0).map(drop)),
    ("truncate", |path| opened(path)?.set_len(2)),
    ("truncate to the same", |path| opened(path)?.set_len(4)),
    ("open with O_TRUNC", |path| fs::File::create(path).map(drop)),
    ("fallocate", |path| Ok(rustix::fs::fallocate(opened(path)?, FallocateFlags::empty(), 0, 100)?)),
    ("punch", |path| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(opened(path)?, flags, 0, 2)?)
    }),
    ("chown to nobody else", |path| chown(path, None, None)),
    ("chown to the group", |path| chown(path, None, Some(GROUP))),
    ("chown to another", |path| chown(path, Some(5), Some(6))),
    ("chmod", |path| Ok(rustix::fs::chmod(path, mode(0o6711))?)),
    ("utimensat", |path| Ok(rustix::fs::utimensat(CWD, path, &super::times(5), rustix::fs::AtFlags::empty())?)),
];

fn in_words(answer: std::io::Result<()>) -> String {
    said(answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

#[test]
fn changes_take_set_ids_away_as_on_another_file_system() -> TestResult {
    compare(|root| {
        let mut answers = Answers::new();
        for who in [Who::Root, Who::User] {
            for (bits, owner, group) in
                [(0o6777, USER, USER), (0o6777, 0, 0), (0o2767, 0, GROUP), (0o2755, USER, 7), (0o4755, USER, GROUP)]
            {
                for (name, change) in CHANGES {
                    let path = root.join("file");
                    fs::write(&path, "text").unwrap();
                    rustix::fs::chownat(
                        CWD,
                        &path,
                        Some(Uid::from_raw(owner)),
                        Some(Gid::from_raw(group)),
                        rustix::fs::AtFlags::empty(),
                    )
                    .unwrap();
                    rustix::fs::chmod(&path, mode(bits)).unwrap();
                    let answer = in_words(run_as(who, || change(&path)));
                    let what = format!("{name} by {who:?} of {bits:o} {owner} {group}");
                    answers.insert(what, format!("{answer}: {}", tree(&path)));
                    fs::remove_file(&path).unwrap();
                }
            }
        }
        answers
    })
}

#[test]
fn folders_hand_their_group_down_as_on_another_file_system() -> TestResult {
    compare(|root| {
        let mut answers = Answers::new();
        for who in [Who::Root, Who::User] {
            for (bits, group) in [(0o2777, GROUP), (0o2777, 7), (0o777, 7)] {
                let into = root.join("folder");
                folder(&into, 0o777, 0);
                chown(&into, None, Some(group)).unwrap();
                rustix::fs::chmod(&into, mode(bits)).unwrap();
                let made = run_as(who, || {
                    use std::os::unix::fs::OpenOptionsExt;
                    let create = |name: &str, bits| {
                        fs::File::options().create(true).write(true).mode(bits).open(into.join(name)).map(drop)
                    };
                    vec![
                        create("file", 0o644),
                        create("program", 0o2755),
                        create("setuid", 0o6777),
                        fs::create_dir(into.join("inner")),
                        fs::write(into.join("inner/file"), "text"),
                        std::os::unix::fs::symlink("file", into.join("link")),
                        rustix::fs::mkdir(into.join("other"), mode(0o2700)).map_err(Into::into),
                        rustix::fs::mknodat(CWD, into.join("fifo"), FileType::Fifo, mode(0o2777), 0)
                            .map_err(Into::into),
                        rustix::fs::chmod(into.join("file"), mode(0o2755)).map_err(Into::into),
                    ]
                });
                let made: Vec<String> = made.into_iter().map(in_words).collect();
                answers.insert(format!("{who:?} in {bits:o} of {group}"), format!("{made:?}: {}", tree(&into)));
                fs::remove_dir_all(&into).unwrap();
            }
        }
        answers
    })
}

/// The names of trusted attributes are for root.
#[test]
fn users_see_the_attributes_that_they_see_on_another_file_system() -> TestResult {
    compare(|root| {
        let path = root.join("file");
        fs::write(&path, "text").unwrap();
        for name in ["user.one", "trusted.one", "security.one"] {
            _ = rustix::fs::setxattr(&path, name, b"1", XattrFlags::empty());
        }
        let seen = |who| {
            run_as(who, || {
                let mut names = [0; 200];
                let listed = rustix::fs::listxattr(&path, &mut names).map(|bytes| {
                    let mut names: Vec<&[u8]> = names[..bytes].split(|byte| *byte == 0).collect();
                    names.sort_unstable();
                    String::from_utf8_lossy(&names.join(&b' ')).into_owned()
                });
                let read = ["user.one", "trusted.one", "security.one"]
                    .map(|name| rustix::fs::getxattr(&path, name, &mut [0; 10]));
                let set = ["user.one", "trusted.one", "security.one"]
                    .map(|name| rustix::fs::setxattr(&path, name, b"2", XattrFlags::empty()));
                format!("{listed:?} {read:?} {set:?}")
            })
        };
        let mut answers = Answers::new();
        for bits in [0o644, 0o600, 0o666] {
            rustix::fs::chmod(&path, mode(bits)).unwrap();
            for who in [Who::User, Who::Root] {
                answers.insert(format!("{who:?} {bits:o}"), seen(who));
            }
        }
        answers
    })
}

/// Of files, and of folders as many as there are folders in them.
#[test]
fn links_are_counted_as_on_another_file_system() -> TestResult {
    compare(|root| {
        let mut answers = Answers::new();
        let mut note = |what: &str| _ = answers.insert(what.to_owned(), tree(root));
        folder(&root.join("one"), 0o755, 0);
        folder(&root.join("one/two"), 0o755, 0);
        fs::write(root.join("one/a"), "text").unwrap();
        fs::hard_link(root.join("one/a"), root.join("b")).unwrap();
        owned(&root.join("b"), 0o600, 7);
        note("made");
        fs::rename(root.join("one/two"), root.join("three")).unwrap();
        note("moved");
        fs::rename(root.join("three"), root.join("one/four")).unwrap();
        fs::create_dir(root.join("five")).unwrap();
        fs::rename(root.join("five"), root.join("one/four")).unwrap();
        note("replaced");
        // Two names of one file: nothing happens.
        fs::rename(root.join("b"), root.join("one/a")).unwrap();
        note("the same file");
        fs::remove_file(root.join("b")).unwrap();
        fs::remove_dir(root.join("one/four")).unwrap();
        note("removed");
        answers
    })
}
