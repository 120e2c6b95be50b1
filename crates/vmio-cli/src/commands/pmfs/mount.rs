//! `vmio pmfs mount`: a FUSE server in the foreground.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use vmio_pmfs::{Access, Fs, MappedFile, Medium};

use super::fuse::Server;
use super::rewriter::Rewriter;

/// Threads that answer the kernel.
const THREADS_MAX: usize = 8;

pub fn run(path: &Path, folder: &Path, private: bool) -> anyhow::Result<()> {
    let cannot = || format!("cannot mount {}", path.display());
    let medium = MappedFile::open(path, Access::Write).with_context(cannot)?;
    if !medium.is_synchronous() {
        tracing::info!("{} is no persistent memory: a power cut may take what was not synchronised", path.display());
    }
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let fs = Arc::new(Fs::mount(medium).with_context(cannot)?);
    let recovered = fs.recovered();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(path.display().to_string()),
        MountOption::Subtype("vmio-pmfs".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if private { SessionACL::Owner } else { SessionACL::All };
    config.n_threads = Some(thread::available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX)));
    let on = || format!("cannot mount {} on {}", path.display(), folder.display());
    let mut session = Session::new(Server::new(Arc::clone(&fs)), folder, &config).with_context(on)?;
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
    if recovered.transactions > 0 || recovered.orphans > 0 {
        let (transactions, orphans) = (recovered.transactions, recovered.orphans);
        writeln!(output, "recovered: {transactions} transactions rolled back, {orphans} deleted files freed")?;
    }
    writeln!(output, "{} is mounted on {}", path.display(), folder.display())?;
    output.flush()?;
    drop(output);
    let served = session.run().context("the mount has failed");
    drop(rewriter);
    served?;
    fs.sync().with_context(|| format!("cannot flush {}", path.display()))
}
