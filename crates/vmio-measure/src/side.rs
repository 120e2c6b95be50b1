//! The two sides of a measurement that compares vmio with Linux mmap.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cgroup::MemoryCgroup;
use crate::child::{self, Task};
use crate::device_cache::drop_page_cache;
use crate::target::Target;

/// Runs one side of a scenario on a cold file.
pub fn run_side<R: DeserializeOwned>(what: &str, target: &Target, job: impl Serialize) -> anyhow::Result<R> {
    drop_page_cache(target.path())?;
    Ok(child::run(what, &Task { cgroup: None, job })?.0)
}

/// Runs Linux mmap's side in a memory cgroup, or says why it is left out.
pub fn run_side_in_cgroup<R: DeserializeOwned>(
    what: &str,
    target: &Target,
    budget_bytes: u64,
    job: impl Serialize,
) -> anyhow::Result<Result<R, String>> {
    let cgroup = match MemoryCgroup::create(budget_bytes) {
        Ok(cgroup) => cgroup,
        Err(error) => return Ok(Err(format!("Linux mmap is left out: {error:#}"))),
    };
    drop_page_cache(target.path())?;
    let task = Task { cgroup: Some(cgroup.path().to_owned()), job };
    Ok(Ok(child::run(what, &task)?.0))
}
