//! The results in tables for people.

use vmio_report::table::Table;

use super::accesses::{AccessesResult, Waits};
use super::commits::CommitsResult;
use super::stores::StoreKind;
use super::{CommitResult, Found};

/// A table for each measure that has results.
pub(super) fn text(results: &[CommitResult]) -> String {
    let header = [
        "commits",
        "pages",
        "threads",
        "commits/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max ms",
        "KiB/commit",
        "writes/commit",
        "written/changed",
        "wrong",
    ];
    let mut commits = Table::new(&header);
    let mut accesses = Table::new(&[
        "accesses",
        "pages",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max ms",
        "commits",
        "commit p50 ms",
        "wrong",
    ]);
    let (mut has_commits, mut has_accesses) = (false, false);
    for result in results {
        match &result.found {
            Found::Commits(found) => {
                commits.row(commits_row(result, found));
                has_commits = true;
            }
            Found::Accesses(found) => {
                accesses.row(accesses_row(result, found, "loads", &found.loads));
                found.stores.iter().for_each(|waits| accesses.row(accesses_row(result, found, "stores", waits)));
                has_accesses = true;
            }
        }
    }
    let mut text = String::new();
    if has_commits {
        text.push_str(&commits.text());
        text.push_str(NOTE);
    }
    if has_accesses {
        text.push_str(if has_commits { "\n" } else { "" });
        text.push_str(&accesses.text());
    }
    text
}

const NOTE: &str = "written/changed: bytes that the block device wrote, by its own counters, for each byte changed\n";

fn commits_row(result: &CommitResult, found: &CommitsResult) -> Vec<String> {
    let each = |total: u64| total as f64 / found.commits as f64;
    let of_device = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    vec![
        name(result),
        result.pages.to_string(),
        result.threads.to_string(),
        format!("{:.0}", found.commits_per_s),
        format!("{:.0}", found.p50_us),
        format!("{:.0}", found.p99_us),
        format!("{:.0}", found.p999_us),
        format!("{:.1}", found.max_us / 1e3),
        of_device(found.device_writes.map(|device| each(device.bytes) / 1024.0)),
        of_device(found.device_writes.map(|device| each(device.requests))),
        of_device(found.write_amplification),
        result.verify_errors.to_string(),
    ]
}

fn accesses_row(result: &CommitResult, found: &AccessesResult, kind: &str, waits: &Waits) -> Vec<String> {
    vec![
        format!("{}, {kind}", name(result)),
        result.pages.to_string(),
        format!("{:.1}", waits.p50_us),
        format!("{:.1}", waits.p99_us),
        format!("{:.1}", waits.p999_us),
        format!("{:.2}", waits.max_us / 1e3),
        found.commits.to_string(),
        format!("{:.2}", found.commit_p50_us / 1e3),
        result.verify_errors.to_string(),
    ]
}

fn name(result: &CommitResult) -> String {
    match result.store {
        StoreKind::Mmap => "mmap + msync (not atomic)".to_owned(),
        store => store.name().to_owned(),
    }
}
