//! The place of the stores' files: a folder of a file system, or of one made for the run on a fast device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;
use tempfile::TempDir;
use vmio_report::cleanup::Cleanup;

use crate::fast_device::FastDevice;
use crate::target::Device;

/// The place to work in.
#[derive(Args, Clone, Debug, Default)]
pub struct PlaceArgs {
    /// Work in a new folder in this one, and remove it afterwards; the working directory if neither this nor --device is given
    #[arg(long, conflicts_with = "device")]
    dir: Option<PathBuf>,
    /// Set up a fast device with a file system and give it back afterwards (needs root)
    #[arg(long, value_enum)]
    device: Option<Device>,
}

impl PlaceArgs {
    /// Prepares the place that the arguments name, by default in the working directory. A device gets `device_bytes`, and takes memory only
    /// for written bytes.
    pub fn prepare(&self, device_bytes: u64) -> anyhow::Result<Place> {
        match self.device {
            Some(Device::Zram) => Place::on_zram(device_bytes),
            None => Place::in_dir(self.dir.as_deref().unwrap_or(Path::new("."))),
        }
    }
}

/// A folder for stores; given back when dropped.
pub struct Place {
    // In the order in which they must drop.
    folder: TempDir,
    _removal: Cleanup,
    _mount: Option<Mount>,
    description: String,
}

impl Place {
    /// A new folder in `dir`.
    pub fn in_dir(dir: &Path) -> anyhow::Result<Self> {
        let folder = new_folder(dir).with_context(|| format!("cannot create a folder in {}", dir.display()))?;
        Self::new(folder, None, dir.display().to_string())
    }

    /// A new ext4 file system on a zram device of `size_bytes`, since SQLite and LMDB want files.
    fn on_zram(size_bytes: u64) -> anyhow::Result<Self> {
        let mount = Mount::new(FastDevice::zram(size_bytes)?)?;
        let folder = new_folder(mount.point.path())?;
        Self::new(folder, Some(mount), "ext4 on a zram device".to_owned())
    }

    fn new(folder: TempDir, mount: Option<Mount>, description: String) -> anyhow::Result<Self> {
        let to_remove = folder.path().to_owned();
        let removal = Cleanup::register(move || drop(fs::remove_dir_all(to_remove)))?;
        Ok(Self { folder, _removal: removal, _mount: mount, description })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A description of the place, for people.
    pub fn description(&self) -> &str {
        &self.description
    }
}

fn new_folder(dir: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("vmio-bench-").tempdir_in(dir)
}

/// A mounted file system of ours; unmounted when dropped.
struct Mount {
    // In the order in which they must drop.
    _unmounting: Cleanup,
    point: TempDir,
    _device: FastDevice,
}

impl Mount {
    fn new(device: FastDevice) -> anyhow::Result<Self> {
        // `discard` gives the memory of a run's files back, before the next run needs it.
        run(Command::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0"]).arg(device.path()))
            .context("cannot make a file system (mkfs.ext4 is in the package e2fsprogs): use --dir")?;
        let point = new_folder(&std::env::temp_dir()).context("cannot create a folder to mount at")?;
        run(Command::new("mount").args(["-t", "ext4", "-o", "discard"]).arg(device.path()).arg(point.path()))
            .context("cannot mount the fast device: use --dir")?;
        let mounted = point.path().to_owned();
        let unmounting = Cleanup::register(move || unmount(mounted))?;
        Ok(Self { _unmounting: unmounting, point, _device: device })
    }
}

/// Unmounts, and removes the folder, too: an interrupted process runs no destructors.
fn unmount(point: PathBuf) {
    // Lazily: a child that was just killed may keep the file system busy for a moment.
    if let Err(error) = run(Command::new("umount").arg("--lazy").arg(&point)) {
        eprintln!("vmio: cannot unmount {}: {error:#}; run: umount {}", point.display(), point.display());
    }
    let _ = fs::remove_dir(&point);
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{}: {}", command.get_program().display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
