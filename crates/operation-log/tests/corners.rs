//! Files and logs of processes that died at a bad moment.

use std::error::Error as StdError;
use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use operation_log::{Damage, Error, FOLDER_NAME, FileIdentity, FileNumber, Log, LogOptions, LogState};
use operation_log::{RecoveredLog, preview, recover};

type TestResult = Result<(), Box<dyn StdError>>;

fn log(under: &Path) -> Result<Log, Error> {
    Log::create(under, LogOptions::new().capacity_bytes(256 << 10))
}

fn add(log: &Log, path: &Path) -> Result<FileNumber, Box<dyn StdError>> {
    Ok(log.file(FileIdentity::of(File::open(path)?)?, path)?)
}

fn write(log: &Log, file: FileNumber, offset: u64, data: &[u8]) -> Result<(), Error> {
    log.write(file, offset, 0, &[IoSlice::new(data)]).map(drop)
}

/// A log with one operation for a file, whose process is dead.
fn dead_log(under: &Path, name: &str, content: &str) -> TestResult {
    let path = under.join(name);
    fs::write(&path, content)?;
    let log = log(under)?;
    write(&log, add(&log, &path)?, 2, b"logged")?;
    drop(log);
    Ok(())
}

fn only_log(under: &Path) -> Result<RecoveredLog, Box<dyn StdError>> {
    let mut logs = recover(under)?.logs;
    assert_eq!(logs.len(), 1, "{logs:?}");
    Ok(logs.remove(0))
}

fn logs_left(under: &Path) -> Result<usize, std::io::Error> {
    let folder = under.join(FOLDER_NAME);
    if folder.exists() { Ok(fs::read_dir(folder)?.count()) } else { Ok(0) }
}

#[test]
fn files_are_found_where_they_are_now() -> TestResult {
    let folder = tempfile::tempdir()?;
    let under = folder.path();
    dead_log(under, "old", "..")?;
    fs::create_dir_all(under.join("deep/er"))?;
    fs::rename(under.join("old"), under.join("deep/er/new"))?;
    fs::write(under.join("old"), "another")?;
    let looked = preview(under)?;
    assert_eq!(looked.logs[0].files[0].found_at, Some(under.join("deep/er/new")));
    assert_eq!(fs::read(under.join("deep/er/new"))?, b"..", "a preview wrote");
    let log = only_log(under)?;
    assert!(matches!(log.state, LogState::Recovered), "{log:?}");
    assert_eq!(log.owner, Some(std::process::id()));
    assert_eq!((log.files[0].operations, log.files[0].bytes), (1, 6));
    assert_eq!(log.files[0].path, under.join("old"));
    assert_eq!(fs::read(under.join("deep/er/new"))?, b"..logged");
    assert_eq!(fs::read(under.join("old"))?, b"another");
    assert_eq!(logs_left(under)?, 0);
    Ok(())
}

#[test]
fn a_file_that_is_gone_is_skipped_and_reported() -> TestResult {
    let folder = tempfile::tempdir()?;
    let under = folder.path();
    dead_log(under, "gone", "")?;
    fs::remove_file(under.join("gone"))?;
    // Not waited for, and not taken for the file.
    rustix::fs::mkfifoat(rustix::fs::CWD, under.join("gone"), rustix::fs::Mode::RWXU)?;
    let log = only_log(under)?;
    assert!(matches!(log.state, LogState::Recovered));
    assert_eq!((log.files[0].found_at.as_ref(), log.files[0].operations), (None, 1));
    assert_eq!(logs_left(under)?, 0);
    Ok(())
}

#[test]
fn short_and_sparse_files_grow_and_keep_their_holes() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, path) = (folder.path(), folder.path().join("file"));
    File::create(&path)?.set_len(1 << 30)?;
    let log = log(under)?;
    let file = add(&log, &path)?;
    drop(log.write(file, 500 << 20, 1 << 30, &[IoSlice::new(b"middle")])?);
    drop(log.write(file, 5, 2 << 30, &[IoSlice::new(b"front")])?);
    drop(log.write(file, 3 << 30, 2 << 30, &[IoSlice::new(b"end")])?);
    drop(log);
    // As if nothing that made it longer had reached the device.
    File::options().write(true).open(&path)?.set_len(0)?;
    only_log(under)?;
    let file = File::open(&path)?;
    assert_eq!(file.metadata()?.len(), (3 << 30) + 3);
    let mut found = [0; 8];
    file.read_exact_at(&mut found, (500 << 20) - 1)?;
    assert_eq!(&found, b"\0middle\0");
    assert!(std::os::unix::fs::MetadataExt::blocks(&file.metadata()?) < 1000);
    Ok(())
}

#[test]
fn a_log_whose_file_may_not_be_written_stays_as_a_whole() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, [a, b]) = (folder.path(), ["a", "b"].map(|name| folder.path().join(name)));
    let log = log(under)?;
    fs::write(&a, "before")?;
    // Nobody may write to a program that runs.
    fs::copy("/bin/sleep", &b)?;
    for path in [&a, &b] {
        write(&log, add(&log, path)?, 0, b"behind")?;
    }
    drop(log);
    let mut running = Command::new(&b).arg("60").spawn()?;
    let found = only_log(under);
    running.kill()?;
    running.wait()?;
    let found = found?;
    assert!(matches!(&found.state, LogState::NotReplayed(Error::File { path, .. }) if *path == b), "{found:?}");
    assert_eq!(fs::read(&a)?, b"before");
    assert!(matches!(only_log(under)?.state, LogState::Recovered));
    assert!(fs::read(&a)? == b"behind" && fs::read(&b)?.starts_with(b"behind"));
    Ok(())
}

#[test]
fn a_file_that_is_read_only_by_its_mode_is_replayed_and_stays_so() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, path) = (folder.path(), folder.path().join("object"));
    dead_log(under, "object", "..")?;
    let mode = || Ok::<_, std::io::Error>(fs::metadata(&path)?.permissions().mode() & 0o7777);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444))?;
    assert!(matches!(preview(under)?.logs[0].state, LogState::Recovered));
    assert_eq!((fs::read(&path)?, mode()?), (b"..".to_vec(), 0o444), "a preview changed it");
    assert!(matches!(only_log(under)?.state, LogState::Recovered));
    assert_eq!((fs::read(&path)?, mode()?), (b"..logged".to_vec(), 0o444));
    Ok(())
}

#[test]
fn a_program_that_runs_keeps_its_file_from_recovery() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, path) = (folder.path(), folder.path().join("busy"));
    fs::write(&path, "")?;
    let log = log(under)?;
    let file = add(&log, &path)?;
    write(&log, file, 0, b"logged")?;
    assert!(matches!(only_log(under)?.state, LogState::InUse));
    assert!(fs::read(&path)?.is_empty());
    Ok(())
}

#[test]
fn what_is_retired_or_checkpointed_is_not_replayed() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, [a, b]) = (folder.path(), ["a", "b"].map(|name| folder.path().join(name)));
    fs::write(&a, "")?;
    fs::write(&b, "")?;
    let log = log(under)?;
    let [first, second] = [add(&log, &a)?, add(&log, &b)?];
    write(&log, first, 0, b"one")?;
    write(&log, second, 0, b"two")?;
    assert!(matches!(log.forget(first), Err(Error::NotRetired { .. })));
    let mut synced = 0;
    log.retire(first, || {
        synced += 1;
        Ok(())
    })?;
    log.retire(first, || unreachable!("nothing is left of it"))?;
    log.forget(first)?;
    assert!(matches!(log.write(first, 0, 0, &[]), Err(Error::UnknownFile(_))));
    drop(log);
    assert_eq!((synced, only_log(under)?.files.len()), (1, 1));
    assert_eq!((fs::read(&a)?, fs::read(&b)?), (Vec::new(), b"two".to_vec()));

    let log = self::log(under)?;
    let [first, second] = [add(&log, &a)?, add(&log, &b)?];
    write(&log, first, 0, b"one")?;
    let mut synced = Vec::new();
    log.checkpoint(|file| {
        synced.push(file);
        Ok(())
    })?;
    assert_eq!(synced, [first]);
    write(&log, second, 0, b"new")?;
    drop(log);
    assert_eq!(only_log(under)?.files.len(), 1);
    assert_eq!((fs::read(&a)?, fs::read(&b)?), (Vec::new(), b"new".to_vec()));
    Ok(())
}

#[test]
fn what_a_file_lacks_is_kept_for_recovery() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, [a, b]) = (folder.path(), ["a", "b"].map(|name| folder.path().join(name)));
    fs::write(&a, "")?;
    fs::write(&b, "")?;
    let log = log(under)?;
    let [lacking, other] = [add(&log, &a)?, add(&log, &b)?];
    write(&log, lacking, 0, b"one")?;
    log.keep(lacking)?;
    write(&log, other, 0, b"two")?;
    log.retire(other, || Ok(()))?;
    let number = add(&log, &a)?;
    assert!(matches!(write(&log, number, 0, b"new"), Err(Error::Kept { path }) if path == a));
    let flushed = || unreachable!("that says nothing");
    assert!(matches!(log.retire(number, flushed), Err(Error::Kept { .. })));
    assert!(matches!(log.forget(number), Err(Error::NotRetired { .. })));
    assert!(matches!(log.checkpoint(|_| Ok(())), Err(Error::Kept { .. })));
    drop(log);
    assert!(matches!(only_log(under)?.state, LogState::Recovered));
    assert_eq!((fs::read(&a)?, fs::read(&b)?), (b"one".to_vec(), Vec::new()));
    Ok(())
}

/// Linux reports bytes that it could not write to one flush. The next flush succeeds without them.
#[test]
fn what_a_flush_has_lost_is_kept_for_recovery() -> TestResult {
    type Flush = fn(&Log, FileNumber, &dyn Fn() -> std::io::Result<()>) -> Result<(), Error>;
    let ways: [Flush; 2] = [|log, file, sync| log.retire(file, sync), |log, _, sync| log.checkpoint(|_| sync())];
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let folder = tempfile::tempdir()?;
        let (under, path) = (folder.path(), folder.path().join("file"));
        fs::write(&path, "")?;
        let log = log(under)?;
        let file = add(&log, &path)?;
        write(&log, file, 0, b"acknowledged")?;
        let not_tried = ways[first](&log, file, &|| Err(std::io::ErrorKind::NotFound.into()));
        assert!(matches!(not_tried, Err(Error::Sync(_))), "{not_tried:?}");
        let failed = ways[first](&log, file, &|| Err(rustix::io::Errno::IO.into()));
        assert!(matches!(failed, Err(Error::Sync(_))), "{failed:?}");
        let again = ways[second](&log, file, &|| Ok(()));
        assert!(matches!(again, Err(Error::Kept { .. })), "{first} and {second}: {again:?}");
        assert!(matches!(write(&log, file, 0, b"more"), Err(Error::Kept { .. })));
        drop(log);
        assert!(matches!(only_log(under)?.state, LogState::Recovered));
        assert_eq!(fs::read(&path)?, b"acknowledged");
    }
    Ok(())
}

/// Linux tells each descriptor once of bytes that it could not write, and a thread may have the descriptor that was told.
#[test]
fn a_flush_that_succeeds_beside_one_that_fails_retires_nothing() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, path) = (folder.path(), folder.path().join("file"));
    fs::write(&path, "")?;
    let log = log(under)?;
    let file = add(&log, &path)?;
    write(&log, file, 0, b"acknowledged")?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| {
            log.retire(file, || {
                sender.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(200));
                Err(rustix::io::Errno::IO.into())
            })
        });
        receiver.recv().unwrap();
        let beside = log.checkpoint(|_| Ok(()));
        assert!(matches!(beside, Err(Error::Kept { .. })), "{beside:?}");
        assert!(matches!(failing.join().unwrap(), Err(Error::Sync(_))));
    });
    drop(log);
    assert!(matches!(only_log(under)?.state, LogState::Recovered));
    assert_eq!(fs::read(&path)?, b"acknowledged");
    Ok(())
}

#[test]
fn a_full_log_says_so_and_a_checkpoint_makes_space() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (under, path) = (folder.path(), folder.path().join("file"));
    fs::write(&path, "")?;
    let log = log(under)?;
    let file = add(&log, &path)?;
    let most = vec![1; usize::try_from(log.data_bytes_max())?];
    let longer = vec![1; most.len() + 1];
    assert!(
        matches!(write(&log, file, 0, &longer), Err(Error::TooLong { bytes_max, .. }) if bytes_max == most.len() as u64)
    );
    assert!(matches!(write(&log, file, i64::MAX as u64, b"x"), Err(Error::OutOfRange { .. })));
    for _ in 0..3 {
        write(&log, file, 0, &most)?;
        assert!(matches!(write(&log, file, 0, &most), Err(Error::Full { .. })));
        let failed = log.checkpoint(|_| Err(std::io::ErrorKind::NotFound.into()));
        assert!(matches!(failed, Err(Error::Sync(_))));
        log.checkpoint(|_| Ok(()))?;
    }
    log.checkpoint(|_| unreachable!("there is nothing"))?;
    write(&log, file, 0, b"x")?;
    let left = log.path().to_owned();
    assert!(matches!(log.close(), Err(Error::NotRetired { .. })));
    assert!(left.exists());
    Ok(())
}

#[test]
fn damaged_and_copied_logs_are_reported_and_left() -> TestResult {
    let folder = tempfile::tempdir()?;
    let under = folder.path();
    dead_log(under, "file", "..")?;
    let path = preview(under)?.logs[0].path.clone();
    let sound = fs::read(&path)?;
    let damage_of = |bytes: &[u8]| -> Result<Damage, Box<dyn StdError>> {
        fs::write(&path, bytes)?;
        let log = only_log(under)?;
        assert_eq!(fs::read(&path)?, bytes, "a damaged log was changed");
        match log.state {
            LogState::NotReplayed(Error::Damaged { damage, .. }) => Ok(damage),
            other => Err(format!("{other:?}").into()),
        }
    };
    assert_eq!(damage_of(b"")?, Damage::TooShort { bytes: 0 });
    assert_eq!(damage_of(&vec![0; sound.len()])?, Damage::NoMagic);
    assert_eq!(damage_of(&sound[..9000])?, Damage::Cut { found_bytes: 9000, expected_bytes: sound.len() as u64 });
    // The newest header is copy 1. Without it, the entries show that they are of a later generation than copy 0.
    let mut lost = sound.clone();
    lost[4096 + 50] ^= 1;
    assert_eq!(damage_of(&lost)?, Damage::HeaderLost { found: 1, known: 0 });
    assert_eq!(fs::read(under.join("file"))?, b"..");

    fs::write(&path, &sound)?;
    let copy = path.with_file_name("copy.log");
    fs::copy(&path, &copy)?;
    let logs = recover(under)?.logs;
    assert_eq!(logs.len(), 2);
    let left = logs.iter().find(|log| log.path == copy).ok_or("the copy is not told of")?;
    assert!(
        matches!(left.state, LogState::NotReplayed(Error::Damaged { damage: Damage::Copy { .. }, .. })),
        "{left:?}"
    );
    assert!(copy.exists() && !path.exists());
    assert_eq!(fs::read(under.join("file"))?, b"..logged");
    Ok(())
}

#[test]
fn without_logs_there_is_nothing_to_do() -> TestResult {
    let folder = tempfile::tempdir()?;
    assert!(recover(folder.path())?.logs.is_empty());
    let log = log(folder.path())?;
    let path = log.path().to_owned();
    log.close()?;
    assert!(!folder.path().join(FOLDER_NAME).exists());
    fs::create_dir(folder.path().join(FOLDER_NAME))?;
    fs::write(path.with_file_name("notes.txt"), "not ours")?;
    assert!(recover(folder.path())?.logs.is_empty());
    assert_eq!(logs_left(folder.path())?, 1);
    assert!(matches!(recover(&folder.path().join("none")), Err(Error::Io { .. })));
    Ok(())
}

/// Two processes' logs: the replay of a dead process's log never undoes a durable write of the other, since each writes, applies and
/// retires in turn.
#[test]
fn who_has_the_turn_keeps_the_others_waiting() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (first, second) = (log(folder.path())?, log(folder.path())?);
    let (sender, receiver) = std::sync::mpsc::channel();
    let turn = first.turn()?;
    std::thread::scope(|scope| {
        for (name, log) in [("the other", &second), ("a thread", &first)] {
            let sender = sender.clone();
            scope.spawn(move || {
                let _turn = log.turn().unwrap();
                sender.send(name).unwrap();
            });
        }
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(200)).is_err());
        drop(turn);
        let mut names = [receiver.recv().unwrap(), receiver.recv().unwrap()];
        names.sort_unstable();
        assert_eq!(names, ["a thread", "the other"]);
    });
    Ok(())
}
