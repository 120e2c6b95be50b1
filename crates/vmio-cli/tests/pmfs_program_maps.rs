//! Programs that map files of a mounted vmio-pmfs under `vmio run --mode`: the mappings show what those of the kernel would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::modes::{served, under};
use crate::common::programs::{compiled, has, leave_out, plain, text};
use crate::common::{TestResult, succeeded, vmio};
use crate::pmfs::{Mounted, can_mount, fsck};

/// A mounted file system, and a folder in it for each run of a program.
pub struct Lab {
    dir: tempfile::TempDir,
    image: PathBuf,
    mounted: Mounted,
}

impl Lab {
    pub fn new() -> Result<Lab, Box<dyn std::error::Error>> {
        Self::made(tempfile::tempdir()?, "512M")
    }

    /// The image lies in memory: no flush waits for a device.
    pub fn in_memory(size: &str) -> Result<Lab, Box<dyn std::error::Error>> {
        Self::made(tempfile::tempdir_in("/dev/shm")?, size)
    }

    fn made(dir: tempfile::TempDir, size: &str) -> Result<Lab, Box<dyn std::error::Error>> {
        let image = dir.path().join("image");
        succeeded(vmio().args(["pmfs", "mkfs", "--size", size]).arg(&image))?;
        let mounted = Mounted::new(&image, &dir.path().join("mounted"))?;
        Ok(Lab { dir, image, mounted })
    }

    /// The folder with the image and the mount in it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn image(&self) -> &Path {
        &self.image
    }

    pub fn folder(&self, name: &str) -> Result<PathBuf, Box<dyn std::error::Error>> {
        let folder = self.dir.path().join("mounted").join(name);
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    pub fn end(self) -> TestResult {
        self.mounted.unmount()?;
        fsck(&self.image)
    }
}

/// Runs a program in a mode. Returns what it printed, and the mappings that were made of leased extents.
fn run(mode: &str, folder: &Path, program: &[&str]) -> Result<(String, usize), Box<dyn std::error::Error>> {
    let output = under(&format!("{mode} --verbose"), folder, program).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}\n{said}", output.status);
    let leased = said.lines().filter(|line| line.contains("are mapped by leases of their extents")).count();
    Ok((String::from_utf8(output.stdout)?, leased))
}

fn shows_the_same(name: &str, modes: &[&str], least: usize) -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let lab = Lab::new()?;
    let program = compiled(name, lab.dir.path(), &[])?;
    let outside = lab.dir.path().join("outside");
    fs::create_dir(&outside)?;
    let expected = succeeded(&mut plain(&[text(&program), text(&outside)]))?;
    for mode in modes {
        let folder = lab.folder(mode)?;
        let (printed, leased) = run(mode, &folder, &[text(&program), text(&folder)])?;
        assert_eq!(printed, expected, "mode {mode}");
        assert!(leased >= least, "{leased} mappings of leased extents");
    }
    lab.end()
}

#[test]
fn a_program_sees_its_mappings_as_the_kernels() -> TestResult {
    if !has("python3") {
        return leave_out("python3 is not installed");
    }
    shows_the_same("extents", &["posix", "sync", "strict"], 8)
}

#[test]
fn a_file_that_others_use_is_served_by_its_extents() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let lab = Lab::new()?;
    let (program, folder) = (compiled("strangers", lab.dir.path(), &[])?, lab.folder("shared")?);
    let file = folder.join("file");
    for (seed, mode, other) in [("4", "posix", None), ("20", "posix", Some("with-vmio")), ("38", "sync", None)] {
        let arguments: Vec<&str> = [text(&program), text(&file), seed, "4000"].into_iter().chain(other).collect();
        let output = under(mode, &folder, &arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == b"all as modelled\n", "seed {seed}, mode {mode}: {said}");
        // How many depends on when the thread that takes leases runs.
        assert!(served(&output, "reads_served") > 0, "{said}");
    }
    lab.end()
}

#[test]
fn the_rarer_calls_have_the_effects_of_the_kernels_mappings() -> TestResult {
    shows_the_same("corners", &["posix"], 15)
}

#[test]
fn lmdb_finds_its_records() -> TestResult {
    if !Path::new("/usr/include/lmdb.h").exists() {
        return leave_out("LMDB is not installed");
    }
    if !can_mount() {
        return Ok(());
    }
    let lab = Lab::new()?;
    let program = compiled("lmdb", lab.dir.path(), &["-llmdb"])?;
    for how in ["write", "writemap"] {
        let (there, here) = (lab.folder(&format!("plain-{how}"))?, lab.folder(how)?);
        let expected = succeeded(&mut plain(&[text(&program), text(&there), how]))?;
        let (printed, leased) = run("posix", &here, &[text(&program), text(&here), how])?;
        // The data and the table of readers.
        assert_eq!((printed, leased), (expected, 2));
        let copy = lab.dir.path().join(format!("copy-{how}"));
        succeeded(Command::new("cp").arg("-r").arg(&here).arg(&copy))?;
        assert_eq!(fs::read(here.join("data.mdb"))?, fs::read(copy.join("data.mdb"))?);
    }
    lab.end()
}

#[test]
fn children_come_and_go_while_a_thread_maps_a_file() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let lab = Lab::new()?;
    let (program, folder) = (compiled("forks", lab.dir.path(), &[])?, lab.folder("forks")?);
    let file = folder.join("file");
    let (printed, leased) = run("posix", &folder, &[text(&program), text(&file), "map", "60"])?;
    assert_eq!(printed, "0 old bytes\n");
    assert!(leased >= 120, "{leased} mappings of leased extents");
    lab.end()
}
