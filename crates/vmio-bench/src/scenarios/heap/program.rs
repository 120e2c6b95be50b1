//! The program that is measured: it searches a graph in plain vectors, wherever these lie.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use graph_search::{Graph, RmatShape, Search};
use serde::{Deserialize, Serialize};
use vmio_measure::child::{self, Spec};
use vmio_measure::process::Usage;

use crate::vmio_command;

/// What the child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeapSpec {
    /// There are 2 to the power of this vertices.
    pub scale: u32,
    /// Directed edges, beside vertices.
    pub edges_per_vertex: u32,
    /// Each from another vertex.
    pub searches: usize,
    /// Of the program.
    pub threads: usize,
    /// Has its heap there; otherwise it is the C library's.
    pub heap: Option<HeapFile>,
}

/// The options of `vmio run --heap`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeapFile {
    /// Where it is made.
    pub path: PathBuf,
    /// Whose it is.
    pub engine: String,
    /// How much of it is in memory.
    pub cache_bytes: u64,
    /// How much can be allocated.
    pub heap_bytes: u64,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeapRun {
    /// Of making the graph.
    pub build_s: f64,
    /// Of each search.
    pub search_s: Vec<f64>,
    /// Vertices that each has reached.
    pub reached: Vec<u64>,
    /// Faults of all searches that had to read.
    pub major_faults: u64,
    /// Time of processors that all searches took.
    pub cpu_s: f64,
}

impl Spec for HeapSpec {
    const NAME: &'static str = "heap";
    type Found = HeapRun;
}

/// The child's side. With a heap in a file it becomes `vmio run --heap`, and then itself again with this heap: so the heap is
/// made within the child's memory cgroup.
pub fn measure(spec: &HeapSpec) -> anyhow::Result<HeapRun> {
    if let Some(heap) = &spec.heap {
        return Err(become_run(heap, spec));
    }
    rayon::ThreadPoolBuilder::new().num_threads(spec.threads).build_global().context("cannot start the threads")?;
    let shape = RmatShape { scale: spec.scale, edges_per_vertex: spec.edges_per_vertex, seed: 1 };
    let begun = Instant::now();
    let graph = Graph::from_edges(shape.vertices(), shape.edges());
    let build_s = begun.elapsed().as_secs_f64();
    let sources = graph.sources(spec.searches, shape.seed);
    ensure!(sources.len() == spec.searches, "the graph has no edges");
    let before = Usage::now()?;
    let (mut search_s, mut reached, mut last) = (Vec::new(), Vec::new(), None);
    for source in sources {
        let begun = Instant::now();
        let search = Search::run(&graph, source);
        search_s.push(begun.elapsed().as_secs_f64());
        reached.push(search.reached());
        last = Some(search);
    }
    let used = Usage::now()?.since(&before);
    if let Some(search) = last {
        search.check(&graph).context("a search has gone wrong: the figures are worth nothing; please report this")?;
    }
    Ok(HeapRun { build_s, search_s, reached, major_faults: used.major_faults, cpu_s: used.cpu_s })
}

/// Returns only if it cannot.
fn become_run(heap: &HeapFile, spec: &HeapSpec) -> anyhow::Error {
    let attempt = || -> anyhow::Result<Command> {
        let within = HeapSpec { heap: None, ..spec.clone() };
        let mut command = vmio_command::run()?;
        command.args(["--heap-engine", &heap.engine, "--cache", &heap.cache_bytes.to_string()]);
        command.args(["--heap-size", &heap.heap_bytes.to_string(), "--heap"]).arg(&heap.path);
        command.arg("--").arg(child::itself()?).args(child::arguments(None, &within)?);
        Ok(command)
    };
    match attempt() {
        Ok(mut command) => anyhow::Error::new(command.exec()).context("cannot start vmio run --heap"),
        Err(error) => error,
    }
}
