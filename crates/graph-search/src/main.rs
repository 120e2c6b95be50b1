//! `graph-search`: makes an R-MAT graph and searches it, and says how long that took.

use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use graph_search::{Graph, RmatShape, Search};

/// Make an R-MAT graph in memory and search it breadth-first
#[derive(Parser)]
struct Args {
    /// 2 to the power of this vertices
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=31))]
    scale: u32,
    /// Directed edges, beside vertices
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    edges_per_vertex: u32,
    /// Searches, each from another vertex
    #[arg(long, default_value_t = 3)]
    searches: usize,
    /// Threads; one for each core unless given
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Check the level of every vertex after each search
    #[arg(long)]
    check: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    rayon::ThreadPoolBuilder::new().num_threads(args.threads).build_global().context("cannot start the threads")?;
    let shape = RmatShape { scale: args.scale, edges_per_vertex: args.edges_per_vertex, seed: args.seed };
    let begun = Instant::now();
    let graph = Graph::from_edges(shape.vertices(), shape.edges());
    println!(
        "build: {} vertices, {} edges, {} MiB, {:.3} s",
        graph.vertices(),
        graph.edges(),
        graph.bytes() >> 20,
        begun.elapsed().as_secs_f64()
    );
    for source in graph.sources(args.searches, args.seed) {
        let begun = Instant::now();
        let search = Search::run(&graph, source);
        let took = begun.elapsed().as_secs_f64();
        println!("search from {source}: {} reached, {} levels, {took:.3} s", search.reached(), search.levels());
        if args.check {
            search.check(&graph)?;
            println!("check: every level is right");
        }
    }
    Ok(())
}
