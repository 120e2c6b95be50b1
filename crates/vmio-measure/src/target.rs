//! The target of a benchmark: a file of the user's, a temporary file, or a fast device.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tempfile::TempPath;
use vmio_report::cleanup::Cleanup;
use vmio_report::size::{format_size, parse_size};

use crate::content::{self, PAGE_BYTES};
use crate::device_cache::drop_page_cache;
use crate::fast_device::{self, FastDevice};

/// Where to run.
#[derive(Args, Clone, Debug, Default)]
pub struct TargetArgs {
    /// Run on this file or block device; it must hold the benchmark's content (see --overwrite)
    #[arg(long, conflicts_with_all = ["dir", "device"])]
    pub file: Option<PathBuf>,
    /// How much of it to use; the size of the file to create
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Create a temporary file in this folder and remove it afterwards; in the working directory if no place is given
    #[arg(long, conflicts_with = "device")]
    pub dir: Option<PathBuf>,
    /// Set up a fast device and give it back afterwards (needs root)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Fill --file even if it holds something else: DESTROYS its content
    #[arg(long, requires = "file")]
    pub overwrite: bool,
}

/// Devices that can be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// A block device in (compressed) memory
    Zram,
}

impl Device {
    /// The device that this machine can have. If there is none, tells the user.
    pub fn any() -> Option<Self> {
        match fast_device::why_not() {
            None => Some(Device::Zram),
            Some(reason) => {
                eprintln!("no fast device, this folder is used instead: {reason}");
                None
            }
        }
    }
}

/// A file or device that holds the benchmark's content; given back when dropped.
pub struct Target {
    path: PathBuf,
    size_bytes: u64,
    description: String,
    _device: Option<FastDevice>,
    _file: Option<(TempPath, Cleanup)>,
}

/// Pages in the sample that decides whether a file holds the content.
const SAMPLE_PAGES: u64 = 256;
/// Pages to read back after a run with stores.
const READ_BACK_PAGES: u64 = 4096;
/// The seed for the versions of the words of a fill.
const FILL_SEED: u64 = 0x5eed;

impl Target {
    /// Prepares the target that the arguments name, and fills it if need be.
    pub fn prepare(args: &TargetArgs, default_size_bytes: u64) -> anyhow::Result<Self> {
        match (&args.file, args.device) {
            (Some(file), _) => Self::on_file(file, args),
            (None, Some(Device::Zram)) => Self::on_zram(args.size.unwrap_or(default_size_bytes)),
            (None, None) => {
                let dir = args.dir.clone().unwrap_or_else(|| PathBuf::from("."));
                Self::in_dir(&dir, args.size.unwrap_or(default_size_bytes))
            }
        }
    }

    /// The file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of it to use: whole pages.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads stored pages back from the device. Counts the wrong words of a sample of pages.
    pub fn count_invalid_in_sample(&self, seed: u64) -> anyhow::Result<u64> {
        drop_page_cache(&self.path)?;
        content::count_invalid_in_sample(&self.path, self.size_bytes, READ_BACK_PAGES, seed)
    }

    /// A description of the target, for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    fn on_zram(size_bytes: u64) -> anyhow::Result<Self> {
        let size_bytes = whole_pages(size_bytes)?;
        let device = FastDevice::zram(size_bytes)?;
        content::fill(device.path(), size_bytes, FILL_SEED)?;
        Ok(Self {
            path: device.path().to_owned(),
            size_bytes,
            description: format!("a zram device of {}", format_size(size_bytes)),
            _device: Some(device),
            _file: None,
        })
    }

    fn in_dir(dir: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        let size_bytes = whole_pages(size_bytes)?;
        let file = tempfile::Builder::new()
            .prefix("vmio-bench-")
            .tempfile_in(dir)
            .with_context(|| format!("cannot create a file in {} (--dir)", dir.display()))?;
        let path = file.path().to_owned();
        let to_remove = path.clone();
        let removal = Cleanup::register(move || drop(fs::remove_file(to_remove)))?;
        file.as_file().set_len(size_bytes).context("cannot make the file as long as asked")?;
        content::fill(&path, size_bytes, FILL_SEED)?;
        Ok(Self {
            description: format!("a file of {} in {}", format_size(size_bytes), dir.display()),
            path,
            size_bytes,
            _device: None,
            _file: Some((file.into_temp_path(), removal)),
        })
    }

    fn on_file(path: &Path, args: &TargetArgs) -> anyhow::Result<Self> {
        let size_bytes = match length_of(path)? {
            Some(len_bytes) => {
                let size_bytes = whole_pages(args.size.unwrap_or(len_bytes).min(len_bytes))
                    .with_context(|| format!("{} is too short", path.display()))?;
                drop_page_cache(path)?;
                if content::count_invalid_in_sample(path, size_bytes, SAMPLE_PAGES, FILL_SEED)? > 0 {
                    if !args.overwrite {
                        bail!(
                            "{} does not hold the benchmark's content, which every run verifies: add \
                             --overwrite to fill it, which DESTROYS what it holds now",
                            path.display()
                        );
                    }
                    content::fill(path, size_bytes, FILL_SEED)?;
                }
                size_bytes
            }
            None => {
                let Some(size_bytes) = args.size else {
                    bail!("{} does not exist: add --size to create it", path.display());
                };
                let size_bytes = whole_pages(size_bytes)?;
                File::create_new(path)
                    .and_then(|file| file.set_len(size_bytes))
                    .with_context(|| format!("cannot create {}", path.display()))?;
                content::fill(path, size_bytes, FILL_SEED)?;
                size_bytes
            }
        };
        Ok(Self {
            path: path.to_owned(),
            size_bytes,
            description: format!("{} of {}", format_size(size_bytes), path.display()),
            _device: None,
            _file: None,
        })
    }
}

impl TargetArgs {
    /// Chooses the fast device if no place was given. Where there can be none, tells the user.
    pub fn or_fast_device(&self) -> Self {
        let mut args = self.clone();
        if args.file.is_none() && args.dir.is_none() && args.device.is_none() {
            args.device = Device::any();
        }
        args
    }
}

/// The length of an existing file or block device.
fn length_of(path: &Path) -> anyhow::Result<Option<u64>> {
    match File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))) {
        Ok(len_bytes) => Ok(Some(len_bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
}

fn whole_pages(bytes: u64) -> anyhow::Result<u64> {
    let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
    if bytes == 0 {
        bail!("the benchmark needs at least one page of {PAGE_BYTES} bytes (--size)");
    }
    Ok(bytes)
}
