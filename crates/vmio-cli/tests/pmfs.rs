//! `vmio pmfs` as users run it: made, mounted, used by programs, unmounted, checked.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{TestResult, patterned, refused, succeeded, vmio};

/// A mounted file system. Dropped, it is unmounted.
pub struct Mounted {
    server: Child,
    folder: PathBuf,
}

impl Mounted {
    /// Mounts an image once the command says that it is.
    pub fn new(image: &Path, folder: &Path) -> Result<Mounted, Box<dyn std::error::Error>> {
        Self::with(image, folder, &[])
    }

    /// The same with further options.
    pub fn with(image: &Path, folder: &Path, options: &[&str]) -> Result<Mounted, Box<dyn std::error::Error>> {
        fs::create_dir_all(folder)?;
        let mut command = vmio();
        command.args(["pmfs", "mount"]).args(options).arg(image).arg(folder).stdout(Stdio::piped());
        let mut server = command.spawn()?;
        let output = server.stdout.take().ok_or("no output")?;
        let mounted = Mounted { server, folder: folder.to_owned() };
        for line in BufReader::new(output).lines() {
            if line?.ends_with(&format!("is mounted on {}", folder.display())) {
                return Ok(mounted);
            }
        }
        Err("the server has ended".into())
    }

    /// Kills the server and removes its mount.
    pub fn kill(mut self) -> TestResult {
        self.server.kill()?;
        self.server.wait()?;
        succeeded(Command::new("umount").arg("-l").arg(&self.folder)).map(drop)
    }

    /// Stops the server, so that whoever asks it gets no answer, until the work is done. An error if the work has waited for it.
    pub fn stopped<T>(&self, work: impl FnOnce() -> T) -> Result<T, Box<dyn std::error::Error>> {
        self.signal(Signal::STOP)?;
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let is_late = is_done.recv_timeout(Duration::from_secs(5)) == Err(RecvTimeoutError::Timeout);
                self.signal(Signal::CONT).map(|()| is_late).map_err(|error| error.to_string())
            });
            let outcome = work();
            drop(done);
            let is_late = server.join().map_err(|_| "the server was not told to go on")??;
            if is_late { Err("somebody has waited for the server".into()) } else { Ok(outcome) }
        })
    }

    fn signal(&self, signal: Signal) -> TestResult {
        let server = Pid::from_raw(self.server.id() as i32).ok_or("no process")?;
        Ok(kill_process(server, signal)?)
    }

    pub fn unmount(mut self) -> TestResult {
        succeeded(Command::new("umount").arg(&self.folder))?;
        assert!(self.server.wait()?.success());
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a failed assertion, too. A server that has died leaves its mount.
        _ = Command::new("umount").arg("-l").arg(&self.folder).stderr(Stdio::null()).status();
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

pub fn can_mount() -> bool {
    let can =
        fs::File::options().read(true).write(true).open("/dev/fuse").is_ok() && rustix::process::getuid().is_root();
    if !can {
        test_depth::skipped("mounting by FUSE needs root and /dev/fuse");
    }
    can
}

/// Whether a folder is on ext4, whose answers vmio-pmfs is to give. Others differ in small things from both.
pub fn is_on_ext4(dir: &Path) -> bool {
    let is = rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == 0xEF53);
    if !is {
        test_depth::skipped("the temporary folder is not on ext4, whose answers are compared");
    }
    is
}

pub fn made(dir: &Path) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let image = dir.join("image");
    succeeded(vmio().args(["pmfs", "mkfs", "--size", "64M"]).arg(&image))?;
    Ok(image)
}

pub fn fsck(image: &Path) -> TestResult {
    let said = succeeded(vmio().args(["pmfs", "fsck"]).arg(image))?;
    assert!(said.contains(": sound, "), "{said}");
    Ok(())
}

#[test]
fn files_and_a_git_repository_are_there_after_a_remount() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let bytes = patterned(5_000_000);
    let outside = dir.path().join("outside");
    fs::write(&outside, &bytes)?;
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=n", "-c", "user.email=e", "-C"]).arg(folder.join("repository")).args(arguments);
        succeeded(&mut git)
    };
    let mounted = Mounted::new(&image, &folder)?;
    succeeded(Command::new("cp").arg(&outside).arg(folder.join("copy")))?;
    fs::create_dir(folder.join("inner"))?;
    fs::rename(folder.join("copy"), folder.join("inner/moved"))?;
    fs::hard_link(folder.join("inner/moved"), folder.join("second"))?;
    symlink("inner/moved", folder.join("link"))?;
    fs::write(folder.join("short"), "gone soon")?;
    fs::remove_file(folder.join("short"))?;
    fs::create_dir(folder.join("repository"))?;
    git(&["init", "-q"])?;
    for number in 0..40 {
        fs::write(folder.join(format!("repository/{number}")), format!("{number}\n"))?;
    }
    git(&["add", "."])?;
    git(&["commit", "-qm", "one"])?;
    assert!(fs::read(folder.join("link"))? == bytes);
    mounted.unmount()?;
    fsck(&image)?;
    let mounted = Mounted::new(&image, &folder)?;
    assert!(fs::read(folder.join("inner/moved"))? == bytes);
    assert_eq!(fs::metadata(folder.join("second"))?.nlink(), 2);
    assert_eq!(fs::read_link(folder.join("link"))?, Path::new("inner/moved"));
    assert!(!folder.join("short").exists());
    git(&["fsck", "--strict"])?;
    assert_eq!(git(&["status", "--short"])?, "");
    fs::remove_dir_all(folder.join("repository"))?;
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn a_file_that_is_open_outlives_its_name() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let file = fs::File::options().create_new(true).read(true).write(true).open(folder.join("open"))?;
    file.write_all_at(b"still here", 0)?;
    fs::remove_file(folder.join("open"))?;
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, 0)?;
    assert_eq!(&bytes, b"still here");
    assert_eq!(file.metadata()?.nlink(), 0);
    drop(file);
    mounted.unmount()?;
    fsck(&image)
}

/// All that the server has answered survives its end at any time.
#[test]
fn a_killed_server_loses_nothing() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mut mounted = Mounted::new(&image, &folder)?;
    fs::create_dir(folder.join("inner"))?;
    let bytes = patterned(300_000);
    fs::write(folder.join("inner/file"), &bytes)?;
    fs::rename(folder.join("inner/file"), folder.join("file"))?;
    mounted.server.kill()?;
    mounted.server.wait()?;
    succeeded(Command::new("umount").arg("-l").arg(&folder))?;
    fsck(&image)?;
    let mounted = Mounted::new(&image, &folder)?;
    assert!(fs::read(folder.join("file"))? == bytes);
    assert_eq!(fs::read_dir(folder.join("inner"))?.count(), 0);
    mounted.unmount()
}

#[test]
fn a_file_system_is_mounted_once() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let other = dir.path().join("other");
    fs::create_dir(&other)?;
    refused(vmio().args(["pmfs", "mount"]).arg(&image).arg(&other), "in use")?;
    refused(vmio().args(["pmfs", "stat"]).arg(&image), &format!("it is mounted on {}", folder.display()))?;
    refused(vmio().args(["pmfs", "fsck"]).arg(&image), "in use")?;
    refused(vmio().args(["pmfs", "mkfs", "--overwrite"]).arg(&image), "in use")?;
    mounted.unmount()
}

/// The server flushes the image before it gives it up.
#[test]
fn an_image_can_be_used_straight_after_umount() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    for round in 0..3 {
        let mounted = Mounted::new(&image, &folder)?;
        fs::write(folder.join("file"), patterned(20_000_000))?;
        succeeded(Command::new("umount").arg(&folder))?;
        // A mount waits as well: that of the next round.
        if round == 1 {
            fsck(&image)?;
        }
        std::mem::forget(mounted);
    }
    fsck(&image)
}

#[test]
fn an_image_in_use_is_waited_for() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = made(dir.path())?;
    let user = fs::File::open(&image)?;
    rustix::fs::flock(&user, rustix::fs::FlockOperation::LockExclusive)?;
    let mut stat = vmio().args(["pmfs", "stat"]).arg(&image).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(stat.stderr.take().ok_or("no messages")?).read_line(&mut said)?;
    assert_eq!(said, format!("{} is in use: waiting for its end\n", image.display()));
    drop(user);
    assert!(stat.wait()?.success());
    Ok(())
}

#[test]
fn each_unusable_mount_point_has_its_error() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mount = |on: &Path| {
        let mut command = vmio();
        command.args(["pmfs", "mount"]).arg(&image).arg(on);
        command
    };
    refused(&mut mount(&dir.path().join("none")), "there is no folder")?;
    refused(&mut mount(&image), "is no folder")?;
    let mut mounted = Mounted::new(&image, &folder)?;
    mounted.server.kill()?;
    mounted.server.wait()?;
    refused(&mut mount(&folder), "has ended: umount it first")
}

#[test]
fn users_without_rights_learn_why_they_cannot_mount() -> TestResult {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let (image, folder) = (made(dir.path())?, dir.path().join("folder"));
    fs::create_dir(&folder)?;
    fs::set_permissions(&image, fs::Permissions::from_mode(0o666))?;
    let is_closed = fs::metadata("/dev/fuse").is_ok_and(|found| found.mode() & 0o6 == 0);
    if !is_closed || !rustix::process::getuid().is_root() {
        test_depth::skipped("everybody may use /dev/fuse, or the test is no root");
        return Ok(());
    }
    // Where others can run it.
    let program = dir.path().join("vmio");
    fs::copy(vmio().get_program(), &program)?;
    let mut mount = Command::new(&program);
    mount.args(["pmfs", "mount", "--private"]).arg(&image).arg(&folder).uid(65_534).gid(65_534);
    refused(&mut mount, "you have no rights to /dev/fuse")
}

#[test]
fn what_is_no_file_and_no_device_is_refused_at_once() -> TestResult {
    let dir = tempfile::tempdir()?;
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    for path in [&pipe, dir.path()] {
        for call in ["stat", "fsck", "mkfs"] {
            refused(
                vmio().args(["pmfs", call]).arg(path),
                "neither a file, nor a block device, nor a device in mode devdax",
            )?;
        }
        refused(
            vmio().args(["pmfs", "mount"]).arg(path).arg(dir.path()),
            "neither a file, nor a block device, nor a device in mode devdax",
        )?;
    }
    refused(vmio().args(["pmfs", "mkfs", "--size", "64M"]).arg(&pipe), "--size is for files")
}

#[test]
fn mkfs_says_in_json_what_it_has_made() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    let said = succeeded(vmio().args(["pmfs", "mkfs", "--json", "--areas", "2", "--size", "64M"]).arg(&image))?;
    let object: serde_json::Value = serde_json::from_str(&said)?;
    assert_eq!((object["bytes"].as_u64(), object["areas"].as_u64()), (Some(64 << 20), Some(2)));
    assert_eq!(object["uuid"].as_str().map(str::len), Some(32));
    Ok(())
}

#[test]
fn each_unusable_medium_has_its_error() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("medium");
    refused(vmio().args(["pmfs", "mkfs", "--size", "1M"]).arg(&path), "a file system with these options needs")?;
    fs::write(&path, "#!/bin/sh")?;
    refused(vmio().args(["pmfs", "mount"]).arg(&path).arg(dir.path()), "needs 4096")?;
    fs::write(&path, "#!/bin/sh\n".repeat(1_000_000))?;
    refused(vmio().args(["pmfs", "mount"]).arg(&path).arg(dir.path()), "there is no file system of vmio-pmfs on it")?;
    refused(vmio().args(["pmfs", "fsck"]).arg(&path), "there is no file system of vmio-pmfs on it")?;
    refused(vmio().args(["pmfs", "mkfs"]).arg(&path), "it holds something else")?;
    refused(vmio().args(["pmfs", "mkfs", "--size", "64M"]).arg(&path), "it has 10000000 bytes already")?;
    succeeded(vmio().args(["pmfs", "mkfs", "--overwrite"]).arg(&path))?;
    refused(vmio().args(["pmfs", "mkfs"]).arg(&path), "there is a file system of vmio-pmfs on it already")?;
    let file = fs::File::options().write(true).open(&path)?;
    file.set_len(4 << 20)?;
    refused(vmio().args(["pmfs", "fsck"]).arg(&path), "it was cut off")
}

#[test]
fn damage_is_found_and_named() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = made(dir.path())?;
    let object: serde_json::Value =
        serde_json::from_str(&succeeded(vmio().args(["pmfs", "stat", "--json"]).arg(&image))?)?;
    assert_eq!(object["bytes"], 64 << 20);
    let file = fs::File::options().read(true).write(true).open(&image)?;
    // The root's inode: behind the superblock, a journal of 16 blocks, 256 for saved data, and 8 of slots.
    let root = (1 + 16 + 256 + 8) * 4096 + 256;
    file.write_all_at(&[9], root + 100)?;
    let output = vmio().args(["pmfs", "fsck", "--json"]).arg(&image).output()?;
    assert!(!output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["faults"][0]["at"], root);
    refused(vmio().args(["pmfs", "mount"]).arg(&image).arg(dir.path()), &format!("an inode at byte {root} is damaged"))
}

/// The kernel may use an inode that it knows by its number long after the name has gone.
#[test]
fn an_inode_that_a_process_has_by_a_path_is_no_other_files() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("mine");
    fs::write(&path, "mine")?;
    let mine = fs::File::options().read(true).custom_flags(libc::O_PATH).open(&path)?;
    let number = mine.metadata()?.ino();
    fs::remove_file(&path)?;
    for other in 0..100 {
        fs::write(folder.join(other.to_string()), "another's")?;
        assert_ne!(fs::metadata(folder.join(other.to_string()))?.ino(), number);
    }
    assert_eq!(mine.metadata()?.nlink(), 0);
    drop(mine);
    mounted.unmount()?;
    fsck(&image)
}

/// As other file systems do it.
#[test]
fn a_program_that_another_user_changes_loses_its_owners_rights() -> TestResult {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let program = folder.join("program");
    fs::write(&program, "text")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6777))?;
    let mut other = Command::new("sh");
    succeeded(other.args(["-c", "printf more >> \"$0\""]).arg(&program).uid(65534).gid(65534))?;
    assert_eq!(fs::metadata(&program)?.mode() & 0o7777, 0o777);
    assert_eq!(fs::read_to_string(&program)?, "textmore");
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn a_new_image_is_its_owners_and_has_its_space() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = made(dir.path())?;
    let metadata = fs::metadata(&image)?;
    assert_eq!((metadata.mode() & 0o777, metadata.blocks() * 512 >= 64 << 20), (0o600, true));
    let sparse = dir.path().join("sparse");
    succeeded(vmio().args(["pmfs", "mkfs", "--size", "1G", "--sparse"]).arg(&sparse))?;
    assert!(fs::metadata(&sparse)?.blocks() * 512 < 1 << 30);
    refused(vmio().args(["pmfs", "mkfs"]).arg(dir.path().join("absent")), "--size makes one")
}

#[test]
fn an_interrupt_of_a_mount_in_use_may_be_repeated() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mut mounted = Mounted::new(&image, &folder)?;
    let held = fs::File::create(folder.join("held"))?;
    let server = rustix::process::Pid::from_child(&mounted.server);
    rustix::process::kill_process(server, rustix::process::Signal::INT)?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(mounted.server.try_wait()?.is_none(), "the file is open");
    drop(held);
    // The kernel closes it some time after the program.
    while mounted.server.try_wait()?.is_none() {
        rustix::process::kill_process(server, rustix::process::Signal::INT)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(mounted.server.wait()?.success());
    fsck(&image)
}

/// Other file systems leave the beginning of a medium alone.
#[test]
fn data_anywhere_in_an_image_is_not_overwritten_unasked() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    let file = fs::File::create(&image)?;
    file.set_len(64 << 20)?;
    file.write_all_at(b"_BHRfS_M", 65600)?;
    refused(vmio().args(["pmfs", "mkfs"]).arg(&image), "it holds something else")?;
    succeeded(vmio().args(["pmfs", "mkfs", "--overwrite"]).arg(&image))?;
    fsck(&image)
}

#[test]
fn names_that_are_too_long_are_an_error_of_each_call() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let long = folder.join("n".repeat(256));
    let errors = [fs::metadata(&long).map(drop), fs::remove_file(&long), fs::remove_dir(&long), fs::write(&long, "")];
    for error in errors {
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    }
    mounted.unmount()
}
