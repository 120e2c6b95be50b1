//! The two sides of a measurement that compares vmio with Linux mmap.

use crate::cgroup::MemoryCgroup;
use crate::child::{self, Spec};
use crate::device_cache::drop_page_cache;
use crate::target::Target;

/// Runs one side of a scenario on a cold file.
pub fn run_side<S: Spec>(what: &str, target: &Target, spec: &S) -> anyhow::Result<S::Found> {
    drop_page_cache(target.path())?;
    Ok(child::run(what, None, spec)?.0)
}

/// Runs Linux mmap's side in a memory cgroup, or returns the reason why it is left out.
pub fn run_side_in_cgroup<S: Spec>(
    what: &str,
    target: &Target,
    budget_bytes: u64,
    spec: &S,
) -> anyhow::Result<Result<S::Found, String>> {
    let cgroup = match MemoryCgroup::create(budget_bytes) {
        Ok(cgroup) => cgroup,
        Err(error) => return Ok(Err(format!("Linux mmap is left out: {error:#}"))),
    };
    drop_page_cache(target.path())?;
    Ok(Ok(child::run(what, Some(&cgroup), spec)?.0))
}
