//! `vmio pmfs`: a file system for byte-addressable memory that keeps its huge pages.

mod background;
mod dump;
mod fsck;
mod fuse;
mod known;
mod leases;
mod medium;
mod mount;
mod near_cores;
mod reply;
mod rewriter;

pub use background::is_in_background;
pub use fsck::NotSound;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use rustix::fs::{AtFlags, FallocateFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use serde_json::json;
use vmio_pmfs::{Access, BLOCK_BYTES, Fs, Geometry, Medium, Overlay, Superblock};
use vmio_report::size::{format_size, parse_size};

/// An extent of a huge page.
const ALLOCATED_BYTES: u64 = 2 << 20;

const EXAMPLES: &str = "\
Examples:
  vmio pmfs mkfs --size 1G image     make a file system in a new file
  vmio pmfs mkfs --size 1G /mnt/pmem/image
                                     make one on persistent memory: in a file of a file system that is mounted with DAX
  vmio pmfs mkfs /dev/dax0.0         make one on a device in mode devdax
  vmio pmfs mount image /mnt         mount it, until umount or Ctrl-C
  vmio pmfs fsck image               check it without changing it
  vmio pmfs fsck --repair image      repair what is provable
  vmio pmfs dump image /some/file    show an inode and its extents

The file system is experimental. It is mounted by FUSE. On persistent memory each call is atomic and durable when it returns. In an
ordinary file that holds for the end of the process. A power cut may damage a file system there that is mounted, and what was
synchronised before with it.

Exit status: 0 if all went well; 1 if something failed; 2 for a wrong command line. That of fsck is e2fsck's (`vmio pmfs fsck --help`).";

const MKFS_EXAMPLES: &str = "\
Examples:
  vmio pmfs mkfs --size 1G image     make a file system in a new file
  vmio pmfs mkfs --size 1G --sparse image
                                     take disk space only as it is used; a full disk then ends the server of the mount
  vmio pmfs mkfs --areas 4 --size 8G /mnt/pmem/image";

const STAT_EXAMPLES: &str = "\
Examples:
  vmio pmfs stat image
  vmio pmfs stat --json image | jq .aligned_free_blocks";

/// Make, mount and check a file system for persistent memory that keeps its huge pages (experimental)
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PmfsArgs {
    #[command(subcommand)]
    command: PmfsCommand,
}

#[derive(Subcommand)]
enum PmfsCommand {
    /// Make an empty file system
    #[command(after_help = MKFS_EXAMPLES)]
    Mkfs {
        /// The file or device
        medium: PathBuf,
        /// Make a new file of this size, which only its owner may read, or give an empty file this size
        #[arg(long, value_parser = parse_size)]
        size: Option<u64>,
        /// With --size: do not allocate disk space now
        #[arg(long, requires = "size")]
        sparse: bool,
        /// How many areas with a journal of their own there are (default: the number of processors)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
        areas: Option<u32>,
        /// Make the file system even if the medium holds data or another file system: DESTROYS them
        #[arg(long)]
        overwrite: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Mount a file system until it is unmounted, or the command interrupted
    #[command(after_help = mount::EXAMPLES)]
    Mount(mount::MountArgs),
    /// Check a file system, and repair it if that is asked for; fails if anything is wrong
    #[command(after_help = fsck::EXAMPLES)]
    Fsck(fsck::FsckArgs),
    /// Print the structures of a medium, also of a damaged one
    #[command(after_help = dump::EXAMPLES)]
    Dump(dump::DumpArgs),
    /// Print what a file system has, and how much space is free
    #[command(after_help = STAT_EXAMPLES)]
    Stat {
        /// The file or device
        medium: PathBuf,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs `vmio pmfs`.
pub fn run(args: &PmfsArgs) -> anyhow::Result<()> {
    match &args.command {
        PmfsCommand::Mkfs { medium, size, sparse, areas, overwrite, json } => {
            make(medium, *size, *sparse, *areas, *overwrite, *json)
                .with_context(|| format!("cannot make a file system on {}", medium.display()))
        }
        PmfsCommand::Mount(args) => mount::run(args),
        PmfsCommand::Fsck(args) => fsck::run(args),
        PmfsCommand::Dump(args) => dump::run(args),
        PmfsCommand::Stat { medium, json } => stat(medium, *json),
    }
}

fn open(path: &Path, access: Access) -> anyhow::Result<Arc<dyn Medium>> {
    Ok(Arc::new(medium::open(path, access)?))
}

fn make(
    path: &Path,
    size: Option<u64>,
    sparse: bool,
    areas: Option<u32>,
    overwrite: bool,
    json: bool,
) -> anyhow::Result<()> {
    match size {
        Some(size) => give_size(path, size, sparse)?,
        None if !path.exists() => bail!("there is no such file: --size makes one"),
        None => {}
    }
    let medium = open(path, Access::Write)?;
    let processors = thread::available_parallelism().map_or(1, |count| count.get().min(1024) as u32);
    let geometry = Geometry::of(medium.len(), areas.unwrap_or(processors));
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let superblock = Fs::make(&medium, geometry, overwrite, owner)?;
    let Geometry { areas, .. } = superblock.geometry;
    let (bytes, uuid) = (superblock.geometry.bytes(), uuid(&superblock));
    let mut output = io::stdout();
    match json {
        true => {
            let object = json!({ "medium": path.to_string_lossy(), "uuid": uuid, "bytes": bytes, "areas": areas });
            writeln!(output, "{object}")?;
        }
        false => writeln!(output, "{}: {}, {areas} areas, UUID {uuid}", path.display(), format_size(bytes))?,
    }
    Ok(())
}

/// Makes a new file of this size, or an existing empty one so long. A file of another length is left alone; a new one is gone after an error.
fn give_size(path: &Path, size: u64, sparse: bool) -> anyhow::Result<()> {
    let is_new = !path.exists();
    // Others may not read what files of theirs in it are forbidden to them.
    let file = File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        bail!("--size is for files");
    }
    if metadata.len() != 0 && metadata.len() != size {
        bail!("it has {} bytes already, and --size says {size}", metadata.len());
    }
    let given = match sparse {
        true => file.set_len(size),
        // A store to a hole on a full disk is a SIGBUS.
        false => allocate(&file, metadata.len(), size),
    };
    if given.is_err() {
        if is_new { std::fs::remove_file(path)? } else { file.set_len(metadata.len())? }
    }
    given.with_context(|| format!("cannot have {} of disk space (--sparse takes it later)", format_size(size)))
}

/// Allocates the space of a file, where its file system can: an extent of a huge page at a time. ext4 (`stripe_width`) and XFS (`extsize`)
/// align an extent whose length is their unit; the extents of one long request end anywhere.
///
/// On persistent memory what is new is written, too. Else the first store to each page would have the kernel change an extent and commit that.
fn allocate(file: &File, old_bytes: u64, bytes: u64) -> io::Result<()> {
    let attributes = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty()).map(|found| found.stx_attributes);
    let zeros = match attributes.is_ok_and(|attributes| attributes.contains(StatxAttributes::DAX)) {
        true if old_bytes == 0 => vec![0; ALLOCATED_BYTES as usize],
        _ => Vec::new(),
    };
    let mut at = 0;
    while at < bytes {
        let step = ALLOCATED_BYTES.min(bytes - at);
        match rustix::fs::fallocate(file, FallocateFlags::empty(), at, step) {
            Err(Errno::OPNOTSUPP) => return file.set_len(bytes),
            Err(Errno::INTR) => continue,
            done => done?,
        }
        file.write_all_at(&zeros[..zeros.len().min(step as usize)], at)?;
        at += step;
    }
    if zeros.is_empty() { Ok(()) } else { file.sync_all() }
}

fn uuid(superblock: &Superblock) -> String {
    superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn stat(path: &Path, json: bool) -> anyhow::Result<()> {
    let medium = open(path, Access::Read).with_context(|| format!("cannot read {}", path.display()))?;
    // Mounting rolls back and frees what a crash has left, here in memory alone.
    let fs = Fs::mount(Arc::new(Overlay::new(medium))).with_context(|| format!("cannot read {}", path.display()))?;
    let (superblock, space) = (fs.superblock(), fs.space());
    let Geometry { areas, .. } = superblock.geometry;
    let mut output = io::stdout().lock();
    if json {
        let object = json!({
            "medium": path.to_string_lossy(),
            "uuid": uuid(superblock),
            "bytes": superblock.geometry.bytes(),
            "areas": areas,
            "blocks": space.blocks,
            "free_blocks": space.free_blocks,
            "aligned_free_blocks": space.aligned_free_blocks,
            "inodes": space.inodes,
            "free_inodes": space.free_inodes,
        });
        writeln!(output, "{object}")?;
    } else {
        let size = |blocks: u64| format_size(blocks * BLOCK_BYTES);
        writeln!(output, "UUID     {}", uuid(superblock))?;
        writeln!(output, "size     {} in {areas} areas", format_size(superblock.geometry.bytes()))?;
        writeln!(output, "space    {} for files, {} free", size(space.blocks), size(space.free_blocks))?;
        writeln!(output, "aligned  {} free in extents of 2 MiB", size(space.aligned_free_blocks))?;
        writeln!(output, "inodes   {}, {} free", space.inodes, space.free_inodes)?;
    }
    Ok(output.flush()?)
}
