//! Swap on a fast device, for as long as a benchmark needs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use vmio_measure::fast_device::FastDevice;
use vmio_report::cleanup::Cleanup;

/// Used before any other swap.
const PRIORITY: &str = "32767";

/// A swap device of ours; given back when dropped.
pub struct SwapDevice {
    // In the order in which they must go.
    _off: Cleanup,
    _device: FastDevice,
}

impl SwapDevice {
    /// Swap of so many bytes on a zram device.
    pub fn on_zram(size_bytes: u64) -> anyhow::Result<Self> {
        let device = FastDevice::zram(size_bytes)?;
        run(Command::new("mkswap").arg(device.path()))?;
        run(Command::new("swapon").args(["--priority", PRIORITY]).arg(device.path()))?;
        let path = device.path().to_owned();
        let off = Cleanup::register(move || swap_off(&path))?;
        Ok(Self { _off: off, _device: device })
    }
}

fn swap_off(path: &PathBuf) {
    if let Err(error) = run(Command::new("swapoff").arg(path)) {
        eprintln!("vmio: cannot give back {}: {error:#}; run: swapoff {}", path.display(), path.display());
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
