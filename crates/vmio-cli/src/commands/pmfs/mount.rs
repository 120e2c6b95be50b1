//! `vmio pmfs mount`: a FUSE server.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, getrlimit, setrlimit};
use vmio_pmfs::{Access, BLOCK_BYTES, Fs, Medium, Mode, Recovered};
use vmio_pmfs_protocol::{MOUNT_BYTES, Mount, Persistence};
use vmio_report::size::format_size;

use super::background::{self, Detached, is_in_background};
use super::fuse::Server;
use super::leases::{Holders, Leases};
use super::medium;
use super::near_cores::NearCores;
use super::rewriter::Rewriter;

/// Threads that answer the kernel. One that waits for a lease leaves the others to those who need none.
const THREADS_MIN: usize = 8;
const THREADS_MAX: usize = 16;

pub const EXAMPLES: &str = "\
Examples:
  vmio pmfs mount image /mnt         mount it; umount /mnt ends the command
  vmio pmfs mount --background --log /var/log/pmfs.log image /mnt
                                     return once it is mounted; umount /mnt ends the server
  vmio pmfs mount --private image ~/here
  vmio pmfs mount --mode relaxed image /mnt
  vmio pmfs mount --assume-persistent image /mnt
                                     on a machine that a battery shuts down in order
  vmio pmfs mount /dev/dax0.0 /mnt   on a device in mode devdax

Programs that use vmio, and those under `vmio run --mode`, map the extents of files themselves if they may open the medium. All others use
the mount as any file system. So do all programs where the medium is a device in mode devdax whose alignment is not 4 KiB, such as 2 MiB.

In mode strict, a crash leaves all of a write or nothing. In mode relaxed it may leave any words of what a write overwrites that had not
returned; names, lengths and all other metadata are as in mode strict. Writes over what is there are faster, and need no free space. The
mode is of the mount, not of the medium.

The command prints a line when the file system is mounted. When more than a twentieth of the free space is
holes, it moves blocks in the background, so that extents of 2 MiB become whole again.

With --background the command fails as it does without, with the same messages and status. Messages of the server come after that, and go to
the file of --log, else nowhere.

It needs /dev/fuse, and root or fusermount3. For users other than root, other
users may use the mount only if /etc/fuse.conf has the line user_allow_other: without it, give --private.";

/// The medium to mount, and how to do that.
#[derive(Args)]
pub struct MountArgs {
    /// The file or device
    medium: PathBuf,
    /// The folder to mount it on
    folder: PathBuf,
    /// Let only the user who mounts it use it
    #[arg(long)]
    private: bool,
    /// The promise for the data of a write that a crash cuts short
    #[arg(long, value_enum, default_value_t = Promise::Strict)]
    mode: Promise,
    /// Return when the file system is mounted, and serve it in the background
    #[arg(long)]
    background: bool,
    /// Take stores as durable once they have left the processor's caches, though Linux does not say so of this medium. A power cut or a crash of the
    /// kernel may then take what programs believe to be durable
    #[arg(long)]
    assume_persistent: bool,
    /// Run the server on all cores. By default it keeps to those of the NUMA node that the medium is on, where that is persistent memory: stores from
    /// elsewhere are slower
    #[arg(long)]
    any_node: bool,
    /// Add the messages of the server in the background to this file
    #[arg(long, value_name = "FILE", requires = "background")]
    log: Option<PathBuf>,
    /// How long a process that maps a file's extents itself has to give them back when they are wanted; then it loses them
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease_timeout: u64,
}

/// The promise for the data of a write that a crash cuts short.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Promise {
    /// All of it or nothing
    Strict,
    /// Any words of what it overwrites
    Relaxed,
}

/// Runs the command.
pub fn run(args: &MountArgs) -> anyhow::Result<()> {
    match (args.background, is_in_background()) {
        (true, false) => background::start(),
        (true, true) => serve(args, Some(Detached::begin(args.log.as_deref())?)),
        (false, _) => serve(args, None),
    }
}

fn serve(args: &MountArgs, detached: Option<Detached>) -> anyhow::Result<()> {
    let (path, folder) = (&*args.medium, &*args.folder);
    let mode = match args.mode {
        Promise::Strict => Mode::Strict,
        Promise::Relaxed => Mode::Relaxed,
    };
    let cannot = || format!("cannot mount {}", path.display());
    check_folder(folder).with_context(cannot)?;
    let medium = medium::open(path, Access::Write).with_context(cannot)?;
    raise_descriptors();
    let persistence = match (medium.is_synchronous(), args.assume_persistent) {
        (true, _) => Persistence::ByFence,
        (false, true) => Persistence::Assumed,
        (false, false) => Persistence::ByFlush,
    };
    // All threads of the server come later.
    if medium.is_synchronous()
        && !args.any_node
        && let Some(cores) = NearCores::of(path)
    {
        cores.stay();
    }
    let (holders, mount) = described(path, persistence).with_context(cannot)?;
    let alignment = medium.alignment();
    // Most extents could not be mapped, and what is mapped could be taken away by whole units alone.
    let mount = (alignment <= BLOCK_BYTES).then_some(mount);
    if mount.is_none() {
        let (path, unit) = (path.display(), format_size(alignment));
        tracing::info!("{path} can be mapped by {unit} alone: programs get no leases of extents, and use the kernel");
    }
    if !persistence.is_synchronous() {
        tracing::info!("{} is no persistent memory: a power cut may take what was not synchronised", path.display());
    }
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let fs = Arc::new(Fs::mount_in(medium, mode).with_context(cannot)?);
    let recovered = fs.recovered();
    let timeout = Duration::from_secs(args.lease_timeout);
    let leases = Leases::new(Arc::clone(&fs), Arc::clone(&holders), timeout, persistence.is_synchronous());
    holders.serve(&leases).context("cannot start a thread")?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(medium::source(path).display().to_string()),
        MountOption::Subtype("vmio-pmfs".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if args.private { SessionACL::Owner } else { SessionACL::All };
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    config.n_threads = Some(processors.clamp(THREADS_MIN, THREADS_MAX));
    let on = || format!("cannot mount {} on {}", path.display(), folder.display());
    let server = Server::new(Arc::clone(&fs), Arc::clone(&leases), mount);
    let mut session = Session::new(server, folder, &config).map_err(explained).with_context(on)?;
    leases.mounted(session.notifier());
    let mut unmounter = session.unmount_callable();
    // A server in the background is in no folder that others may want to unmount.
    let mounted_on = std::path::absolute(folder)?;
    ctrlc::set_handler(move || {
        // The session forgets its mount even if that is busy.
        match unmount(&mounted_on, UnmountFlags::empty()) {
            Ok(()) => {}
            Err(Errno::BUSY) => eprintln!("{} is busy: close what uses it, and interrupt again", mounted_on.display()),
            // As a user without rights, by fusermount3.
            Err(_) => {
                if let Err(error) = unmounter.unmount() {
                    eprintln!("cannot unmount {}: {error}", mounted_on.display());
                }
            }
        }
    })
    .context("cannot wait for signals")?;
    let rewriter = Rewriter::start(Arc::clone(&fs)).context("cannot start a thread")?;
    let mut output = io::stdout().lock();
    if recovered != Recovered::default() {
        let Recovered { transactions, orphans, appends } = recovered;
        write!(output, "recovered: {transactions} transactions rolled back, {orphans} deleted files freed, ")?;
        writeln!(output, "appends to {appends} files found")?;
    }
    writeln!(output, "{} is mounted on {}", path.display(), folder.display())?;
    output.flush()?;
    drop(output);
    if let Some(detached) = detached {
        detached.report_ready().context("cannot leave the terminal")?;
    }
    let served = session.run().context("the mount has failed");
    drop(rewriter);
    served?;
    fs.sync().with_context(|| format!("cannot flush {}", path.display()))
}

/// The holders of leases of a mount, and its description for them.
fn described(path: &Path, persistence: Persistence) -> anyhow::Result<(Arc<Holders>, [u8; MOUNT_BYTES])> {
    let medium = path.canonicalize()?;
    let metadata = medium.metadata()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let holders = Holders::new((device, inode)).context("cannot listen for processes that want leases")?;
    let socket = holders.socket().to_vec();
    let mount = Mount { medium, device, inode, persistence, socket };
    Ok((Arc::new(holders), mount.to_bytes().context("its path is too long")?))
}

/// Allows as many descriptors as the process may have: each holder of leases takes some.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "cannot raise the limit of descriptors");
    }
}

/// Refuses what is no folder: the kernel would mount on it, and nobody could use that.
fn check_folder(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => bail!("{shown} is no folder"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("there is no folder {shown}: make it first"),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            bail!("the server of the file system that is mounted on {shown} has ended: umount it first")
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at {shown}")),
    }
}

/// The reason why FUSE does not mount, as far as it can be known.
fn explained(error: io::Error) -> anyhow::Error {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    match device.map_err(|device| device.kind()) {
        Err(io::ErrorKind::NotFound) => anyhow!("there is no /dev/fuse: load the kernel's module fuse"),
        Err(io::ErrorKind::PermissionDenied) => anyhow!("you have no rights to /dev/fuse, which mounting needs"),
        _ if error.to_string().contains("user_allow_other") => {
            anyhow!(
                "/etc/fuse.conf has no line user_allow_other, without which other users may not use the mount: give --private"
            )
        }
        _ => error.into(),
    }
}
