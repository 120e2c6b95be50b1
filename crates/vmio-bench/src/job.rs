//! The measurements of this program, each in a process of its own: its own, and those that it shares with `vmio bench`.

use std::path::PathBuf;

use kv_peers::Peers;
use serde::Deserialize;
use vmio_measure::{child, job};

use crate::scenarios::{commit, fetch, fresh, heap, hit, posix, sync, units};

/// What a child process may measure, by the names of the specs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// `hit`.
    Hit(hit::HitSpec),
    /// One side of `fresh`.
    Fresh(fresh::FreshSpec),
    /// One side of `sync`.
    Sync(sync::SyncSpec),
    /// One side of `fetch`.
    Fetch(fetch::FetchSpec),
    /// One run of `commit`.
    Commit(commit::CommitSpec),
    /// One kind of unit at one kind of work of `units`.
    Units(units::UnitsSpec),
    /// One pattern of `posix`, on either side.
    Posix(posix::PosixSpec),
    /// One run of one side of `heap`.
    Heap(heap::HeapSpec),
}

/// A job of either kind, as a task has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum AnyJob {
    Own(Job),
    Shared(job::Job),
}

/// The child's side.
pub fn serve(task: &str) -> anyhow::Result<()> {
    child::serve(task, |job, cgroup: Option<PathBuf>| match job {
        AnyJob::Own(job) => job.measure(),
        AnyJob::Shared(job) => job.measure(cgroup, &Peers),
    })
}

impl Job {
    fn measure(&self) -> anyhow::Result<String> {
        let result = match self {
            Job::Hit(spec) => serde_json::to_string(&hit::measure(spec)?),
            Job::Fresh(spec) => serde_json::to_string(&fresh::measure(spec)?),
            Job::Sync(spec) => serde_json::to_string(&sync::measure(spec)?),
            Job::Fetch(spec) => serde_json::to_string(&fetch::measure(spec)?),
            Job::Commit(spec) => serde_json::to_string(&commit::measure(spec)?),
            Job::Units(spec) => serde_json::to_string(&units::measure(spec)?),
            Job::Posix(spec) => serde_json::to_string(&posix::measure(spec)?),
            Job::Heap(spec) => serde_json::to_string(&heap::measure(spec)?),
        };
        Ok(result?)
    }
}
