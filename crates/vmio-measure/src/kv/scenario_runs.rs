//! Runs scenarios.

use anyhow::Context;

use super::engine::EngineKind;
use super::records::RecordShape;
use super::reopen::{Crash, CrashSpec, ReopenResult, ReopenSpec};
use super::runner::{Outcome, Runner};
use super::scenario::Scenario;
use super::workload::Phase;
use crate::child::Killed;
use crate::place::Place;

const PREFIX_BYTES: u32 = 64;
const KEYSPACES: u32 = 300;

impl Runner {
    /// The runner for a scenario.
    pub fn for_scenario(&self, scenario: Scenario) -> Self {
        let ours =
            Self { scenario: Some(scenario), keyspaces: 1, phases: Vec::new(), page_traces: None, ..self.clone() };
        let in_order = RecordShape { in_order: true, ..self.shape };
        match scenario {
            Scenario::Prefixes => Self {
                shape: RecordShape { prefix_bytes: PREFIX_BYTES, ..self.shape },
                phases: vec![Phase::L, Phase::C, Phase::G],
                ..ours
            },
            Scenario::Deletes => Self { phases: vec![Phase::Delete, Phase::Seek], ..ours },
            // With one thread, the first record is known.
            Scenario::Queue => Self { shape: in_order, threads: 1, phases: vec![Phase::Queue], ..ours },
            Scenario::MassDelete => Self { shape: in_order, threads: 1, phases: vec![Phase::MassDelete], ..ours },
            Scenario::Keyspaces => {
                Self { keyspaces: KEYSPACES, phases: vec![Phase::L, Phase::A, Phase::C, Phase::G], ..ours }
            }
            // All records must be there for the check.
            Scenario::Reopen | Scenario::Recovery => Self { limit: None, ..ours },
        }
    }

    /// Runs this runner's scenario on a new store of an engine.
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
        self.run_child(&spec.load.setup, &format!("kv: {engine}, opening"), &spec)
    }

    fn recover(&self, engine: EngineKind, place: &Place) -> anyhow::Result<ReopenResult> {
        let folder = tempfile::tempdir_in(place.path()).context("cannot create a folder for a store")?;
        let note = tempfile::NamedTempFile::new().context("cannot create a file for what was loaded")?;
        let load = self.spec(engine, folder.path(), Phase::L);
        let setup = load.setup.clone();
        let crash = CrashSpec { load: load.clone(), note: note.path().to_owned() };
        match self.run_child(&setup, &format!("kv: {engine}, a load that is killed"), &crash) {
            Err(error) if error.is::<Killed>() => {
                // An empty file: the kernel killed the process for lack of memory, before its time.
                let Some(Crash { records, durable_records, memory_fill }) = Crash::noted(note.path()) else {
                    return Err(error);
                };
                let spec = ReopenSpec { load, records, durable_records, memory_fill };
                self.run_child(&setup, &format!("kv: {engine}, recovery"), &spec)
            }
            Err(error) => Err(error),
            Ok(()) => anyhow::bail!("{engine}: the load was not killed"),
        }
    }
}
