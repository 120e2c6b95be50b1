//! Helpers of vmio's own tests, which these use as well.
#![allow(dead_code, reason = "vmio's own tests need all of it")]

#[path = "../../../vmio/tests/support/child.rs"]
pub mod child;
#[path = "../../../vmio/tests/support/denial.rs"]
pub mod denial;
#[path = "../../../vmio/tests/support/engine.rs"]
mod engine;
pub mod failing_file;
pub mod gate;
#[path = "../../../vmio/tests/support/memory_group.rs"]
pub mod memory_group;
#[path = "../../../vmio/tests/support/random.rs"]
mod random;
#[path = "../../../vmio/tests/support/simulated_disk.rs"]
pub mod simulated_disk;

pub use engine::engine;
pub use random::Random;

use vmio::backing::Backing;
use vmio_kv::{Finding, Options, Report, check_on};

/// The default options, with the engine that this run of the suite is about. Small records move into leaves, however few they are.
pub fn options() -> Options {
    Options::new().engine(engine()).values_in_leaves(true).values_in_leaves_from(64)
}

/// Checks that nothing is wrong with the volume on a backing, and that no block is lost. Of the log a crash may leave a reserved chunk.
pub fn assert_sound(backing: impl Backing + 'static, options: &Options, when: &str) -> Report {
    let report = check_on(backing, options, |_| {}).unwrap();
    assert!(report.is_clean(), "{when}: {}", listed(&report.problems));
    let leaked = report.leaked_blocks - 512 * report.leaked_chunks;
    assert_eq!(leaked, 0, "{when}: {}", listed(&report.notes));
    report
}

/// In one line: a run that prints more than the first one says what it found.
fn listed(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
