//! `vmio-bench kv` on small stores, as a user runs it: every phase and scenario verifies what it reads, and the JSON says all.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{TestResult, refused, succeeded, vmio_bench};
use roxmltree::{Document, ParsingOptions};
use serde_json::Value;

/// Small stores in a folder, and what is measured of them.
fn bench_kv(dir: &Path, more: &[&str]) -> Result<Vec<Value>, Box<dyn Error>> {
    let json = succeeded(&mut small(dir, &[more, &["--json", "-"]].concat()))?;
    Ok(serde_json::from_str(&json)?)
}

fn small(dir: &Path, more: &[&str]) -> Command {
    let mut command = vmio_bench();
    command.args(["kv", "--memory", "64M", "--dir"]).arg(dir).args(more);
    for (flag, value) in [("--records", "1000"), ("--engines", "vmio,lmdb")] {
        if !more.contains(&flag) {
            command.args([flag, value]);
        }
    }
    command
}

fn number(run: &Value, key: &str) -> f64 {
    run[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {run}"))
}

fn of<'a>(runs: &'a [Value], engine: &str, phase: &str) -> &'a Value {
    let found = runs.iter().find(|run| run["engine"] == engine && run["phase"] == phase);
    found.unwrap_or_else(|| panic!("no {engine}, {phase}"))
}

#[test]
fn key_value_stores_hold_what_was_put() -> TestResult {
    let dir = tempfile::tempdir()?;
    let runs = bench_kv(dir.path(), &["--phases", "L,A,B,C,D,e,F,G"])?;
    let measured: Vec<_> = runs.iter().map(|run| (run["engine"].as_str(), run["phase"].as_str())).collect();
    let phases = ["L", "A", "B", "C", "D", "E", "F", "G"];
    let expected = ["vmio", "lmdb"].iter().flat_map(|engine| phases.map(|phase| (Some(*engine), Some(phase))));
    assert_eq!(measured, expected.collect::<Vec<_>>());
    for run in &runs {
        for key in ["kops", "p50_us", "p99_us", "p999_us", "p9999_us", "max_us", "cpu_s_per_mop", "space_bytes"] {
            assert!(run[key].as_f64().is_some_and(|value| value > 0.0), "{key} of {run}");
        }
        for key in ["dev_read_bytes", "dev_write_bytes", "max_rss_bytes"] {
            assert!(run[key].is_u64() || run[key].is_null(), "{key} of {run}");
        }
        for key in ["read_request_bytes", "write_request_bytes", "randomness", "read_randomness", "write_randomness"] {
            let value = &run[key];
            assert!(value.is_null() || value.as_f64().is_some_and(|value| value >= 0.0), "{key} of {run}");
            assert!(run.get(key).is_some(), "{key} of {run}");
        }
        let (longest, of_engine) = (number(run, "p9999_us"), run["p9999_engine_us"].as_f64());
        assert!(of_engine.is_none_or(|us| us > 0.0 && us <= longest), "{run}");
        let (errors, shape) = (&run["errors"], (&run["value_bytes"], &run["threads"]));
        assert_eq!((errors, shape), (&0.into(), (&100.into(), &2.into())), "{run}");
        let ops = if run["phase"] == "E" || run["phase"] == "G" { 50 } else { 1000 };
        assert_eq!((&run["ops"], &run["stopped"]), (&ops.into(), &false.into()), "{run}");
    }
    // Phases that insert leave more records to those after.
    let records = |phase: &str| runs.iter().find(|run| run["phase"] == phase).and_then(|run| run["records"].as_u64());
    assert_eq!(records("C"), Some(1000));
    assert!(records("D") > Some(1000) && records("G") >= records("D"), "{runs:?}");
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "files are left");

    let loaded = ["--phases", "C", "--ops", "10", "--distribution", "latest", "--value-bytes", "1000"];
    let table = succeeded(&mut small(dir.path(), &loaded))?;
    // A line of its own: the name of the folder may end with anything.
    let phases: Vec<&str> = table.lines().filter(|line| line.ends_with(", latest")).collect();
    assert_eq!(phases, ["C, latest"], "the load is not asked for: {table}");
    let little = ["kv", "--memory", "1M"];
    refused(vmio_bench().args(little), "engines need at least 48 MiB")?;
    refused(
        vmio_bench().args(["kv", "--engines", "leveldb"]),
        "is no engine: there are vmio, vmio-reader-thread, vmio-kernel, vmio-ring0, lmdb, redb",
    )
}

#[test]
fn a_phase_ends_when_its_time_is_over() -> TestResult {
    let dir = tempfile::tempdir()?;
    let much = ["--phases", "L,C", "--ops", "1000000000", "--phase-limit", test_depth::pick("1", "3")];
    let runs = bench_kv(dir.path(), &much)?;
    for engine in ["vmio", "lmdb"] {
        let (load, reads) = (of(&runs, engine, "L"), of(&runs, engine, "C"));
        assert_eq!((&load["stopped"], &reads["stopped"]), (&false.into(), &true.into()), "{reads}");
        assert!((1000.0..1e9).contains(&number(reads, "ops")) && reads["errors"] == 0, "{reads}");
    }
    let table = succeeded(&mut small(dir.path(), &much))?;
    assert!(table.contains("the time limit came after"), "{table}");
    Ok(())
}

#[test]
fn writes_are_as_durable_as_was_said() -> TestResult {
    let dir = tempfile::tempdir()?;
    let of_durability = |durability| {
        bench_kv(dir.path(), &["--records", "300", "--phases", "L", "--threads", "1", "--durability", durability])
    };
    let (none, sync) = (of_durability("none")?, of_durability("sync")?);
    for engine in ["vmio", "lmdb"] {
        let (none, sync) = (of(&none, engine, "L"), of(&sync, engine, "L"));
        assert_eq!((&none["durability"], &sync["durability"]), (&"none".into(), &"sync".into()));
        // Each write waits for one of the device's, where there is a device that counts. Others may use it, too.
        if sync["dev_writes"].is_u64() {
            assert!(number(sync, "dev_writes") >= 300.0, "{sync}");
        }
    }
    Ok(())
}

#[test]
fn scenarios_find_what_was_put() -> TestResult {
    let dir = tempfile::tempdir()?;
    let runs = bench_kv(dir.path(), &["--scenarios", "prefixes,deletes,queue,mass-delete,keyspaces,reopen"])?;
    assert!(runs.iter().all(|run| run["errors"] == 0), "{runs:?}");
    for engine in ["vmio", "lmdb"] {
        let of_engine = runs.iter().filter(|run| run["engine"] == engine);
        let done: Vec<_> = of_engine.clone().map(|run| (run["scenario"].as_str(), run["phase"].as_str())).collect();
        let expected = [
            ("prefixes", Some("L")),
            ("prefixes", Some("C")),
            ("prefixes", Some("G")),
            ("deletes", Some("delete")),
            ("deletes", Some("seek")),
            ("queue", Some("queue")),
            ("mass-delete", Some("mass-delete")),
            ("keyspaces", Some("L")),
            ("keyspaces", Some("A")),
            ("keyspaces", Some("C")),
            ("keyspaces", Some("G")),
            ("reopen", None),
        ];
        assert_eq!(done, expected.map(|(scenario, phase)| (Some(scenario), phase)), "{engine}");
        for run in of_engine {
            match run["scenario"].as_str() {
                Some("prefixes") => assert_eq!(run["prefix_bytes"], 64, "{run}"),
                Some("keyspaces") => assert_eq!(run["keyspaces"], 300, "{run}"),
                Some("reopen") => {
                    assert!(number(run, "open_s") > 0.0 && number(run, "first_read_us") > 0.0, "{run}");
                    assert_eq!((&run["records"], &run["lost_records"]), (&1000.into(), &0.into()), "{run}");
                }
                _ => {}
            }
        }
        // Half of all keys.
        let deletes = number(of(&runs, engine, "delete"), "ops");
        assert!((400.0..600.0).contains(&deletes), "{deletes}");
        // A turn for each record; half of all, and five seeks.
        assert_eq!(number(of(&runs, engine, "queue"), "ops"), 1000.0);
        assert_eq!(number(of(&runs, engine, "mass-delete"), "ops"), 505.0);
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "files are left");
    Ok(())
}

#[test]
fn a_load_that_is_killed_is_recovered() -> TestResult {
    let dir = tempfile::tempdir()?;
    let runs = bench_kv(dir.path(), &["--scenarios", "recovery", "--records", "40000", "--durability", "periodic"])?;
    assert_eq!(runs.len(), 2, "{runs:?}");
    for run in &runs {
        assert_eq!((&run["scenario"], &run["errors"]), (&"recovery".into(), &0.into()), "{run}");
        let (records, lost) = (number(run, "records"), number(run, "lost_records"));
        assert!((20_000.0..=40_000.0).contains(&records) && lost <= records, "{run}");
        // What LMDB has written is in the page cache, which a kill leaves alone.
        assert!(run["engine"] != "lmdb" || lost == 0.0, "{run}");
        assert!(run["engine"] != "vmio" || run["replayed_log_bytes"].is_u64() && run["memory_fill"].is_f64(), "{run}");
    }
    let durable = bench_kv(dir.path(), &["--scenarios", "recovery", "--durability", "sync", "--engines", "vmio"])?;
    assert_eq!((&durable[0]["lost_records"], &durable[0]["errors"]), (&0.into(), &0.into()), "{durable:?}");
    assert!(number(&durable[0], "replayed_records") >= number(&durable[0], "records"), "{durable:?}");
    Ok(())
}

/// Requests are traced for root, where the kernel can.
#[test]
fn how_random_requests_are_is_told_where_it_can_be() -> TestResult {
    let dir = tempfile::tempdir()?;
    let runs = bench_kv(dir.path(), &["--phases", "L,C", "--records", "20000", "--engines", "lmdb"])?;
    for run in &runs {
        for key in ["randomness", "read_randomness", "write_randomness"] {
            // A file in memory has no device, not everybody may trace, and what is in the page cache is not read.
            assert!(run[key].as_f64().is_none_or(|randomness| (0.0..=1.0).contains(&randomness)), "{key} of {run}");
        }
    }
    let load = of(&runs, "lmdb", "L");
    assert!(load["randomness"].is_null() || load["write_randomness"].is_f64(), "{load}");
    Ok(())
}

#[test]
fn the_page_shows_every_engine_and_needs_nothing_else() -> TestResult {
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("kv.html");
    let stores = dir.path().join("stores");
    fs::create_dir(&stores)?;
    let mut command = small(&stores, &["--phases", "L,C", "--scenarios", "reopen"]);
    let text = succeeded(command.arg("--report").arg(&page))?;
    assert!(text.contains("the report is in"), "{text}");
    let page = fs::read_to_string(page)?;
    let document = Document::parse_with_options(&page, ParsingOptions { allow_dtd: true, ..Default::default() })?;
    let titles = document.descendants().filter_map(|node| node.attribute("aria-label")).collect::<Vec<_>>();
    for title in ["Throughput", "Space", "Memory", "Latency: L", "Latency: C"] {
        assert!(titles.contains(&title), "{title}: {titles:?}");
    }
    let engines: BTreeSet<_> = document.descendants().filter_map(|node| node.attribute("data-engine")).collect();
    assert_eq!(engines, BTreeSet::from(["lmdb", "vmio"]));
    assert!(page.contains("<h2>reopen</h2>") && page.contains("--report"), "tables and the command");
    assert!(!page.contains("src=") && !page.contains("href="), "it needs nothing else");
    Ok(())
}

#[cfg(not(feature = "peers"))]
#[test]
fn engines_that_a_build_lacks_are_refused_with_advice() -> TestResult {
    refused(vmio_bench().args(["kv", "--engines", "vmio,rocksdb"]), "run `make bench-kv`")
}
