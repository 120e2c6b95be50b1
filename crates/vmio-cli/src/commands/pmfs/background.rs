//! A server that outlives the command that has started it.
//!
//! The command starts itself again as the server, and prints what that says until it is ready. A fork would have to come before all threads.

use std::env;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rustix::stdio::{dup2_stderr, dup2_stdout};

/// The variable by which the server knows what it is.
const SERVER: &str = "VMIO_PMFS_SERVER";
/// The byte by which the server says that it is ready. Nothing that it prints before has it.
const READY: u8 = 0;

/// Whether this process is the server in the background.
pub fn is_in_background() -> bool {
    env::var_os(SERVER).is_some()
}

/// Starts this command again, as a server, and waits until it is ready. If it is not, this process ends as the server has ended.
pub fn start() -> anyhow::Result<()> {
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    command.args(env::args_os().skip(1)).env(SERVER, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = command.spawn().context("cannot start the server")?;
    let mut said = server.stdout.take().context("cannot hear the server")?;
    let (mut output, mut bytes) = (io::stdout().lock(), [0; 4096]);
    loop {
        let read = match said.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.context("cannot hear the server")?,
        };
        let text = &bytes[..read];
        let ready = text.iter().position(|byte| *byte == READY);
        // Nobody may listen any more: the server goes on all the same, so this waits for it.
        _ = output.write_all(&text[..ready.unwrap_or(read)]).and_then(|()| output.flush());
        if ready.is_some() {
            return Ok(());
        }
        if read == 0 {
            break;
        }
    }
    let ended = server.wait().context("cannot wait for the server")?;
    match ended.code() {
        // It has said why.
        Some(status @ 1..) => std::process::exit(status),
        Some(_) => bail!("the server has ended before it was ready"),
        None => bail!("the server has ended before it was ready: {ended}"),
    }
}

/// The server in the background, before it is ready.
pub struct Detached {
    /// Where its messages go then.
    log: File,
}

impl Detached {
    /// Leaves the session of the terminal, whose signals are not for the server.
    pub fn begin(log: Option<&Path>) -> anyhow::Result<Detached> {
        let path = log.unwrap_or(Path::new("/dev/null"));
        let opened = File::options().create(true).append(true).open(path);
        let log = opened.with_context(|| format!("cannot write to {}", path.display()))?;
        rustix::process::setsid().context("cannot leave the session")?;
        Ok(Detached { log })
    }

    /// Has the command that has started it return.
    pub fn report_ready(self) -> anyhow::Result<()> {
        env::set_current_dir("/")?;
        let mut output = io::stdout().lock();
        output.write_all(&[READY])?;
        output.flush()?;
        dup2_stdout(&self.log)?;
        dup2_stderr(&self.log)?;
        Ok(())
    }
}
