//! `vmio-bench heap`: a program that needs more memory than there is, with its heap in a file, over a plain mapping and on swap.

mod program;

use anyhow::bail;
use clap::{Args, ValueEnum};
use serde::Serialize;
use vmio_heap::HeapEngine;
use vmio_measure::cgroup::MemoryCgroup;
use vmio_measure::child::{self, Killed};
use vmio_measure::median::median;
use vmio_measure::place::{Place, PlaceArgs};
use vmio_report::output::OutputArgs;
use vmio_report::size::{format_size, parse_size};

use self::program::{HeapFile, HeapRun};
use crate::swap::SwapDevice;

pub use self::program::{HeapSpec, measure};

const EXAMPLES: &str = "\
Examples:
  vmio-bench heap
  vmio-bench heap --device zram --scale 22 --searches 20 --rounds 3
  vmio-bench heap --dir /data --sides memory,vmio --memory 64M --json heap.json

The program makes an R-MAT graph in plain vectors and searches it breadth-first, as Ligra does. It is the same on each side, in a memory
cgroup of the same limit, by default a quarter of what the graph takes. The sides take turns; a time is the median of all
searches. The levels that the last search of each run has found are checked.

Sides:
  memory      without a limit, for comparison
  vmio        its heap in a file, by vmio run --heap with a cache of seven eighths of the memory
  mmap        the same allocator over a plain shared mapping of the file
  swap        no heap in a file: the kernel swaps to a zram device (needs root)";

/// Measure a program whose heap is larger than memory, beside a Linux mmap heap and swap.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct HeapArgs {
    /// The graph has 2 to the power of this vertices
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(10..=31))]
    scale: u32,
    /// Directed edges, beside vertices
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    edges_per_vertex: u32,
    /// Searches of each run, each from another vertex
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    searches: u32,
    /// Runs of each side
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Threads of the program
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Memory of each side but the first; a quarter of what the graph takes, unless given
    #[arg(long, value_parser = parse_size)]
    memory: Option<u64>,
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SIDES", default_values_t = Side::value_variants().to_vec())]
    sides: Vec<Side>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What may be the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Side {
    /// Without a limit, for comparison
    Memory,
    /// Its heap in a file, by vmio run --heap
    Vmio,
    /// The same allocator over a plain shared mapping of the file
    Mmap,
    /// No heap in a file: the kernel swaps
    Swap,
}

/// What came of a side.
#[derive(Debug, Serialize)]
struct HeapResult {
    side: Side,
    graph_bytes: u64,
    /// None where there was no limit.
    memory_bytes: Option<u64>,
    threads: u32,
    /// The median of the runs.
    build_s: f64,
    /// The median of all searches.
    search_s: f64,
    /// Each of them, run by run.
    searches_s: Vec<f64>,
    /// Of a search, by the mean.
    major_faults: f64,
    cpu_s: f64,
    /// How many times as many searches as with the Linux mmap heap, in the same time.
    beside_linux_mmap: Option<f64>,
}

/// What the heap's cache gets of the memory: with less to spare the kernel evicts before vmio does, and evicts worse.
const CACHE_EIGHTHS: u64 = 7;
/// Less holds no program.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Runs `vmio-bench heap`.
pub fn run(args: &HeapArgs) -> anyhow::Result<()> {
    let bench = HeapBench::new(args)?;
    args.output.text(&format!(
        "A graph of {} and {} of memory, {} threads, {} searches in each of {} runs, on {}",
        format_size(args.graph_bytes()),
        format_size(bench.memory_bytes),
        args.threads,
        args.searches,
        args.rounds,
        bench.place.description()
    ))?;
    let mut runs: Vec<(Side, Vec<HeapRun>)> = args.sides.iter().map(|side| (*side, Vec::new())).collect();
    for _ in 0..args.rounds {
        let mut gone = Vec::new();
        for (side, done) in &mut runs {
            match bench.run(*side)? {
                Ok(run) => done.push(run),
                Err(why) => {
                    eprintln!("{} is left out: {why}", side.name());
                    gone.push(*side);
                }
            }
        }
        runs.retain(|(side, _)| !gone.contains(side));
    }
    let reached: Vec<_> = runs.iter().flat_map(|(_, runs)| runs.iter().map(|run| &run.reached)).collect();
    if reached.iter().any(|other| *other != reached[0]) {
        bail!("the sides have not reached the same: the figures are worth nothing; please report this");
    }
    let results = bench.results(&runs);
    args.output.text(&table(&results))?;
    args.output.results(&results)
}

/// What all runs share.
struct HeapBench<'a> {
    args: &'a HeapArgs,
    memory_bytes: u64,
    heap_bytes: u64,
    place: Place,
}

impl HeapArgs {
    fn graph_bytes(&self) -> u64 {
        let vertices = 1 << self.scale;
        // In both directions a start for each vertex and a neighbour for each edge.
        2 * vertices * (8 + 4 * u64::from(self.edges_per_vertex))
    }
}

impl<'a> HeapBench<'a> {
    fn new(args: &'a HeapArgs) -> anyhow::Result<Self> {
        let memory_bytes = args.memory.unwrap_or((args.graph_bytes() / 4).max(MEMORY_BYTES_MIN));
        if memory_bytes < MEMORY_BYTES_MIN {
            bail!("--memory {memory_bytes}: the program works in {} at least", format_size(MEMORY_BYTES_MIN));
        }
        // While it is made, the edges take as much again, and blocks leave gaps.
        let heap_bytes = 4 * args.graph_bytes() + (256 << 20);
        let place = args.place.prepare(heap_bytes + (1 << 30))?;
        Ok(Self { args, memory_bytes, heap_bytes, place })
    }

    /// One run of a side, or why it is left out.
    fn run(&self, side: Side) -> anyhow::Result<Result<HeapRun, String>> {
        let heap = side.engine().map(|engine| HeapFile {
            path: self.place.path().join("heap"),
            engine: engine.name().to_owned(),
            cache_bytes: self.memory_bytes / 8 * CACHE_EIGHTHS,
            heap_bytes: self.heap_bytes,
        });
        let spec = HeapSpec {
            scale: self.args.scale,
            edges_per_vertex: self.args.edges_per_vertex,
            searches: self.args.searches as usize,
            threads: self.args.threads as usize,
            heap,
        };
        let cgroup = match side {
            Side::Memory => None,
            _ => match MemoryCgroup::create(self.memory_bytes) {
                Ok(cgroup) => Some(cgroup),
                // Its cache is a limit of its own.
                Err(_) if side == Side::Vmio => None,
                Err(error) => return Ok(Err(format!("{error:#}"))),
            },
        };
        let _swap = match side {
            Side::Swap => match SwapDevice::on_zram(self.heap_bytes) {
                Ok(swap) => Some(swap),
                Err(error) => return Ok(Err(format!("{error:#}"))),
            },
            _ => None,
        };
        match child::run(side.name(), cgroup.as_ref(), &spec) {
            Ok((run, _)) => Ok(Ok(run)),
            // The kernel does so with swap, too, though there is room.
            Err(error) if error.is::<Killed>() => Ok(Err(format!("{error:#}"))),
            Err(error) => Err(error),
        }
    }

    fn results(&self, runs: &[(Side, Vec<HeapRun>)]) -> Vec<HeapResult> {
        let searches = |runs: &[HeapRun]| runs.iter().flat_map(|run| run.search_s.clone()).collect::<Vec<_>>();
        let linux = runs.iter().find(|(side, _)| *side == Side::Mmap);
        let linux_s = linux.map(|(_, runs)| median(searches(runs)));
        let result = |(side, runs): &(Side, Vec<HeapRun>)| {
            let searches_s = searches(runs);
            let each = |total: f64| total / searches_s.len() as f64;
            let search_s = median(searches_s.iter().copied());
            HeapResult {
                side: *side,
                graph_bytes: self.args.graph_bytes(),
                memory_bytes: (*side != Side::Memory).then_some(self.memory_bytes),
                threads: self.args.threads,
                build_s: median(runs.iter().map(|run| run.build_s)),
                search_s,
                major_faults: each(runs.iter().map(|run| run.major_faults as f64).sum()),
                cpu_s: each(runs.iter().map(|run| run.cpu_s).sum()),
                beside_linux_mmap: linux_s.map(|linux_s| linux_s / search_s),
                searches_s,
            }
        };
        runs.iter().map(result).collect()
    }
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Memory => "memory",
            Side::Vmio => "vmio",
            Side::Mmap => "mmap",
            Side::Swap => "swap",
        }
    }

    /// Of the heap's file, if there is one.
    fn engine(self) -> Option<HeapEngine> {
        match self {
            Side::Vmio => Some(HeapEngine::Managed),
            Side::Mmap => Some(HeapEngine::Mmap),
            Side::Memory | Side::Swap => None,
        }
    }
}

fn table(results: &[HeapResult]) -> String {
    let mut lines = vec![
        "side          build, s   search, s   fastest   slowest   CPU, s   major faults         x mmap".to_owned(),
    ];
    for result in results {
        let fastest = result.searches_s.iter().copied().fold(f64::INFINITY, f64::min);
        let slowest = result.searches_s.iter().copied().fold(0.0, f64::max);
        let ratio = result.beside_linux_mmap.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        lines.push(format!(
            "{:<12} {:>9.1} {:>11.3} {:>9.3} {:>9.3} {:>8.3} {:>14.0} {:>14}",
            result.side.name(),
            result.build_s,
            result.search_s,
            fastest,
            slowest,
            result.cpu_s,
            result.major_faults,
            ratio
        ));
    }
    lines.join("\n")
}
