//! A fast block device for the benchmark: compressed memory (zram), given back when done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use vmio_report::cleanup::Cleanup;

use crate::process;

const CONTROL: &str = "/sys/class/zram-control";
/// How long a device may stay busy after the last run before giving it back fails.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// A zram device of ours; dropping it (or Ctrl-C) resets it.
pub struct FastDevice {
    path: PathBuf,
    _release: Cleanup,
}

/// The reason why there can be no zram device; none if there can be one.
pub fn why_not() -> Option<&'static str> {
    if !process::is_root() {
        return Some("setting up a zram device needs root: run with sudo, or use --dir or --file");
    }
    if !Path::new(CONTROL).exists() && free_device().is_none() {
        // Loading the module is harmless where it is built in or already there.
        let _ = Command::new("modprobe").arg("zram").stderr(Stdio::null()).status();
    }
    if !Path::new(CONTROL).exists() && free_device().is_none() {
        return Some("this kernel has no zram (modprobe zram failed): use --dir or --file");
    }
    None
}

impl FastDevice {
    /// Creates a device of `size_bytes`, or takes over one that nobody has set up.
    pub fn zram(size_bytes: u64) -> anyhow::Result<Self> {
        if let Some(reason) = why_not() {
            bail!("{reason}");
        }
        let (id, added) = match fs::read_to_string(format!("{CONTROL}/hot_add")) {
            Ok(id) => (id.trim().parse::<u32>().context("hot_add did not name a device")?, true),
            Err(_) => (free_device().context("every zram device is in use, and no more can be added")?, false),
        };
        let release = Cleanup::register(move || release(id, added))?;
        fs::write(format!("/sys/block/zram{id}/disksize"), size_bytes.to_string())
            .with_context(|| format!("cannot set the size of /dev/zram{id}"))?;
        let path = PathBuf::from(format!("/dev/zram{id}"));
        wait_for(&path)?;
        Ok(Self { path, _release: release })
    }

    /// The device file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A device that exists and has no size yet.
fn free_device() -> Option<u32> {
    (0..64).find(|id| fs::read_to_string(format!("/sys/block/zram{id}/disksize")).is_ok_and(|size| size.trim() == "0"))
}

/// Waits for the device file: udev may take a moment to create it.
fn wait_for(path: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    while !path.exists() {
        if Instant::now() > deadline {
            bail!("{} did not appear: is /dev a devtmpfs?", path.display());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Frees the device's memory, and removes the device if this process added it.
fn release(id: u32, added: bool) {
    let reset = persist(|| fs::write(format!("/sys/block/zram{id}/reset"), "1"));
    let result = match reset {
        Ok(()) if added => persist(|| fs::write(format!("{CONTROL}/hot_remove"), id.to_string())),
        other => other,
    };
    if let Err(error) = result {
        eprintln!(
            "vmio: cannot give back /dev/zram{id}: {error}; free its memory by: echo 1 > /sys/block/zram{id}/reset"
        );
    }
}

/// Repeats an attempt while the device is busy: a process that was just killed may hold it for a moment longer.
fn persist(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + RELEASE_PATIENCE;
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}
