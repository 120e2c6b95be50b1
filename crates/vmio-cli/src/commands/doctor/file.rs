//! The report about one file or device.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use vmio::Access;
use vmio::backing::{Backing, DaxBacking, FileBacking, NvmeBacking, Submission};
use vmio_report::size::format_size;

#[derive(Serialize)]
pub struct FileReport {
    path: PathBuf,
    kind: &'static str,
    len_bytes: u64,
    file_system: Option<String>,
    direct_io: bool,
    block_size_bytes: u64,
    /// Whether it is in persistent memory that can be mapped (MAP_SYNC).
    dax: bool,
    advice: Vec<String>,
}

impl FileReport {
    /// Examines a file or device.
    pub fn of(path: &Path) -> anyhow::Result<FileReport> {
        examine_file(path)
    }

    /// Prints the report as text.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} ({}, {})", self.path.display(), self.kind, format_size(self.len_bytes))?;
        writeln!(out, "  file system   {}", self.file_system.as_deref().unwrap_or("unknown"))?;
        writeln!(out, "  direct I/O    {}", if self.direct_io { "yes: used, bypassing the page cache" } else { "no" })?;
        writeln!(
            out,
            "  DAX           {}",
            if self.dax { "yes: used, by copies; Mapping::open_direct maps it without copies" } else { "no" }
        )?;
        writeln!(out, "  block size    {} B", self.block_size_bytes)?;
        for advice in &self.advice {
            writeln!(out, "  -> {advice}")?;
        }
        Ok(())
    }
}

fn examine_file(path: &Path) -> anyhow::Result<FileReport> {
    let context = || format!("cannot examine {}", path.display());
    let metadata = fs::metadata(path).with_context(context)?;
    if metadata.file_type().is_char_device() {
        return examine_nvme(path).with_context(context);
    }
    let backing = FileBacking::open(path, Access::ReadOnly).with_context(context)?;
    let file_system = file_system_of(path);
    let mut advice = Vec::new();
    if !backing.is_direct() {
        advice.push(
            "direct I/O is not offered here: reads and writes go through the page cache, which \
             costs a copy and memory outside the budget; move the file to ext4, xfs or btrfs"
                .to_owned(),
        );
    }
    let block_size_bytes = backing.block_bytes();
    if metadata.is_file() && !metadata.len().is_multiple_of(block_size_bytes) {
        advice.push(format!(
            "the length is not a multiple of the block size ({block_size_bytes}): the last page \
             takes a slower path"
        ));
    }
    if metadata.is_file() && metadata.blocks() * 512 < metadata.len() {
        advice.push("the file is sparse: the first write-back of a page allocates its block".to_owned());
    }
    Ok(FileReport {
        path: path.to_owned(),
        kind: if metadata.file_type().is_block_device() { "block device" } else { "regular file" },
        len_bytes: backing.len(),
        file_system,
        direct_io: backing.is_direct(),
        block_size_bytes,
        dax: metadata.is_file() && DaxBacking::open(path, Access::ReadOnly).is_ok(),
        advice,
    })
}

fn examine_nvme(path: &Path) -> anyhow::Result<FileReport> {
    let backing = NvmeBacking::open(path, Access::ReadOnly)?;
    let advice = match backing.submission() {
        Submission::Polled => None,
        Submission::Interrupting => Some(
            "commands end with an interrupt: the driver has no queues for polling, which nvme.poll_queues=N on the \
             kernel's command line gives it",
        ),
        Submission::Ioctl => Some(
            "commands go one at a time: io_uring does not pass them through (requires Linux 6.1, and io_uring enabled)",
        ),
    };
    Ok(FileReport {
        path: path.to_owned(),
        kind: "NVMe namespace, bypassing the block layer",
        len_bytes: backing.len(),
        file_system: None,
        direct_io: true,
        block_size_bytes: backing.block_bytes(),
        dax: false,
        advice: advice.map(str::to_owned).into_iter().collect(),
    })
}

/// The type of the file system that holds `path`, from the longest mount point above it.
fn file_system_of(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
            path.starts_with(point).then(|| (point.len(), kind.to_owned()))
        })
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}
