//! `vmio sim` as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn sim(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_vmio")).arg("sim").args(arguments).output()
}

fn misses(results: &Value, policy: &str) -> Option<u64> {
    let results = results.as_array()?;
    results.iter().find(|result| result["policy"] == policy)?["misses"].as_u64()
}

#[test]
fn a_trace_is_replayed_through_all_policies() -> Result<(), Box<dyn std::error::Error>> {
    let trace = tempfile::NamedTempFile::new()?;
    // Twice through 1000 pages, of which 256 fit: LRU keeps none of them until they are wanted again.
    let pages: String = (0..2).flat_map(|_| 0..1000).map(|page| format!("{page}\n")).collect();
    std::fs::write(trace.path(), pages)?;
    let path = trace.path().to_str().ok_or("a path")?;
    let output = sim(&["--trace", path, "--cache", "1M", "--json", "-"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(misses(&results, "LRU"), Some(2000));
    assert_eq!(misses(&results, "optimum (Belady)"), Some(2000 - 256));
    for policy in ["vmio keep-refaulted", "vmio fifo", "CLOCK", "ARC", "S3-FIFO"] {
        let misses = misses(&results, policy);
        assert!(misses.is_some_and(|misses| (2000 - 256..=2000).contains(&misses)), "{policy}: {misses:?}");
    }
    Ok(())
}

#[test]
fn a_table_has_a_column_for_each_cache() -> Result<(), Box<dyn std::error::Error>> {
    let output = sim(&["--synthetic", "scan-hot", "--pages", "2000", "--accesses", "20000", "--cache", "2M,4M"])?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success() && text.contains("miss % 2 MiB  miss % 4 MiB"), "{text}");
    assert!(text.starts_with("20000 accesses to 2000 pages (7.8 MiB)"), "{text}");
    assert_eq!(text.lines().count(), 2 + 1 + 7, "{text}");
    Ok(())
}

#[test]
fn what_cannot_be_replayed_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let trace = tempfile::NamedTempFile::new()?;
    std::fs::write(trace.path(), "1\ntwo\n")?;
    let path = trace.path().to_str().ok_or("a path")?;
    for (arguments, message) in [
        (&["--trace", path, "--cache", "1M"][..], "\"two\" in line 2 of"),
        (&["--trace", "/nowhere/at/all", "--cache", "1M"], "cannot open the trace /nowhere/at/all"),
        (&["--synthetic", "zipf", "--cache", "4K"], "less than 1 MiB"),
        (&["--synthetic", "sometimes", "--cache", "1M"], "is not a pattern"),
        (&["--cache", "1M"], "--trace"),
    ] {
        let output = sim(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(message), "{arguments:?}: {error}");
    }
    Ok(())
}
