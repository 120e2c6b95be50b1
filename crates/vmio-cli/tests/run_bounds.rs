//! `--cache` bounds the memory for mapped files, by the memory cgroup's count, whatever a program's accesses are.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::programs::{compiled, text};
use crate::common::{TestResult, patterned, vmio};

const MIB: u64 = 1 << 20;
const CACHE: u64 = 64;
const FILE: u64 = 320;
/// The most that the cgroup may hold at its peak: the cache, and the memory that the program and vmio need.
const PEAK: u64 = CACHE + CACHE / 10 + 16;

/// A memory cgroup with space for all of the file; removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Self> {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let mount = if v1.exists() { v1 } else { v2 };
        let group = Group(mount.join(format!("vmio-bounds-{}-{name}", std::process::id())));
        // Without the memory controller, or before Linux 5.19 with version 2, there is no peak to read.
        (fs::create_dir(&group.0).is_ok() && group.peak().is_some()).then_some(group)
    }

    fn run(&self, program: &mut Command) -> std::io::Result<std::process::Output> {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > $0/cgroup.procs; exec \"$@\""]).arg(&self.0).arg(program.get_program());
        command.args(program.get_args()).output()
    }

    /// The peak in MiB.
    fn peak(&self) -> Option<u64> {
        let peak = ["memory.max_usage_in_bytes", "memory.peak"].map(|file| fs::read_to_string(self.0.join(file)).ok());
        peak.into_iter().flatten().next()?.trim().parse::<u64>().ok().map(|bytes| bytes / MIB)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Makes a file of which no page is in memory.
fn cold_file(path: &Path) -> TestResult {
    fs::write(path, patterned((FILE * MIB) as usize))?;
    let file = fs::File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Runs one kind of pass; returns the peak.
fn pass(name: &str, rights: &str, way: &str) -> Result<Option<u64>, Box<dyn Error>> {
    let Some(group) = Group::new(name) else {
        test_depth::skipped("this user may not make a memory cgroup, or it tells no peak");
        return Ok(None);
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let (program, data) = (compiled("passes", dir.path(), &[])?, dir.path().join("data"));
    cold_file(&data)?;
    let mut command = vmio();
    command.args(["run", "--engine", "managed", "--cache", "64M", "--under", text(dir.path()), "--"]);
    command.args([text(&program), text(&data), rights, way]);
    let output = group.run(&mut command)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let peak = group.peak().ok_or("no peak")?;
    let stored = fs::read(&data)?;
    cold_file(&data)?;
    let plain = Command::new(&program).args([text(&data), rights, way]).output()?;
    let printed = String::from_utf8(output.stdout)?;
    assert_eq!(printed, String::from_utf8(plain.stdout)?);
    assert!(stored == fs::read(&data)?, "other bytes are in the file than without vmio");
    Ok(Some(peak))
}

#[test]
fn a_scan_stays_within_the_cache() -> TestResult {
    for (rights, way) in [("loads", "scan"), ("stores", "scan"), ("loads", "back"), ("stores", "strided")] {
        let Some(peak) = pass(&format!("{way}-{rights}"), rights, way)? else { return Ok(()) };
        assert!(peak <= PEAK, "{way}, mapped for {rights}: {peak} MiB at the peak, {PEAK} may be");
        assert!(peak > CACHE / 2, "{way}, mapped for {rights}: {peak} MiB at the peak of {CACHE} that fit");
    }
    Ok(())
}

/// A program that stores faster than the device writes has to wait for it.
#[test]
fn stores_stay_within_the_cache() -> TestResult {
    let Some(peak) = pass("update", "stores", "update")? else { return Ok(()) };
    assert!(peak <= PEAK, "{peak} MiB at the peak, {PEAK} may be");
    Ok(())
}

/// Pages that a program gives back are still in the page cache, and count.
#[test]
fn what_a_program_has_done_with_stays_within_the_cache() -> TestResult {
    let ways = [
        ("loads", "dropped"),
        ("stores", "dropped"),
        ("loads", "unmapped"),
        ("stores", "unmapped"),
        ("loads", "sampled"),
    ];
    for (rights, way) in ways {
        let Some(peak) = pass(&format!("{way}-{rights}"), rights, way)? else { return Ok(()) };
        assert!(peak <= PEAK, "{way}, mapped for {rights}: {peak} MiB at the peak, {PEAK} may be");
    }
    Ok(())
}

/// A child has its parent's mappings, and shares one cache with it.
#[test]
fn a_process_and_its_children_stay_within_the_cache() -> TestResult {
    for (rights, way) in [("loads", "after"), ("stores", "after"), ("loads", "beside"), ("stores", "beside")] {
        let Some(peak) = pass(&format!("{way}-{rights}"), rights, way)? else { return Ok(()) };
        assert!(peak <= PEAK, "{way}, mapped for {rights}: {peak} MiB at the peak, {PEAK} may be");
    }
    Ok(())
}

/// A thousand pages are 4 MiB; read-ahead would bring in the whole file.
#[test]
fn accesses_that_jump_about_bring_in_little_else() -> TestResult {
    for rights in ["loads", "stores"] {
        let Some(peak) = pass(&format!("gather-{rights}"), rights, "gather")? else { return Ok(()) };
        assert!(peak <= PEAK, "mapped for {rights}: {peak} MiB at the peak, {PEAK} may be");
    }
    Ok(())
}
