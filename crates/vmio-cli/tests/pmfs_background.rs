//! `vmio pmfs mount --background`, and the modes of a mount.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{TestResult, refused, succeeded, vmio};
use crate::pmfs::{can_mount, fsck, made};

/// The server of an image: a process that has its path as an argument.
fn server_of(image: &Path) -> Option<Pid> {
    let image = image.to_str()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let is_server = |pid: &i32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == image.as_bytes())
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_server).and_then(Pid::from_raw)
}

#[test]
fn the_command_returns_when_the_mount_is_there() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder, log) = (made(dir.path())?, dir.path().join("mounted"), dir.path().join("log"));
    fs::create_dir(&folder)?;
    let mut mount = vmio();
    mount.args(["pmfs", "mount", "--background", "--mode", "relaxed", "--log"]).args([&log, &image, &folder]);
    let said = succeeded(&mut mount)?;
    assert!(said.ends_with(&format!("is mounted on {}\n", folder.display())), "{said:?}");
    fs::write(folder.join("file"), "contents")?;
    fs::write(folder.join("file"), "others")?;
    let server = server_of(&image).ok_or("no server")?;
    assert_eq!(rustix::process::getsid(Some(server))?, server, "it has a session of its own");
    assert_eq!(fs::read_link(format!("/proc/{server}/cwd", server = server.as_raw_nonzero()))?, Path::new("/"));
    // What comes later goes to the log.
    let open = fs::File::open(folder.join("file"))?;
    kill_process(server, Signal::INT)?;
    let is_logged = || fs::read_to_string(&log).is_ok_and(|log| log.contains("is busy"));
    assert!(test_depth::comes_true(is_logged), "{:?}", fs::read_to_string(&log));
    drop(open);
    // It fails as without --background.
    refused(vmio().args(["pmfs", "mount", "--background"]).args([&image, &folder]), "it is mounted on")?;
    succeeded(Command::new("umount").arg(&folder))?;
    fsck(&image)?;
    assert_eq!(server_of(&image), None);
    succeeded(vmio().args(["pmfs", "mount", "--background"]).args([&image, &folder]))?;
    assert_eq!(fs::read(folder.join("file"))?, b"others");
    succeeded(Command::new("umount").arg(&folder))?;
    fsck(&image)
}

#[test]
fn a_mount_that_fails_in_the_background_says_why_in_front() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (image, absent) = (dir.path().join("image"), dir.path().join("absent"));
    fs::write(&image, "no file system".repeat(1000))?;
    let mount = |options: &[&str], folder: &Path| {
        let mut mount = vmio();
        mount.args(["pmfs", "mount", "--background"]).args(options).args([&*image, folder]);
        mount
    };
    for (options, folder, message) in [
        (&[][..], dir.path(), "there is no file system of vmio-pmfs on it"),
        (&[], &absent, "make it first"),
        (&["--log", "/proc/absent/log"], dir.path(), "cannot write to /proc/absent/log"),
    ] {
        let output = mount(options, folder).output()?;
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr)?;
        assert!(said.contains(message) && said.matches("vmio: ").count() == 1, "{said}");
    }
    refused(vmio().args(["pmfs", "mount", "--log", "log", "image", "folder"]), "--background")
}
