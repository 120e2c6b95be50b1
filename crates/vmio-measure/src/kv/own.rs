//! `vmio kv bench`: measures a vmio-kv store on the user's disk.

use std::path::PathBuf;

use clap::Args;
use vmio_report::output::OutputArgs;
use vmio_report::size::parse_size;

use super::engine::EngineKind;
use super::records::{KEY_BYTES_MIN, RecordShape, VALUE_BYTES_MIN};
use super::runner::Runner;
use super::workload::{Durability, Phase, SCAN_RECORDS};
use super::{check_memory, finish};
use crate::place::Place;

/// Options of `vmio kv bench`.
#[derive(Args)]
pub struct OwnBenchArgs {
    /// Folder to work in; the new folder in it is removed afterwards
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Records to put, then to read; a twentieth of them for scans
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Bytes per value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(i64::from(VALUE_BYTES_MIN)..=1 << 20))]
    value_bytes: u32,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Memory of the process, page cache included
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    memory: u64,
    /// When writes are durable
    #[arg(long, value_enum, default_value_t = Durability::Periodic)]
    durability: Durability,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `vmio kv bench`.
pub fn run_own(args: &OwnBenchArgs) -> anyhow::Result<()> {
    check_memory(args.memory)?;
    let shape =
        RecordShape { key_bytes: KEY_BYTES_MIN, value_bytes: args.value_bytes, prefix_bytes: 0, in_order: false };
    let runner = Runner {
        scenario: None,
        phases: vec![Phase::L, Phase::C, Phase::G],
        records: args.records,
        shape,
        keyspaces: 1,
        ops: None,
        threads: args.threads,
        memory_bytes: args.memory,
        filter_bytes: 0,
        distribution: None,
        absent_percent: 0,
        scan_records: SCAN_RECORDS,
        durability: args.durability,
        limit: None,
        trace: None,
        page_traces: None,
        output: args.output.clone(),
    };
    let place = Place::in_dir(&args.dir)?;
    let mut outcomes = Vec::new();
    runner.run_engine(EngineKind::Vmio, &place, &mut outcomes)?;
    finish(&runner, &place, &outcomes)
}
