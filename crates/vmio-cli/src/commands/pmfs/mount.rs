//! `vmio pmfs mount`: a FUSE server in the foreground.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, getrlimit, setrlimit};
use vmio_pmfs::{Access, Fs, Medium, Recovered};
use vmio_pmfs_protocol::{MOUNT_BYTES, Mount, Persistence};

use super::fuse::Server;
use super::leases::{Holders, Leases};
use super::medium;
use super::rewriter::Rewriter;

/// Threads that answer the kernel. One that waits for a lease leaves the others to those who need none.
const THREADS_MIN: usize = 8;
const THREADS_MAX: usize = 16;

/// The choices of a mount.
pub struct Options {
    /// Only the user who mounts it may use it.
    pub private: bool,
    pub lease_timeout: Duration,
    /// Stores are durable at a fence, though the kernel does not say so.
    pub assume_persistent: bool,
}

pub fn run(path: &Path, folder: &Path, options: &Options) -> anyhow::Result<()> {
    let &Options { private, lease_timeout, assume_persistent } = options;
    let cannot = || format!("cannot mount {}", path.display());
    check_folder(folder).with_context(cannot)?;
    let medium = medium::open(path, Access::Write).with_context(cannot)?;
    raise_descriptors();
    let persistence = match (medium.is_synchronous(), assume_persistent) {
        (true, _) => Persistence::ByFence,
        (false, true) => Persistence::Assumed,
        (false, false) => Persistence::ByFlush,
    };
    let (holders, mount) = described(path, persistence).with_context(cannot)?;
    if !persistence.is_synchronous() {
        tracing::info!("{} is no persistent memory: a power cut may take what was not synchronised", path.display());
    }
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let fs = Arc::new(Fs::mount(medium).with_context(cannot)?);
    let recovered = fs.recovered();
    let leases = Leases::new(Arc::clone(&fs), Arc::clone(&holders), lease_timeout, persistence.is_synchronous());
    holders.serve(&leases).context("cannot start a thread")?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(medium::source(path).display().to_string()),
        MountOption::Subtype("vmio-pmfs".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if private { SessionACL::Owner } else { SessionACL::All };
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    config.n_threads = Some(processors.clamp(THREADS_MIN, THREADS_MAX));
    let on = || format!("cannot mount {} on {}", path.display(), folder.display());
    let server = Server::new(Arc::clone(&fs), Arc::clone(&leases), mount);
    let mut session = Session::new(server, folder, &config).map_err(explained).with_context(on)?;
    leases.mounted(session.notifier());
    let mut unmounter = session.unmount_callable();
    let mounted_on = folder.to_owned();
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
