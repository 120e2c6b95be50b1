//! Scenarios beyond YCSB: long prefixes, deletes, queues, many keyspaces, a second opening, and recovery after a kill.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

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
    /// Deletes of the first half of all keys in order, with seeks in between to the first remaining key
    MassDelete,
    /// Load, updates, reads and scans in 300 keyspaces
    #[serde(alias = "regions")]
    #[value(alias = "regions")]
    Keyspaces,
    /// Opening after a load and a clean close
    Reopen,
    /// Opening after a process was killed during a load, with full memtables
    Recovery,
}

impl Scenario {
    /// The scenario's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefixes => "prefixes",
            Self::Deletes => "deletes",
            Self::Queue => "queue",
            Self::MassDelete => "mass-delete",
            Self::Keyspaces => "keyspaces",
            Self::Reopen => "reopen",
            Self::Recovery => "recovery",
        }
    }
}
