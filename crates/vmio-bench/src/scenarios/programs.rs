//! Databases and tools as they are, plain and in each mode of `vmio run --mode`: what their users would see.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use vmio_measure::median::median;
use vmio_measure::place::Place;
use vmio_report::output::OutputArgs;

use crate::vmio_command::{self, RunMode};

const EXAMPLES: &str = "\
Examples:
  vmio-bench programs --dir /data
  vmio-bench programs --dir /data --programs sqlite-wal,git --modes posix --rounds 9
  vmio-bench programs --dir /data --json programs.json

Each program in a new folder, plain and in each mode in turns; a time is the median over the rounds.
What is not installed is left out. redis-aof has Redis sync its log before each answer.";

/// Measure databases and tools, plain and in modes of `vmio run`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ProgramsArgs {
    /// Work in a new folder in this one, and remove it afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// The programs
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["sqlite-rollback", "sqlite-wal", "redis-aof", "git", "tar"])]
    programs: Vec<Program>,
    /// The modes
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["posix", "sync", "strict"])]
    modes: Vec<RunMode>,
    /// How often each is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Program {
    /// SQLite: 500 transactions of one row, with a rollback journal.
    SqliteRollback,
    /// SQLite: 2000 transactions of one row, with a write-ahead log that each syncs.
    SqliteWal,
    /// Redis: 20,000 SETs by eight clients, appendfsync always.
    RedisAof,
    /// git: a clone, a commit that changes every file, a check and a repack.
    Git,
    /// tar: 2000 small files unpacked and packed.
    Tar,
}

impl Program {
    /// The command without which there is nothing to measure.
    fn command(self) -> &'static str {
        match self {
            Program::SqliteRollback | Program::SqliteWal => "sqlite3",
            Program::RedisAof => "redis-benchmark",
            Program::Git => "git",
            Program::Tar => "tar",
        }
    }

    /// What is there before: its time does not count.
    fn prepared(self) -> &'static str {
        match self {
            Program::SqliteRollback => {
                "(echo 'CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT);'; for n in $(seq 500); do echo \"INSERT INTO t VALUES ($n, hex($n));\"; done) > script"
            }
            Program::SqliteWal => {
                "(echo 'PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT);'; \
                 for n in $(seq 2000); do echo \"INSERT INTO t VALUES ($n, hex($n));\"; done) > script"
            }
            Program::RedisAof => "true",
            Program::Git => {
                "mkdir from && cd from && git init -q -b main && for n in $(seq 400); do seq $n 400 > file$n; done && git add . && \
                 git -c user.name=a -c user.email=a commit -q -m one"
            }
            Program::Tar => {
                "mkdir from && for n in $(seq 2000); do seq $n $((n + 400)) > from/file$n; done && tar cf from.tar from && rm -r from"
            }
        }
    }

    /// What is timed.
    fn script(self) -> &'static str {
        match self {
            Program::SqliteRollback | Program::SqliteWal => "sqlite3 database < script",
            Program::RedisAof => {
                "redis-server --port 0 --unixsocket $PWD/socket --save '' --appendonly yes --appendfsync always --daemonize no > log & \
                 while ! redis-cli -s socket PING > answer 2>&1; do sleep 0.01; done; \
                 redis-benchmark -s socket -t set -n 20000 -c 8 -d 100 -q > log2 && redis-cli -s socket SHUTDOWN NOSAVE; wait"
            }
            Program::Git => {
                "git clone -q --no-hardlinks from to && cd to && for n in $(seq 400); do echo $n >> file$n; done && \
                 git -c user.name=a -c user.email=a commit -q -a -m two && git fsck --no-progress && git gc -q"
            }
            Program::Tar => "tar xf from.tar && tar cf again.tar from && tar df again.tar",
        }
    }
}

/// A program in all modes.
#[derive(Serialize)]
struct ProgramResult {
    program: Program,
    plain_seconds: f64,
    modes: Vec<ModeResult>,
}

#[derive(Serialize)]
struct ModeResult {
    mode: String,
    seconds: f64,
    /// How many times as fast as plain.
    speedup: f64,
}

/// Runs `vmio-bench programs`.
pub fn run(args: &ProgramsArgs) -> anyhow::Result<()> {
    let place = Place::in_dir(&args.dir)?;
    let names: Vec<String> = args.modes.iter().map(|mode| name(*mode)).collect();
    let mut heading = format!("{:<16} {:>9}", "program", "plain");
    names.iter().for_each(|mode| heading += &format!(" {mode:>9} ratio"));
    args.output.text(&heading)?;
    let mut results = Vec::new();
    for program in &args.programs {
        if !is_installed(program.command()) {
            args.output.text(&format!("{:<16} left out: {} is not installed", name(*program), program.command()))?;
            continue;
        }
        let mut times = vec![Vec::new(); 1 + names.len()];
        for _ in 0..args.rounds {
            for (mode, times) in [None].into_iter().chain(names.iter().map(Some)).zip(&mut times) {
                times.push(seconds(*program, mode.map(String::as_str), place.path())?);
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let plain = medians[0];
        let modes = names.iter().zip(&medians[1..]);
        let modes =
            modes.map(|(mode, seconds)| ModeResult { mode: mode.clone(), seconds: *seconds, speedup: plain / seconds });
        let result = ProgramResult { program: *program, plain_seconds: plain, modes: modes.collect() };
        let mut line = format!("{:<16} {plain:>7.3} s", name(*program));
        result.modes.iter().for_each(|mode| line += &format!(" {:>7.3} s {:>5.2}", mode.seconds, mode.speedup));
        args.output.text(&line)?;
        results.push(result);
    }
    args.output.results(&results)
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn is_installed(command: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {command}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// How long a program takes in a folder of its own.
fn seconds(program: Program, mode: Option<&str>, place: &Path) -> anyhow::Result<f64> {
    let folder = place.join("work");
    fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    finished(program, Command::new("sh").args(["-c", program.prepared()]), &folder)?;
    // What was prepared is not to be written in somebody's time.
    rustix::fs::syncfs(fs::File::open(&folder)?)?;
    let mut command = match mode {
        None => Command::new("sh"),
        Some(mode) => {
            let mut command = vmio_command::run()?;
            command.args(["--mode", mode, "--under"]).arg(&folder).args(["--", "sh"]);
            command
        }
    };
    let start = Instant::now();
    finished(program, command.args(["-c", program.script()]), &folder)?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_dir_all(&folder)?;
    Ok(seconds)
}

fn finished(program: Program, command: &mut Command, folder: &Path) -> anyhow::Result<()> {
    let output = command.current_dir(folder).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("{} failed ({}): {}", name(program), output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
