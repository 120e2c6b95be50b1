//! Runs phases on the stores of engines, each in its own process.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use vmio_report::output::OutputArgs;

use super::engine::{EngineKind, Setup};
use super::records::RecordShape;
use super::reopen::ReopenResult;
use super::scenario::Scenario;
use super::spec::{KvResult, KvSpec};
use super::workload::{Distribution, Durability, Phase};
use crate::block_trace::TraceBuffers;
use crate::cgroup::MemoryCgroup;
use crate::child::{self, Killed, Spec};
use crate::device_cache::drop_page_caches;
use crate::place::Place;

/// The runs of each engine.
#[derive(Clone)]
pub struct Runner {
    /// The scenario, if it is not YCSB alone.
    pub scenario: Option<Scenario>,
    /// The phases in this order, after a load in any case.
    pub phases: Vec<Phase>,
    pub records: u64,
    pub shape: RecordShape,
    pub keyspaces: u32,
    /// Operations of a phase after the load, if given.
    pub ops: Option<u64>,
    pub threads: u32,
    pub memory_bytes: u64,
    /// The part of the memory for vmio-kv's leaf filters.
    pub filter_bytes: u64,
    /// The distribution; by default that of YCSB's phase.
    pub distribution: Option<Distribution>,
    /// Percentage of reads that look for absent records.
    pub absent_percent: u32,
    /// Records of a scan, at most.
    pub scan_records: u64,
    pub durability: Durability,
    /// Time limit of a phase.
    pub limit: Option<Duration>,
    /// Buffers for a trace of the device's requests; `None` without permission.
    pub trace: Option<Rc<TraceBuffers>>,
    /// The folder for the pages that vmio-kv touches, one file for each phase.
    pub page_traces: Option<PathBuf>,
    pub output: OutputArgs,
}

/// Result of a phase or a scenario.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    Measured(Box<KvResult>),
    Reopened(Box<ReopenResult>),
    Failed(KvFailure),
}

/// An engine that did not complete a phase; its later phases are skipped.
#[derive(Debug, Serialize)]
pub struct KvFailure {
    pub engine: EngineKind,
    pub scenario: Option<Scenario>,
    pub phase: Phase,
    pub failure: String,
}

impl Outcome {
    pub fn measured(&self) -> Option<&KvResult> {
        match self {
            Self::Measured(result) => Some(result),
            _ => None,
        }
    }

    pub fn reopened(&self) -> Option<&ReopenResult> {
        match self {
            Self::Reopened(result) => Some(result),
            _ => None,
        }
    }

    pub fn failed(&self) -> Option<&KvFailure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Records that were missing or wrong.
    pub fn errors(&self) -> u64 {
        self.measured().map_or(0, |run| run.errors) + self.reopened().map_or(0, |run| run.errors)
    }
}

impl Runner {
    /// Operations of a phase.
    pub fn ops(&self, phase: Phase) -> u64 {
        const RECORDS_A_SCAN: u64 = 20;
        match phase {
            Phase::L | Phase::Delete | Phase::MassDelete => self.records,
            _ if phase.scans() => self.ops.unwrap_or(self.records.div_ceil(RECORDS_A_SCAN)),
            _ => self.ops.unwrap_or(self.records),
        }
    }

    /// About how many bytes of keys and values all phases write, including warm-ups.
    pub fn written_bytes(&self) -> u64 {
        let later = self.phases.iter().filter(|&&phase| phase != Phase::L && phase.writes());
        let ops: u64 = later.map(|&phase| self.ops(phase)).sum();
        (self.records + ops + ops / 4) * self.shape.bytes()
    }

    /// Runs the phases on a new store of an engine.
    pub fn run_engine(&self, engine: EngineKind, place: &Place, outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
        let folder = tempfile::tempdir_in(place.path()).context("cannot create a folder for a store")?;
        let later = self.phases.iter().filter(|&&phase| phase != Phase::L);
        let (mut records, mut deletes_stopped) = (self.records, false);
        for &phase in std::iter::once(&Phase::L).chain(later) {
            if phase == Phase::Seek && deletes_stopped {
                let failure = format!(
                    "{engine}, {phase}: --phase-limit stopped the deletes before, so that some of the keys are left"
                );
                outcomes.push(Outcome::Failed(KvFailure { engine, scenario: self.scenario, phase, failure }));
                return Ok(());
            }
            let spec = KvSpec { records, ..self.spec(engine, folder.path(), phase) };
            match self.measure_phase(&spec) {
                Ok(result) => {
                    records = result.records;
                    deletes_stopped |= phase == Phase::Delete && result.stopped;
                    if phase != Phase::L || self.phases.contains(&phase) {
                        outcomes.push(Outcome::Measured(Box::new(result)));
                    }
                }
                Err(error) => {
                    outcomes.push(self.failure(engine, phase, error)?);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// An engine that fails in little memory is a result. Other failures are errors.
    pub fn failure(&self, engine: EngineKind, phase: Phase, error: anyhow::Error) -> anyhow::Result<Outcome> {
        if !error.is::<Killed>() {
            return Err(error);
        }
        Ok(Outcome::Failed(KvFailure { engine, scenario: self.scenario, phase, failure: format!("{error:#}") }))
    }

    /// A phase on the store in a folder.
    pub fn spec(&self, engine: EngineKind, folder: &Path, phase: Phase) -> KvSpec {
        let setup = Setup {
            folder: folder.to_owned(),
            memory_bytes: self.memory_bytes,
            data_bytes: self.records * self.shape.bytes(),
            written_bytes: self.written_bytes(),
            keyspaces: self.keyspaces,
            sync_writes: self.durability == Durability::Sync,
            puts_in_order: self.shape.in_order,
            filter_bytes: self.filter_bytes,
            page_trace: self.page_traces.as_ref().map(|folder| folder.join(format!("{phase}.pages"))),
        };
        KvSpec {
            engine,
            setup,
            scenario: self.scenario,
            phase,
            distribution: self.distribution.unwrap_or_else(|| phase.default_distribution()),
            absent_percent: if phase.reads() { self.absent_percent } else { 0 },
            scan_records: self.scan_records,
            records: self.records,
            shape: self.shape,
            ops: self.ops(phase),
            threads: self.threads,
            durability: self.durability,
            limit: self.limit,
            trace: self.trace.as_ref().map(|buffers| buffers.path().to_owned()),
        }
    }

    pub fn measure_phase(&self, spec: &KvSpec) -> anyhow::Result<KvResult> {
        self.run_child(&spec.setup, &format!("kv: {}, {}", spec.engine, spec.phase), spec)
    }

    /// Measures a store in a process with the given memory, on a cold page cache.
    pub fn run_child<S: Spec>(&self, setup: &Setup, what: &str, spec: &S) -> anyhow::Result<S::Found> {
        let cgroup = MemoryCgroup::create_or_tell(self.memory_bytes, what, &self.output)?;
        // So that every phase begins with reads from the device.
        drop_page_caches(&setup.folder)?;
        Ok(child::run(what, cgroup.as_ref(), spec)?.0)
    }
}
