//! Measurements of one property each.

pub mod commit;
pub mod fetch;
pub mod fresh;
pub mod heap;
pub mod hit;
pub mod posix;
pub mod priority;
pub mod programs;
pub mod sync;
pub mod units;

use serde::de::DeserializeOwned;

use super::cgroup::MemoryCgroup;
use super::child::{self, Job, Task};
use super::device_cache::drop_page_cache;
use super::target::Target;

/// Runs one side of a scenario on a cold file.
fn run_side<R: DeserializeOwned>(what: &str, target: &Target, job: Job) -> anyhow::Result<R> {
    drop_page_cache(target.path())?;
    Ok(child::run(what, &Task { cgroup: None, job })?.0)
}

/// Runs Linux mmap's side in a memory cgroup, or says why it is left out.
fn run_side_in_cgroup<R: DeserializeOwned>(
    what: &str,
    target: &Target,
    budget_bytes: u64,
    job: Job,
) -> anyhow::Result<Result<R, String>> {
    let cgroup = match MemoryCgroup::create(budget_bytes) {
        Ok(cgroup) => cgroup,
        Err(error) => return Ok(Err(format!("Linux mmap is left out: {error:#}"))),
    };
    drop_page_cache(target.path())?;
    let task = Task { cgroup: Some(cgroup.path().to_owned()), job };
    Ok(Ok(child::run(what, &task)?.0))
}
