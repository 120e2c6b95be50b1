//! Every measurement runs in a process of its own, so that its memory and CPU time count alone.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use std::{env, fmt, io};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vmio_report::cleanup::Cleanup;
use vmio_report::progress::Activity;
use vmio_report::standard_output::print_line;

use crate::cgroup::{self, MemoryCgroup};
use crate::process;

/// The hidden command that starts a measuring program as a child, to do a task.
pub const COMMAND: &str = "bench-child";

/// A measurement for a process of its own. Programs have a list of the measurements that they serve, by name.
pub trait Spec: Serialize {
    /// Its name in that list.
    const NAME: &'static str;
    /// The result of the measurement.
    type Found: DeserializeOwned;
}

/// The task of a child process, in the form that the child reads.
#[derive(Deserialize)]
struct Task<J> {
    /// The memory cgroup to enter first.
    cgroup: Option<PathBuf>,
    /// The measurement: its name and its parameters.
    job: J,
}

/// The same task in the form that the parent writes.
#[derive(Serialize)]
struct TaskToTell<'a, S> {
    cgroup: Option<&'a Path>,
    job: BTreeMap<&'static str, &'a S>,
}

/// Measures in a child process, within a cgroup if one is given. Returns the child's result, and its resident memory seen from outside.
pub fn run<S: Spec>(what: &str, cgroup: Option<&MemoryCgroup>, spec: &S) -> anyhow::Result<(S::Found, ResidentRange)> {
    start(what, Command::new(itself()?), &arguments(cgroup, spec)?)
}

/// The same by a command that runs others. Adds this program's path to its arguments, and after that this program's arguments.
pub fn run_within<S: Spec>(what: &str, mut command: Command, spec: &S) -> anyhow::Result<(S::Found, ResidentRange)> {
    command.arg(itself()?);
    start(what, command, &arguments(None, spec)?)
}

/// The arguments with which this program measures: those of its hidden command.
pub fn arguments<S: Spec>(cgroup: Option<&MemoryCgroup>, spec: &S) -> anyhow::Result<[String; 2]> {
    let task = TaskToTell { cgroup: cgroup.map(MemoryCgroup::path), job: BTreeMap::from([(S::NAME, spec)]) };
    Ok([COMMAND.to_owned(), serde_json::to_string(&task)?])
}

/// The path of this program.
pub fn itself() -> anyhow::Result<PathBuf> {
    env::current_exe().context("cannot find this program itself")
}

fn start<R: DeserializeOwned>(
    what: &str,
    mut program: Command,
    arguments: &[String],
) -> anyhow::Result<(R, ResidentRange)> {
    let activity = Activity::start(what.to_owned());
    let mut child = program
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process for the measurement")?;
    let id = child.id();
    let on_interrupt = Cleanup::register(move || {
        // SAFETY: sending a signal touches no memory; nobody reaps the child before this guard is disarmed, so the number is still the
        // child's.
        unsafe { libc::kill(id as libc::pid_t, libc::SIGKILL) };
    })?;
    let output = child.stdout.take().context("the child has no output")?;
    let (text, resident) = read_while_watching(output, id, &activity);
    let status = child.wait().context("cannot wait for the measurement")?;
    on_interrupt.disarm();
    if status.signal() == Some(libc::SIGKILL) {
        return Err(Killed(what.to_owned()).into());
    }
    if !status.success() {
        bail!("{what} failed ({status}); its message is above");
    }
    let result = serde_json::from_str(&text?).with_context(|| format!("{what} gave no result"))?;
    Ok((result, resident))
}

/// The kernel has killed a child: that is how it ends a process whose memory cgroup has no more to give.
#[derive(Debug)]
pub struct Killed(String);

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was killed (SIGKILL), most likely since its memory cgroup had no more memory to give", self.0)
    }
}

impl std::error::Error for Killed {}

/// The resident memory of a child, sampled while it ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResidentRange {
    /// The number of samples.
    pub samples: u64,
    /// The largest sample.
    pub max_bytes: u64,
}

fn read_while_watching(
    mut output: impl Read + Send + 'static,
    id: u32,
    activity: &Activity,
) -> (io::Result<String>, ResidentRange) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let result = output.read_to_string(&mut text).map(|_| text);
        // The receiver is gone only if this process is already on its way out.
        let _ = sender.send(result);
    });
    let mut resident = ResidentRange::default();
    loop {
        match receiver.recv_timeout(Duration::from_millis(200)) {
            Ok(result) => return (result, resident),
            Err(RecvTimeoutError::Disconnected) => {
                return (Err(io::Error::other("the reader of the child's output is gone")), resident);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(bytes) = process::rss_bytes(id) {
                    activity.show_resident(bytes);
                    resident.samples += 1;
                    resident.max_bytes = resident.max_bytes.max(bytes);
                }
            }
        }
    }
}

/// The child's side: enters the task's cgroup, lets `measure` do the job, and prints the result, which is JSON. Jobs that watch the cgroup
/// get its path.
pub fn serve<J: DeserializeOwned>(
    task: &str,
    measure: impl FnOnce(J, Option<PathBuf>) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    process::die_with_parent();
    let Task { cgroup, job } = serde_json::from_str(task)
        .context("this command is started by the other bench commands: its argument is a task of theirs")?;
    if let Some(path) = &cgroup {
        cgroup::enter(path)?;
    }
    print_line(measure(job, cgroup)?)
}
