//! `vmio-bench files`: what a file system does for programs that have many files, by one thread or several.

mod calls;
mod profile;
mod share;
mod threads;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;
use vmio_measure::median::median;
use vmio_report::output::OutputArgs;
use vmio_report::table::Table;

use calls::CallKind;
use profile::Profile;
use threads::Done;

const EXAMPLES: &str = "\
Examples:
  vmio-bench files --folder /mnt
  vmio-bench files --folder /mnt --profiles varmail --threads 2 --secs 10
  vmio-bench files --folder /mnt --no-profiles --calls append,append-fsync --threads 1,2,4
  vmio run --mode posix --under /mnt -- vmio-bench files --folder /mnt

The profiles are those of filebench in small: its mixes of calls, its sizes of files, and a share of the files for each thread.
Each operation of a profile counts, as in filebench. The calls are made in a folder for each thread, unless their name says otherwise.
A wait is a voluntary context switch of the thread that calls. Figures are medians over the rounds.";

/// Measure operations on many files, by threads side by side.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct FilesArgs {
    /// Work in a new folder in this one, and remove it afterwards
    #[arg(long)]
    folder: PathBuf,
    /// Filebench's profiles
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["fileserver", "varmail", "webserver", "webproxy"])]
    profiles: Vec<ProfileName>,
    /// Measure no profile
    #[arg(long, conflicts_with = "profiles")]
    no_profiles: bool,
    /// Single calls
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["create", "open", "append", "append-fsync", "rename", "unlink"])]
    calls: Vec<CallKind>,
    /// Measure no single call
    #[arg(long, conflicts_with = "calls")]
    no_calls: bool,
    /// How many threads work side by side
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Vec<u8>,
    /// How long each profile runs
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// The files of a profile
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    files: u32,
    /// How often each thread makes a call
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// A profile's name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    Fileserver,
    Varmail,
    Webserver,
    Webproxy,
}

/// What is measured.
#[derive(Clone, Copy)]
enum Work {
    Profile(&'static Profile),
    Call(CallKind),
}

/// A piece of work by some threads.
#[derive(Serialize)]
struct FilesResult {
    work: &'static str,
    threads: u8,
    ops_per_s: f64,
    /// Voluntary context switches of the threads that call, for each operation.
    waits_per_op: f64,
}

impl ProfileName {
    fn profile(self) -> &'static Profile {
        match self {
            ProfileName::Fileserver => &profile::FILESERVER,
            ProfileName::Varmail => &profile::VARMAIL,
            ProfileName::Webserver => &profile::WEBSERVER,
            ProfileName::Webproxy => &profile::WEBPROXY,
        }
    }
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Profile(profile) => profile.name,
            Work::Call(kind) => kind.name(),
        }
    }

    /// Does it once in a folder that nobody else uses.
    fn once(self, args: &FilesArgs, folder: &Path, threads: u8) -> anyhow::Result<Done> {
        match self {
            Work::Profile(profile) => share::run(profile, folder, threads, args.files, args.secs),
            Work::Call(kind) => calls::run(kind, folder, threads, args.count),
        }
    }
}

/// Runs `vmio-bench files`.
pub fn run(args: &FilesArgs) -> anyhow::Result<()> {
    let inside = args.folder.join("files");
    fs::create_dir(&inside).with_context(|| format!("cannot make {}", inside.display()))?;
    let measured = measure(args, &inside);
    fs::remove_dir_all(&inside).with_context(|| format!("cannot remove {}", inside.display()))?;
    let results = measured?;
    args.output.text(&table(&args.threads, &results))?;
    args.output.results(&results)
}

fn measure(args: &FilesArgs, folder: &Path) -> anyhow::Result<Vec<FilesResult>> {
    let profiles = args.profiles.iter().filter(|_| !args.no_profiles).map(|name| Work::Profile(name.profile()));
    let calls = args.calls.iter().filter(|_| !args.no_calls).map(|kind| Work::Call(*kind));
    let mut results = Vec::new();
    for work in profiles.chain(calls) {
        for threads in &args.threads {
            let mut rounds = Vec::new();
            for _ in 0..args.rounds {
                let place = folder.join("round");
                fs::create_dir(&place)?;
                let done = work.once(args, &place, *threads).with_context(|| format!("{} fails", work.name()));
                fs::remove_dir_all(&place)?;
                rounds.push(done?);
            }
            results.push(FilesResult {
                work: work.name(),
                threads: *threads,
                ops_per_s: median(rounds.iter().map(Done::ops_per_s)),
                waits_per_op: median(rounds.iter().map(Done::waits_per_op)),
            });
        }
    }
    Ok(results)
}

fn table(threads: &[u8], results: &[FilesResult]) -> String {
    let columns = threads.iter().map(|count| format!("{count} threads, /s  waits"));
    let header: Vec<String> = ["work".to_owned()].into_iter().chain(columns).collect();
    let mut table = Table::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for row in results.chunks(threads.len()) {
        let cells = row.iter().map(|result| format!("{:.0}  {:5.2}", result.ops_per_s, result.waits_per_op));
        table.row([row[0].work.to_owned()].into_iter().chain(cells).collect());
    }
    table.text()
}
