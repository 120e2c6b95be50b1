//! What YCSB does not ask: long prefixes, deletes, queues, many regions, opening again, and recovery after a kill.

use super::engine::EngineKind;
use anyhow::Context;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::records::RecordShape;
use super::reopen::{Crash, CrashSpec, ReopenResult, ReopenSpec};
use super::runner::{Outcome, Runner};
use super::workload::Phase;
use crate::child::Killed;
use crate::job::Job;
use crate::place::Place;

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Load, reads and scans of keys that share their first 64 bytes
    Prefixes,
    /// Deletes of the lower half of all keys, then seeks to where it begins
    Deletes,
    /// Puts at the end of a queue whose first record is taken
    Queue,
    /// Deletes of the first half of all keys in their order, with seeks between to the first that is left
    MassDelete,
    /// Load, updates, reads and scans in 300 regions
    Regions,
    /// Opening after a load and a clean close
    Reopen,
    /// Opening after a process was killed while it loaded, its levels in memory full
    Recovery,
}

const PREFIX_BYTES: u32 = 64;
const REGIONS: u32 = 300;

impl Scenario {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefixes => "prefixes",
            Self::Deletes => "deletes",
            Self::Queue => "queue",
            Self::MassDelete => "mass-delete",
            Self::Regions => "regions",
            Self::Reopen => "reopen",
            Self::Recovery => "recovery",
        }
    }
}

impl Runner {
    /// What it is for a scenario.
    pub fn for_scenario(&self, scenario: Scenario) -> Self {
        let ours = Self { scenario: Some(scenario), regions: 1, phases: Vec::new(), page_traces: None, ..self.clone() };
        let in_order = RecordShape { in_order: true, ..self.shape };
        match scenario {
            Scenario::Prefixes => Self {
                shape: RecordShape { prefix_bytes: PREFIX_BYTES, ..self.shape },
                phases: vec![Phase::L, Phase::C, Phase::G],
                ..ours
            },
            Scenario::Deletes => Self { phases: vec![Phase::Delete, Phase::Seek], ..ours },
            // One thread knows which record is the first.
            Scenario::Queue => Self { shape: in_order, threads: 1, phases: vec![Phase::Queue], ..ours },
            Scenario::MassDelete => Self { shape: in_order, threads: 1, phases: vec![Phase::MassDelete], ..ours },
            Scenario::Regions => {
                Self { regions: REGIONS, phases: vec![Phase::L, Phase::A, Phase::C, Phase::G], ..ours }
            }
            // All records have to be there to be looked for.
            Scenario::Reopen | Scenario::Recovery => Self { limit: None, ..ours },
        }
    }

    /// Runs the scenario that this runner is for on a new store of an engine.
    pub fn run_scenario(&self, engine: EngineKind, place: &Place, outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
        let opened = match self.scenario {
            Some(Scenario::Reopen) => self.reopen(engine, place),
            Some(Scenario::Recovery) => self.recover(engine, place),
            _ => return self.run_engine(engine, place, outcomes),
        };
        outcomes.push(match opened {
            Ok(result) => Outcome::Reopened(Box::new(result)),
            Err(error) => self.failure(engine, Phase::L, error)?,
        });
        Ok(())
    }

    fn reopen(&self, engine: EngineKind, place: &Place) -> anyhow::Result<ReopenResult> {
        let folder = tempfile::tempdir_in(place.path()).context("cannot create a folder for a store")?;
        let load = self.spec(engine, folder.path(), Phase::L);
        let loaded = self.measure_phase(&load)?;
        let spec = ReopenSpec { load, records: loaded.records, durable_records: loaded.records, memory_fill: None };
        self.run_child(&spec.load.setup.clone(), &format!("kv: {engine}, opening"), Job::KvReopen(spec))
    }

    fn recover(&self, engine: EngineKind, place: &Place) -> anyhow::Result<ReopenResult> {
        let folder = tempfile::tempdir_in(place.path()).context("cannot create a folder for a store")?;
        let note = tempfile::NamedTempFile::new().context("cannot create a file for what was loaded")?;
        let load = self.spec(engine, folder.path(), Phase::L);
        let setup = load.setup.clone();
        let crash = Job::KvCrash(CrashSpec { load: load.clone(), note: note.path().to_owned() });
        match self.run_child::<()>(&setup, &format!("kv: {engine}, a load that is killed"), crash) {
            Err(error) if error.is::<Killed>() => {
                // Nothing in it: it was killed for want of memory, before its time.
                let Some(Crash { records, durable_records, memory_fill }) = Crash::noted(note.path()) else {
                    return Err(error);
                };
                let spec = ReopenSpec { load, records, durable_records, memory_fill };
                self.run_child(&setup, &format!("kv: {engine}, recovery"), Job::KvReopen(spec))
            }
            Err(error) => Err(error),
            Ok(()) => anyhow::bail!("{engine}: the load was not killed"),
        }
    }
}
