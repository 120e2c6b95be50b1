//! `vmio sim` from the user's side.

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
    // Two passes over 1000 pages, of which 256 fit: LRU keeps none until its next access.
    let pages: String = (0..2).flat_map(|_| 0..1000).map(|page| format!("{page}\n")).collect();
    std::fs::write(trace.path(), pages)?;
    let path = trace.path().to_str().ok_or("a path")?;
    let output = sim(&["--trace", path, "--cache", "1M", "--json", "-"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(misses(&results, "LRU"), Some(2000));
    assert_eq!(misses(&results, "optimum (Belady)"), Some(2000 - 256));
    for policy in [
        "vmio keep-refaulted",
        "vmio s3-fifo (the default)",
        "vmio s3-fifo by page, mixed",
        "vmio fifo",
        "CLOCK",
        "ARC",
        "S3-FIFO",
    ] {
        let misses = misses(&results, policy);
        // With vmio's own policies, the evictor may take a page before the missing thread looks, which then misses again.
        assert!(misses.is_some_and(|misses| (2000 - 256..=2020).contains(&misses)), "{policy}: {misses:?}");
    }
    Ok(())
}

#[test]
fn a_table_has_a_column_for_each_cache() -> Result<(), Box<dyn std::error::Error>> {
    let output = sim(&["--synthetic", "scan-hot", "--pages", "2000", "--accesses", "20000", "--cache", "2M,4M"])?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success() && text.contains("miss % 2 MiB") && text.contains("miss % 4 MiB"), "{text}");
    assert!(text.starts_with("20000 accesses to 2000 pages (7.8 MiB)"), "{text}");
    assert_eq!(text.lines().count(), 2 + 1 + 12, "{text}");
    Ok(())
}

#[test]
fn chosen_policies_are_plotted_over_shares_of_the_pages() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    for name in ["misses.svg", "misses.html"] {
        let file = folder.path().join(name);
        let path = file.to_str().ok_or("a path")?;
        let trace = ["--synthetic", "uniform", "--pages", "4000", "--accesses", "40000", "--cache", "10%,50%,25%"];
        let output = sim(&[&trace[..], &["--policy", "lru,optimum", "--report", path]].concat())?;
        let text = String::from_utf8(output.stdout)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("miss % 10%  miss % 50%  miss % 25%"), "{text}");
        assert_eq!(text.lines().count(), 2 + 1 + 2 + 1, "{text}");
        let drawing = std::fs::read_to_string(&file)?;
        let drawing = roxmltree::Document::parse_with_options(
            &drawing,
            roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() },
        )?;
        let curves: Vec<_> = drawing.descendants().filter(|node| node.has_attribute("data-policy")).collect();
        assert_eq!(curves.iter().filter_map(|node| node.attribute("data-policy")).count(), 2);
        for curve in curves {
            let points: Vec<f64> = curve.attribute("d").ok_or("a path")?[1..]
                .split('L')
                .filter_map(|point| point.split_once(' ')?.1.parse().ok())
                .collect();
            // The larger the cache, the fewer misses: further down.
            assert!(points.len() == 3 && points.is_sorted(), "{points:?}");
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_replayed_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let trace = tempfile::NamedTempFile::new()?;
    std::fs::write(trace.path(), "1\ntwo\n")?;
    let path = trace.path().to_str().ok_or("a path")?;
    for (arguments, message) in [
        (&["--trace", path, "--cache", "1M"][..], "line 2: \"two\" is not a page number"),
        (&["--trace", "/nowhere/at/all", "--cache", "1M"], "cannot open the trace /nowhere/at/all"),
        (&["--synthetic", "zipf", "--cache", "4K"], "it must be at least 1 MiB"),
        (&["--synthetic", "sometimes", "--cache", "1M"], "is not a pattern"),
        (&["--synthetic", "zipf", "--cache", "0%"], "is not a share"),
        (
            &["--synthetic", "zipf", "--cache", "1M", "--policy", "mru"],
            "is not a policy: write all, or some of auto, auto-mixed, keep-refaulted",
        ),
        (&["--synthetic", "zipf", "--cache", "1M", "--report", "misses.png"], "neither .html nor .svg"),
        (&["--cache", "1M"], "--trace"),
    ] {
        let output = sim(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(message), "{arguments:?}: {error}");
    }
    Ok(())
}
