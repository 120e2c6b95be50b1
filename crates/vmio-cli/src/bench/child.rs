//! Every measurement runs in a process of its own, so that memory and CPU time are its own.

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

use super::engines::EngineKind;
use super::engines::mmap::LinuxMapping;
use super::engines::pread::PreadEngine;
use super::engines::vmio::VmioEngine;
use super::kv::{self, CrashSpec, KvSpec, ReopenSpec};
use super::scenarios::{commit, fetch, fresh, heap, hit, posix, priority, sync, units};
use super::spec::{MeasuredRun, RunSpec};
use super::{cgroup, process, worker};

/// What a child process is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// The memory cgroup to enter first.
    pub cgroup: Option<PathBuf>,
    /// The measurement.
    pub job: Job,
}

/// The measurements.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// A run of `bench map`.
    Map(RunSpec),
    /// `bench hit`.
    Hit(hit::HitSpec),
    /// One side of `bench priority`.
    Priority(priority::PrioritySpec),
    /// One side of `bench fresh`.
    Fresh(fresh::FreshSpec),
    /// One side of `bench sync`.
    Sync(sync::SyncSpec),
    /// One side of `bench fetch`.
    Fetch(fetch::FetchSpec),
    /// One run of `bench commit`.
    Commit(commit::CommitSpec),
    /// One kind of unit at one kind of work of `bench units`.
    Units(units::UnitsSpec),
    /// One pattern of `bench posix`, on either side.
    Posix(posix::PosixSpec),
    /// One run of one side of `bench heap`.
    Heap(heap::HeapSpec),
    /// One phase of one engine of `bench kv`.
    Kv(KvSpec),
    /// A load of it that is killed.
    KvCrash(CrashSpec),
    /// Opening one of its stores again.
    KvReopen(ReopenSpec),
}

/// Runs a task in a child process and gives its result and the resident memory seen from outside.
pub fn run<R: DeserializeOwned>(what: &str, task: &Task) -> anyhow::Result<(R, ResidentRange)> {
    start(what, task, Command::new(itself()?))
}

/// The same by a command of this program that runs others, with a folder as its last argument.
pub fn run_within<R: DeserializeOwned>(
    what: &str,
    task: &Task,
    command: &[&str],
    folder: &Path,
) -> anyhow::Result<(R, ResidentRange)> {
    let mut program = Command::new(itself()?);
    program.args(command).arg(folder).arg("--").arg(itself()?);
    start(what, task, program)
}

fn itself() -> anyhow::Result<PathBuf> {
    env::current_exe().context("cannot find the vmio program itself")
}

fn start<R: DeserializeOwned>(what: &str, task: &Task, mut program: Command) -> anyhow::Result<(R, ResidentRange)> {
    let activity = Activity::start(what.to_owned());
    let mut child = program
        .args(["bench", "child", &serde_json::to_string(task)?])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process for the measurement")?;
    let id = child.id();
    let on_interrupt = Cleanup::register(move || {
        // SAFETY: sending a signal touches no memory; the child is not reaped before this guard
        // is disarmed, so the number is still its.
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

/// The kernel killed a child: that is how it ends a process whose memory cgroup has no more to give.
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
    /// The samples' number.
    pub samples: u64,
    /// The largest.
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
        // Nobody listens any more only if this process is already on its way out.
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

/// The child's side: does the task and prints its result as JSON.
pub fn serve(task: &str) -> anyhow::Result<()> {
    process::die_with_parent();
    let task: Task = serde_json::from_str(task)
        .context("this command is started by the other bench commands: its argument is a task of theirs")?;
    if let Some(path) = &task.cgroup {
        cgroup::enter(path)?;
    }
    let result = match &task.job {
        Job::Map(spec) => serde_json::to_string(&run_map(spec, task.cgroup.clone())?),
        Job::Hit(spec) => serde_json::to_string(&hit::measure(spec)?),
        Job::Priority(spec) => serde_json::to_string(&priority::measure(spec)?),
        Job::Fresh(spec) => serde_json::to_string(&fresh::measure(spec)?),
        Job::Sync(spec) => serde_json::to_string(&sync::measure(spec)?),
        Job::Fetch(spec) => serde_json::to_string(&fetch::measure(spec)?),
        Job::Commit(spec) => serde_json::to_string(&commit::measure(spec)?),
        Job::Units(spec) => serde_json::to_string(&units::measure(spec)?),
        Job::Posix(spec) => serde_json::to_string(&posix::measure(spec)?),
        Job::Heap(spec) => serde_json::to_string(&heap::measure(spec)?),
        Job::Kv(spec) => serde_json::to_string(&kv::measure(spec)?),
        Job::KvCrash(spec) => serde_json::to_string(&kv::load_and_crash(spec)?),
        Job::KvReopen(spec) => serde_json::to_string(&kv::reopen(spec)?),
    };
    print_line(result?)
}

fn run_map(spec: &RunSpec, cgroup: Option<PathBuf>) -> anyhow::Result<MeasuredRun> {
    let write = spec.op.writes();
    match spec.engine {
        EngineKind::Vmio(variant) => {
            let engine = VmioEngine::open_for_run(variant, spec)?;
            engine.advise_pattern(spec.pattern)?;
            worker::measure(engine, spec)
        }
        EngineKind::Mmap => {
            let engine = LinuxMapping::of_file(&spec.path, spec.size_bytes, write)?.with_cgroup(cgroup);
            engine.advise_pattern(spec.pattern)?;
            worker::measure(engine, spec)
        }
        EngineKind::Pread => worker::measure(PreadEngine::open(&spec.path, write)?, spec),
    }
}
